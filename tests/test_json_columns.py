"""JSON columns: which calls take values and which take texts, and that every way round keeps each value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import strandline as sl
from receiving import NDJSON, asking, lines, post
from strandline.server.app import make_app
from strandline.sinks.forward import encode
from support import refused

SCHEMA = pa.schema([("id", pa.int64()), ("doc", pa.json_())])
VALUES: list[Any] = [
    "5",
    "null",
    "hello",
    "",
    "{}",
    '{"a": 1}',
    5,
    1.5,
    True,
    {"a": ["x", None]},
    [],
    None,
    "ü\n\u2028",
]
TEXTS = [
    '"5"', '"null"', '"hello"', '""', '"{}"', "5", "1.50", "12345678901234567890.5", "true",
    '{"b": 1,  "a":\n[1e400]}', "[ ]", None,
]  # fmt: skip


@pytest.fixture
def make(lake: sl.Lake) -> Any:
    def create(name: str = "docs") -> sl.Table:
        return lake.create_table(name, SCHEMA, key=["id"])

    return create


def texts_in(table: sl.Table) -> list[str | None]:
    return table.to_arrow().sort_by("id").column("doc").to_pylist()


def values_in(table: sl.Table) -> list[Any]:
    return [None if text is None else json.loads(text) for text in texts_in(table)]


def filled(table: sl.Table) -> sl.Table:
    """A table with the texts, given as texts."""
    table.upsert(pa.table({"id": range(len(TEXTS)), "doc": pa.array(TEXTS, pa.string())}))
    return table


def test_rows_of_dicts_hold_values(make: Any) -> None:
    table = make()
    table.upsert([{"id": at, "doc": value} for at, value in enumerate(VALUES)])
    assert values_in(table) == VALUES
    table.compact(full=True)
    assert values_in(table) == VALUES


def test_a_json_text_in_a_row_is_json(make: Any) -> None:
    table = make()
    table.upsert([{"id": 1, "doc": sl.JsonText('{"a":  1}')}, {"id": 2, "doc": sl.JsonText("null")}])
    assert texts_in(table) == ['{"a":  1}', None]
    with refused(sl.Invalid, row=0, column="doc"):
        table.upsert([{"id": 3, "doc": sl.JsonText("hello")}])


def test_columns_hold_texts_whichever_library_they_come_from(make: Any) -> None:
    ids = list(range(len(TEXTS)))
    as_json = pa.array(TEXTS, pa.string()).cast(pa.string())
    columns = {
        "string": pa.table({"id": ids, "doc": as_json}),
        "json": pa.table({"id": ids, "doc": pa.ExtensionArray.from_storage(pa.json_(), as_json)}),
        "pandas": pd.DataFrame({"id": ids, "doc": TEXTS}),
        "polars": pl.DataFrame({"id": ids, "doc": TEXTS}),
    }
    for name, rows in columns.items():
        table = make(name)
        table.upsert(rows)
        assert texts_in(table) == TEXTS, name
        with refused(sl.Invalid, row=0, column="doc") as caught:
            table.upsert(pa.table({"id": [1], "doc": ["hello"]}))
        assert "json_values" in (caught.value.hint or "")


def test_a_frame_with_values_and_texts_takes_its_texts_as_json(make: Any) -> None:
    table = make()
    table.upsert(pd.DataFrame({"id": [1, 2, 3], "doc": [{"a": 1}, '{"b": 2}', 5]}))
    assert values_in(table) == [{"a": 1}, {"b": 2}, 5]


def test_a_column_of_values_is_made_by_json_values(make: Any) -> None:
    table = make()
    table.upsert(pa.table({"id": range(len(VALUES)), "doc": sl.json_values(VALUES)}))
    assert values_in(table) == VALUES
    with refused(sl.Invalid, row=1):
        sl.json_values([1, object()])


def test_the_json_null_is_null_and_a_required_column_refuses_it(lake: sl.Lake) -> None:
    table = lake.create_table("docs", "id:int64!, doc:json!", key=["id"])
    for rows in ([{"id": 1, "doc": None}], pa.table({"id": [1], "doc": [" null\n"]})):
        with refused(sl.Invalid, row=0, column="doc"):
            table.upsert(rows)


def test_what_is_read_can_be_written_again(make: Any) -> None:
    table = filled(make())
    for at, rows in enumerate((table.to_arrow(), table.changes(0).drop_columns(["_op", "_seq"]), *table.to_batches())):
        again = make(f"again{at}")
        again.upsert(rows)
        assert texts_in(again) == TEXTS
    table.upsert([{"id": at, "doc": "other"} for at in range(len(TEXTS))])
    table.restore(1)
    assert texts_in(table) == TEXTS


def test_an_export_and_a_backup_keep_the_texts(make: Any, lake: sl.Lake, tmp_path: Path) -> None:
    table = filled(make())
    table.export(str(tmp_path / "out"))
    make("loaded")
    lake.ingest("loaded", [str(tmp_path / "out" / "*.parquet")])
    assert texts_in(lake.table("loaded")) == TEXTS
    lake.backup(str(tmp_path / "copy"))
    assert texts_in(sl.Lake(tmp_path / "copy").table("docs")) == TEXTS


def test_json_files_hold_values_and_csv_files_hold_texts(make: Any, lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"id": at, "doc": value} for at, value in enumerate(VALUES)]))
    table = make()
    lake.ingest("docs", [str(tmp_path / "a.json")])
    assert values_in(table) == VALUES
    rows = "".join(f'{at},"{text.replace(chr(34), 2 * chr(34))}"\n' for at, text in enumerate(TEXTS[:-1]) if text)
    (tmp_path / "a.csv").write_text("id,doc\n" + rows)
    make("cells")
    lake.ingest("cells", [str(tmp_path / "a.csv")])
    assert texts_in(lake.table("cells")) == TEXTS[:-1]


def test_lines_that_a_receiver_gets_hold_values(make: Any, lake: sl.Lake) -> None:
    table = make()
    with asking(make_app(lake)) as client:
        rows = lines(*({"id": at, "doc": value} for at, value in enumerate(VALUES)))
        answer = post(client, rows, "docs", **{"Content-Type": NDJSON})
        assert answer.status_code == 200, answer.text
        assert values_in(table) == VALUES


@pytest.mark.parametrize("form", ["arrow", "ndjson"])
def test_a_sender_keeps_every_value(make: Any, lake: sl.Lake, form: str) -> None:
    rows = filled(make()).to_arrow().combine_chunks().to_batches()[0]
    table = make("received")
    with asking(make_app(lake)) as client:
        content, headers = encode.encode(rows, form)
        answer = post(client, content, "received", **headers)
        assert answer.status_code == 200, answer.text
    expected = TEXTS if form == "arrow" else [text and text.replace("\n", " ") for text in TEXTS]
    assert texts_in(table) == expected
