"""Texts that no reader could hold are refused where they come in."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

import strandline as sl
from strandline.model.text import check_text, check_texts
from strandline.storage.delta import CHECKPOINT_EVERY
from support import nothing_written, refused

HALF, NUL = "a\ud800", "a\0"


@pytest.mark.parametrize("text", [HALF, NUL, "\udfff", "", None, 5], ids=ascii)
def test_a_text_is_unicode_without_nul(text):
    with refused(sl.Invalid) as caught:
        check_text("role", text)
    assert caught.value.message.startswith("role is ")
    caught.value.message.encode()  # and can be printed


def test_texts_are_looked_for_at_every_depth():
    check_texts("sink", {"a": ["", "ä", {"b": ("ok", 5, None)}], "c": b"\0"})
    for wrong in ({HALF: 1}, {"a": [{"b": (NUL,)}]}, [HALF]):
        with refused(sl.Invalid):
            check_texts("sink", wrong)


@pytest.mark.parametrize("text", [HALF, NUL], ids=ascii)
@pytest.mark.parametrize(
    "call",
    [
        lambda lake, items, text: items.upsert([{"id": 1}], token=text),
        lambda lake, items, text: items.delete([1], token=text),
        lambda lake, items, text: items.to_arrow(where=f"name = '{text}'"),
        lambda lake, items, text: items.to_arrow(columns=[text]),
        lambda lake, items, text: items.to_arrow(at=text),
        lambda lake, items, text: items.pin(why=text),
        lambda lake, items, text: items.pin(name=text),
        lambda lake, items, text: items.configure(keep=text),
        lambda lake, items, text: items.export(f"{lake.storage.uri}-out{text}"),
        lambda lake, items, text: lake.sql(f"SELECT '{text}' FROM items"),
        lambda lake, items, text: lake.create_table(text, items.schema),
        lambda lake, items, text: lake.rename("items", text),
        lambda lake, items, text: lake.ingest("items", [f"/tmp/{text}.jsonl"]),
        lambda lake, items, text: lake.backup(f"{lake.storage.uri}-copy{text}"),
        lambda lake, items, text: lake.sink(text, "items", to=sl.ParquetSink("/tmp/away")),
        lambda lake, items, text: lake.sink("s", "items", to=sl.ParquetSink(f"/tmp/{text}")),
        lambda lake, items, text: lake.sink("s", "items", to=sl.ParquetSink("/tmp/away"), where=f"name = '{text}'"),
        lambda lake, items, text: lake.sink("s", "items", to=sl.ParquetSink("/tmp/away"), salt=text),
        lambda lake, items, text: lake.sink("s", "items", to=sl.IcebergSink(catalog={"uri": text}, table="n.t")),
        lambda lake, items, text: lake.sink("s", "items", to=sl.IcebergSink(catalog={}, table=f"n.{text}")),
        lambda lake, items, text: sl.Lake(f"{lake.storage.uri}{text}"),
        lambda lake, items, text: sl.Lake(lake.storage.uri, state=f"sqlite:////tmp/{text}").state,
        lambda lake, items, text: sl.Lake(lake.storage.uri, state=f"postgresql://u@127.0.0.1:1/{text}").state,
    ],
)
def test_every_door_refuses_a_text_that_cannot_be_kept(lake, items, call, text):
    items.upsert([{"id": 1, "name": "a"}])
    with nothing_written(items), refused(sl.Invalid):
        call(lake, items, text)
    assert not lake.declared


def test_after_a_refused_token_checkpoints_and_foreign_readers_go_on(items):
    with refused(sl.Invalid):
        items.upsert([{"id": 0}], token="\ud800")
    for number in range(CHECKPOINT_EVERY):
        items.upsert([{"id": number}], token=f"ä\U0001f600 {number}")
    items.log.delta.await_checkpoint()
    assert any(info.path.endswith(".checkpoint.parquet") for info in items.log.storage.list(items.log.folder))
    assert DeltaTable(items.log.storage.url(items.log.folder)).version() == items.head
