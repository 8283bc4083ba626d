"""Arrow from outside: refused before it becomes large, and nothing worse than refused when it was tampered with."""

import gzip
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import receiving
import strandline as sl
from receiving import (
    ARROW,
    MIB,
    NDJSON,
    SHAPES,
    arrow,
    asking,
    chunk_of,
    error_of,
    light,
    post,
    refusal,
    weight,
)
from strandline.model.definition import TableDef
from strandline.model.types import JSON
from strandline.server.app import make_app
from strandline.server.body import BodyFormat, decode
from strandline.server.requests import make_posts
from strandline.sinks.forward.refusal import Refusal
from support import ITEMS, by_id, nothing_written, rows_of

client = receiving.client


def _dictionary(text: str, count: int) -> pa.Table:
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), pa.array([text]))
    return pa.table({"id": pa.array(range(count)), "name": names})


def _views(text: str, count: int) -> pa.Table:
    """Views of one text; nothing else makes them share it."""
    _, views, shared = pa.array([text], pa.string_view()).buffers()
    names = pa.Array.from_buffers(pa.string_view(), count, [None, pa.py_buffer(views.to_pybytes() * count), shared])
    return pa.table({"id": pa.array(range(count)), "name": names})


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (gzip.compress(b" " * (9 * MIB)), NDJSON),
        (arrow([{"id": 1, "name": "x" * (5 * MIB)}]), ARROW),
        (arrow(_dictionary("x" * 1000, 10_000), compression=None), ARROW),
        (arrow(_views("x" * 1000, 10_000)), ARROW),
        (arrow(pa.table({"id": pa.nulls(1 << 22)})), ARROW),
        (arrow(pa.table({"id": pa.FixedSizeListArray.from_arrays(pa.nulls(1 << 22), 1 << 22)})), ARROW),
        (b"{}\n" * 200_000, NDJSON),
    ],
    ids=["gzip", "zstd", "dictionary", "views", "nulls", "lists", "lines"],
)  # fmt: skip
def test_small_bodies_that_become_large_are_refused(lake, items, content, kind):
    assert len(content) < MIB
    headers = {"Content-Type": kind, **({"Content-Encoding": "gzip"} if content[:2] == b"\x1f\x8b" else {})}
    with asking(make_app(lake, body_bytes=MIB)) as client, nothing_written(items):
        assert error_of(post(client, content, **headers), 413)["kind"] == "Invalid"


def test_dictionaries_and_views_of_a_sane_size_are_taken(client, items):
    for table in (_dictionary("x" * 1000, 100), _views("y" * 1000, 100)):
        assert post(client, arrow(table)).json()["rows"] == 100
    assert set(by_id(items).values()) == {"y" * 1000}


def test_streams_that_were_tampered_with_are_refused_and_nothing_worse():
    columns = TableDef.declare(ITEMS, key=["id"])
    seeds = [
        arrow(_views("text", 20)),
        arrow(_dictionary("text", 20)),
        arrow([{"id": 1, "name": "a"}], compression="lz4"),
    ]
    dice = random.Random(7)
    for _ in range(400):
        data = bytearray(dice.choice(seeds))
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.choice([0, 1, 127, 255, dice.randrange(256)])
        try:
            make_posts(decode(bytes(data), BodyFormat(True, False), light()).rows(columns.schema), columns)
        except (Refusal, sl.Invalid) as error:
            assert not isinstance(error, Refusal) or error.status in (400, 413)


def test_dictionaries_that_grow_batch_by_batch_are_bounded():
    kind = pa.dictionary(pa.int32(), pa.string())
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    values = [f"{n}" * 1000 for n in range(300)]
    with pa.ipc.new_stream(sink, pa.schema([("name", kind)]), options=options) as writer:
        for n in range(1, 300):
            array = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(values[:n]))
            writer.write_batch(pa.record_batch([array], names=["name"]))
    data = sink.getvalue().to_pybytes()
    assert refusal(data, BodyFormat(True, False), weight(4 * MIB)) == 413
    assert decode(data, BodyFormat(True, False), weight(1024 * MIB)).count == 299


def _state(table):
    log = table.log.refresh()
    return log.head, table.schema, dict(log.snapshot.txns), rows_of(table.to_arrow())


LOOSE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


ARROW_TYPES = st.sampled_from(
    [
        pa.int8(), pa.int64(), pa.uint64(), pa.float16(), pa.float64(), pa.string(), pa.large_string(),
        pa.string_view(), pa.binary(), pa.bool_(), pa.null(), pa.date32(), pa.date64(), pa.timestamp("ns"),
        pa.timestamp("s", "UTC"), pa.time64("us"), pa.duration("s"), pa.decimal128(38, 10), pa.decimal256(50, 2),
        pa.binary(4), JSON,
        pa.list_(pa.float64()), pa.large_list(pa.string()), pa.list_(pa.int32(), 2), pa.map_(pa.string(), pa.int32()),
        pa.struct([("x", pa.int64())]), pa.struct([("x", pa.int64()), ("z", pa.string())]), pa.struct([]),
        pa.struct([("", pa.int64())]), pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.float64()),
        pa.list_(pa.dictionary(pa.int8(), pa.string())), pa.list_view(pa.int64()), pa.month_day_nano_interval(),
        pa.run_end_encoded(pa.int32(), pa.string()), pa.sparse_union([pa.field("a", pa.int64())]), pa.uuid(),
    ]
)  # fmt: skip


def _arrow_column(kind, count, is_null):
    if is_null or kind in (pa.struct([]),):
        return pa.nulls(count, kind)
    raw = np.random.default_rng(1).integers(0, 100, count)
    for make in (
        lambda: pa.array(raw).cast(kind),
        lambda: pa.array(raw).cast(pa.string()).cast(kind),
        lambda: pa.array([str(n) for n in raw], kind),
        lambda: pa.array([[n, n] for n in raw.tolist()], kind),
        lambda: pa.array([[(str(n), n)] for n in raw.tolist()], kind),
        lambda: pa.array([{"x": n} for n in raw.tolist()], kind),
        lambda: pa.array([f"{n:04}".encode()[:4] for n in raw.tolist()], kind),
    ):
        try:
            return make()
        except (pa.ArrowException, TypeError, ValueError):
            continue
    return pa.nulls(count, kind)


@LOOSE
@given(
    st.dictionaries(st.sampled_from([*SHAPES.names[1:], "new", "a b", "_x", "ſ", "T"]), ARROW_TYPES, max_size=4),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=2),
)
def test_no_arrow_is_a_fault_of_the_server_and_a_refused_one_leaves_nothing(
    lake, shapes, kinds, is_null, is_chunk, count, flips
):
    columns = {name: _arrow_column(kind, count, is_null) for name, kind in kinds.items()}
    columns["id"] = pa.array(range(count), pa.int64())
    if is_chunk:
        columns |= {"_op": ["upsert"] * count, "_vnode": [0] * count, "_seq": [1] * count, "_index": range(count)}
    try:
        data = bytearray(arrow(pa.table(columns)))
    except pa.ArrowException:
        return  # Arrow itself cannot write this one
    for place, byte in flips:
        data[int(place * (len(data) - 1))] = byte
    table = shapes[0]
    placed = chunk_of([0, 0, 0, 0, 9, 0], first=True, sink=f"s{table.head}")
    headers = placed if is_chunk else {"Content-Type": ARROW}
    before = _state(table)
    with asking(make_app(lake, linger_ms=0)) as client:
        answer = client.post("/ingest/shapes", content=bytes(data), headers=headers)
    assert answer.status_code in (200, 400, 412, 413, 422), answer.text
    if answer.status_code != 200:
        assert _state(table) == before
