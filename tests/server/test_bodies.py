"""Bodies from outside: what they become is bounded, what they say has one meaning, what is refused leaves nothing."""

import contextlib
import gzip
import json
import re
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strandline as sl
from receiving import ARROW, NDJSON, arrow, asking, chunk_of, lines, row_at, served
from strandline.model.types import JSON
from strandline.server import ndjson
from strandline.server.app import make_app
from strandline.server.arrow_messages import Flat
from strandline.server.body import Form, decode
from strandline.server.memory_cost import Weight
from strandline.server.receiver import _CHECKERS
from strandline.sinks.forward.refusal import Refusal
from support import ITEMS, nothing_written, rows_of

MIB = 1 << 20
PLAIN = {"Content-Type": NDJSON}


def weight(most=64 * MIB, *, rows=1_000_000, columns=4096):
    return Weight(most, rows, columns)


def refusal(data, form, limit=None):
    with pytest.raises(Refusal) as caught:
        body = decode(data, form, limit or weight())
        body.rows(ITEMS)
    return caught.value.status


# --- memory ----------------------------------------------------------------------------------------------------


def _stream(table, compression="zstd"):
    return arrow(table, compression=compression)


def _nulls(rows):
    return pa.table({"id": pa.nulls(rows)})


def _shared_text(count, size):
    """Many views of one text."""
    _, views, shared = pa.array(["x" * size], pa.string_view()).buffers()
    names = pa.Array.from_buffers(pa.string_view(), count, [None, pa.py_buffer(views.to_pybytes() * count), shared])
    return pa.table({"id": pa.array(range(count)), "name": names})


def _dictionary(values, count):
    return pa.table({"name": pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), values)})


def _bombs():
    """Small bodies of which each became gigabytes, or took minutes."""
    rows = 63_000_000
    yield "bools", _stream(pa.table({"id": pa.array(np.zeros(rows, np.bool_))})), ARROW, False
    yield "nulls", _stream(_nulls(rows), None), ARROW, False
    yield "runs", _stream(pa.table({"id": pa.RunEndEncodedArray.from_arrays([rows], ["x" * 1000])})), ARROW, False
    yield "texts", _stream(_dictionary(pa.array(["x" * 100_000]), 500_000)), ARROW, False
    yield "blocks", _stream(_dictionary(pa.array([b"x" * MIB], pa.binary(MIB)), 500_000)), ARROW, False
    yield "views", _stream(_shared_text(100_000, MIB)), ARROW, False
    yield "wide", _stream(pa.table({f"c{n}": pa.array([1]) for n in range(30_000)})), ARROW, False
    yield "gzip of arrow", gzip.compress(_stream(_nulls(500_000), None) + b"\0" * (1200 * MIB)), ARROW, True
    yield "spaces", gzip.compress(b" " * (1200 * MIB)), NDJSON, True
    yield "one line", gzip.compress(b"{}" * 8_000_000), NDJSON, True
    yield "many lines", gzip.compress(b"{}\n" * 4_000_000), NDJSON, True
    yield "members", gzip.compress(b"") * 700_000, NDJSON, True
    yield "names", b"{" + b",".join(b'"n%d":1' % n for n in range(300_000)) + b"}", NDJSON, False
    yield "deep", b'{"id":' + b"[" * 4_000_000 + b"]" * 4_000_000 + b"}", NDJSON, False
    yield "digits", b'{"id":' + b"9" * 8_000_000 + b"}", NDJSON, False
    yield "elements", b'{"id":1,"name":[' + b"[]," * 2_000_000 + b"[]]}", NDJSON, False


@pytest.fixture(scope="module")
def bombs():
    return list(_bombs())


def _peak(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def test_no_small_body_makes_the_server_large(tmp_path, bombs):
    lake = sl.Lake(tmp_path / "lake")
    table = lake.create_table("items", ITEMS, key=["id"])
    limits = {"body_bytes": 16 * MIB, "queue_bytes": 192 * MIB}
    with served(lake.storage.uri, **limits) as server:
        assert server.post("items", lines({"id": 1, "name": "a"}), PLAIN).status_code == 200
        before = psutil.Process(server.process.pid).memory_info().rss

        def send(bomb):
            name, content, kind, is_gzip = bomb
            headers = {"Content-Type": kind, **({"Content-Encoding": "gzip"} if is_gzip else {})}
            return name, server.client.post("/ingest/items", content=content, headers=headers, timeout=600).status_code

        with nothing_written(table):
            for bomb in bombs:
                assert send(bomb)[1] in (400, 412, 413, 422), bomb[0]
            with ThreadPoolExecutor(6) as pool:
                for name, status in pool.map(send, bombs):
                    assert status in (400, 412, 413, 422, 429), name
        assert server.post("items", lines({"id": 2}), PLAIN).status_code == 200
        # Beside what requests hold, the C library keeps up to 64 MiB of what each thread gave back.
        assert _peak(server.process) < before + limits["queue_bytes"] + _CHECKERS * 64 * MIB


@pytest.mark.parametrize("form", ["arrow", "ndjson"])
def test_what_is_claimed_is_at_least_what_is_taken(tmp_path, form):
    """Bodies that are as heavy as they may be, in one server at the same time."""
    lake = sl.Lake(tmp_path / "lake")
    lake.create_table("items", ITEMS, key=["id"])
    limits = {"body_bytes": 16 * MIB, "queue_bytes": 256 * MIB}
    count = 150_000
    rows = pa.table({"id": pa.array(range(count)), "name": [f"{n:064}" for n in range(count)]})
    content = arrow(rows) if form == "arrow" else lines(*rows.to_pylist())
    headers = {"Content-Type": ARROW if form == "arrow" else NDJSON}
    with served(lake.storage.uri, **limits) as server:
        assert server.post("items", lines({"id": 1, "name": "a"}), PLAIN).status_code == 200
        before = psutil.Process(server.process.pid).memory_info().rss
        with ThreadPoolExecutor(6) as pool:
            sent = [pool.submit(server.post, "items", content, headers) for _ in range(6)]
            found = {future.result().status_code for future in sent}
        assert 200 in found
        assert found <= {200, 429}
        assert _peak(server.process) < before + limits["queue_bytes"] + _CHECKERS * 64 * MIB


def test_one_long_text_takes_no_more_than_it_claims(tmp_path):
    """It is the least and the greatest value of its page, its column and its index."""
    lake = sl.Lake(tmp_path / "lake")
    lake.create_table("items", ITEMS, key=["id"])
    limits = {"body_bytes": 64 * MIB, "queue_bytes": 352 * MIB}
    with served(lake.storage.uri, **limits) as server:
        assert server.post("items", lines({"id": 1, "name": "a"}), PLAIN).status_code == 200
        before = psutil.Process(server.process.pid).memory_info().rss
        for size, status in ((24 * MIB, 200), (63 * MIB, 413)):
            row = {"id": 1, "name": "x" * size}
            for content, kind in ((lines(row), NDJSON), (arrow([row]), ARROW)):
                assert server.post("items", content, {"Content-Type": kind}).status_code == status
        assert _peak(server.process) < before + limits["queue_bytes"] + _CHECKERS * 64 * MIB


def _shared_field(count, size):
    """A schema of one field with a long name, told to be every column: four bytes each. Arrow takes 3.9 GB for 4000
    columns with a name of a megabyte. That such a schema is counted before it is made is why its message is read by
    hand, whether or not buffers are compressed."""
    fields = [pa.field("n" * size, pa.int64()), *[pa.field("x", pa.int64())] * (count - 1)]
    data = bytearray(pa.schema(fields).serialize())
    message = memoryview(data)[8:]
    start = Flat.header(message)._target(1) + 4
    (first,) = struct.unpack_from("<I", message, start)
    for at in range(0, 4 * count, 4):
        struct.pack_into("<I", message, start + at, first - at)
    return bytes(data)


def test_texts_that_a_schema_shares_are_counted_each_time():
    few = _shared_field(20, 1000)
    assert pa.ipc.open_stream(few).schema.names == ["n" * 1000] * 20
    many = _shared_field(4000, MIB)
    assert len(many) < 2 * MIB and refusal(many, Form(True, False)) == 412
    fields = [pa.field("n" * 60_000, pa.int64())] * 100
    assert refusal(pa.schema(fields).serialize().to_pybytes(), Form(True, False)) == 412
    many = [pa.field(f"f{n}", pa.int64(), metadata={"k": "v" * 60_000}) for n in range(100)]
    assert refusal(pa.schema(many).serialize().to_pybytes(), Form(True, False)) == 412


def test_fields_inside_of_columns_are_counted():
    """Not 413: a sender would halve its rows in vain, and give them up."""
    deep = pa.struct([(f"f{n}", pa.struct([(f"g{n}", pa.int64()) for n in range(70)])) for n in range(70)])
    assert refusal(arrow(pa.table({"id": pa.array([None], deep)})), Form(True, False)) == 412
    assert decode(arrow(pa.table({"id": pa.array([None], deep)})), Form(True, False), weight(columns=5000)).count == 1


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
    assert refusal(data, Form(True, False), weight(4 * MIB)) == 413
    assert decode(data, Form(True, False), weight(1024 * MIB)).count == 299


@pytest.mark.parametrize("form", ["arrow", "ndjson"])
def test_rows_of_a_body_are_bounded(lake, items, form):
    rows = [{"id": n} for n in range(11)]
    with asking(make_app(lake, body_rows=10)) as client:
        for count, status in ((11, 413), (10, 200)):
            content = arrow(rows[:count]) if form == "arrow" else lines(*rows[:count])
            headers = {"Content-Type": ARROW if form == "arrow" else NDJSON}
            assert client.post("/ingest/items", content=content, headers=headers).status_code == status


def test_columns_that_a_request_leaves_out_are_weighed(lake):
    lake.create_table(
        "wide", pa.schema([("id", pa.int64()), *((f"c{n}", pa.string()) for n in range(900))]), key=["id"]
    )
    with asking(make_app(lake, body_bytes=MIB)) as client:
        for content, kind in ((arrow([{"id": n} for n in range(1000)]), ARROW), (b'{"id":1}\n' * 1000, NDJSON)):
            answer = client.post("/ingest/wide", content=content, headers={"Content-Type": kind})
            assert answer.status_code == 413


# --- time ------------------------------------------------------------------------------------------------------


def _cpu_s(act):
    best = []
    for _ in range(3):
        start = time.process_time()
        act()
        best.append(time.process_time() - start)
    return min(best)


def _tried(data, form, schema=ITEMS):
    def act():
        with contextlib.suppress(Refusal, sl.Invalid):
            decode(data, form, Weight(1 << 40, 1 << 40, 1 << 40)).rows(schema)

    return act


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda n: (b"{" + b",".join(b'"n%d":1' % i for i in range(n)) + b"}", False, False), 20_000),
        (lambda n: (b"{" + b",".join(b'"id":1' for i in range(n)) + b"}", False, False), 20_000),
        (lambda n: (gzip.compress(b"") * n, False, True), 2_500),
        (lambda n: (arrow(pa.table({f"c{i}": pa.array([1]) for i in range(n)})), True, False), 3_000),
        (lambda n: (b'{"id":' + b"9" * n + b"}", False, False), 1_000_000),
        (lambda n: (b'{"id":"x"}\n' * n, False, False), 50_000),
    ],
    ids=["names", "one name", "members", "columns", "digits", "bad rows"],
)
def test_twice_the_body_takes_about_twice_the_time(make, size):
    def spent(n):
        data, is_arrow, is_gzip = make(n)
        return _cpu_s(_tried(data, Form(is_arrow, is_gzip)))

    # What grows with the square takes 16 times as long.
    assert spent(4 * size) < 9 * max(spent(size), 0.004)


# --- one meaning -----------------------------------------------------------------------------------------------

SHAPES = pa.schema(
    [
        ("id", pa.int64()), ("f", pa.float64()), ("h", pa.float32()), ("t", pa.string()), ("y", pa.bool_()),
        ("i", pa.int16()), ("d", pa.decimal128(9, 2)), ("at", pa.timestamp("us", tz="UTC")), ("day", pa.date32()),
        ("l", pa.list_(pa.int32())), ("r", pa.struct([("x", pa.int64()), ("s", pa.string())])), ("j", JSON),
    ]
)  # fmt: skip
WITH_HAND = pa.schema([*SHAPES, ("b", pa.binary()), ("m", pa.map_(pa.string(), pa.int32()))])


@pytest.fixture
def shapes(lake):
    return lake.create_table("shapes", SHAPES, key=["id"]), lake.create_table("hand", WITH_HAND, key=["id"])


@pytest.mark.parametrize(
    ("text", "status", "column"),
    [
        ('{"id":1} {"id":2}', 400, None), ('{"id":1}{"id":2}', 400, None), ('{"id":\n1}{"id":2}', 400, None),
        ('{"id":1}\x0c', 400, None), ("null", 400, None), ("[]", 400, None), ("7", 400, None), ('"x"', 400, None),
        ('{"id":1,"id":2}', 400, "id"), ('{"id":1,"r":{"x":1,"x":2}}', 400, "r"), ('{"id":1,"f":NaN}', 400, None),
        ('{"id":1,"f":Infinity}', 400, None), ('{"id":1,"f":-Inf}', 400, None), ('{"id":1,"f":1e400}', 422, "f"),
        ('{"id":1,"f":-1e400}', 422, "f"), ('{"id":1,"h":1e39}', 422, "h"), ('{"id":1,"f":"1"}', 422, "f"),
        ('{"id":' + "9" * 5000 + "}", 400, None), ('{"id":9223372036854775808}', 422, "id"),
        ('{"id":1,"i":32768}', 422, "i"), ('{"id":1.0}', 422, "id"), ('{"id":true}', 422, "id"),
        ('{"id":1,"t":"\\ud800"}', 422, "t"), ('{"id":1,"r":{"s":"\\udfff"}}', 422, "r"), ('{"id":1,"t":5}', 422, "t"),
        ('{"id":1,"j":"\\ud800"}', 422, "j"), ('{"id":1,"j":"no"}', 422, "j"), ('{"id":1,"j":NaN}', 422, "j"),
        ('{"id":1,"\\ud800":1}', 422, "?"), ('{"id":1,"more":1}', 422, "more"), ('{"id":1,"r":{"z":1}}', 422, "r"),
        ('{"id":1,"l":' + "[" * 100_000 + "}", 400, None), ('{"id":1,"l":[[1]]}', 422, "l"),
        ('{"id":1,"l":' + "[" * 100_000 + "]" * 100_000 + "}", 400, None), ('{"id":1,"l":[1,"2"]}', 422, "l"),
        ('{"id":1,"d":1.005}', 422, "d"), ('{"id":1,"d":"1e9999"}', 422, "d"), ('{"id":1,"d":1e999999999}', 422, "d"),
        ('{"id":1,"at":"2024-01-01T00:00:00"}', 422, "at"), ('{"id":1,"at":5}', 422, "at"),
        ('{"id":1,"at":"2024-01-01T00:00:00.1234567Z"}', 422, "at"), ('{"id":1,"day":"2024-02-30"}', 422, "day"),
        ('{"id":1,"y":0}', 422, "y"), ('{"id":1,"r":[]}', 422, "r"), ('{"id":1', 400, None), ("{'id':1}", 400, None),
        ('{"id":1,"f":NaN,"r":{"z":1}}', 400, None), ('{"id":null}', 422, "id"), ("{}", 422, "id"),
        ("\ufeff" + '{"id":1}', 400, None),
    ],
)  # fmt: skip
def test_a_line_that_is_wrong_has_one_answer_on_every_path(lake, shapes, text, status, column):
    """Alone and behind good rows, in tables that Arrow reads and in those that it does not."""
    for table in shapes:
        for before in (0, 3):
            content = lines(*({"id": n} for n in range(before))) + text.encode() + b"\n"
            with asking(make_app(lake, linger_ms=0)) as client, nothing_written(table):
                answer = client.post(f"/ingest/{table.name}", content=content, headers=PLAIN)
            assert answer.status_code == status, answer.text
            told = answer.json()["error"]
            row = before + ("\n" in text and status == 400 and 0)
            assert (told["row"], told.get("column")) == (row, column), told
            assert not re.search(r"Decimal|JsonObject|\((str|int|list|dict|bool)\)|sys\.", told["message"])
            assert ("byte order mark" in told["message"]) is text.startswith("\ufeff")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=5)
    | st.sampled_from(["NaN", "-Infinity", "2024-01-01", "2024-01-01T00:00:00Z", "1.5", "\ud800", "[1]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "s", "z"]), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
JSON_ROWS = st.dictionaries(st.sampled_from([*SHAPES.names, "b", "m", "_op", "_seq", "?"]), JSON_VALUES, max_size=6)


def _texts(draw_rows, junk):
    told = [json.dumps({"id": n, **row}, ensure_ascii=True) for n, row in enumerate(draw_rows)]
    return "\n".join([*told, *junk]).encode("utf-8", "surrogatepass")


def _state(table):
    log = table.log.refresh()
    return log.head, table.schema, dict(log.snapshot.txns), rows_of(table.to_arrow())


LOOSE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@LOOSE
@given(
    st.lists(JSON_ROWS, max_size=3),
    st.lists(st.text(alphabet='{}[]",:0123456789eE+-.ntf \r\\u', max_size=8), max_size=1),
    st.booleans(),
    st.booleans(),
)
def test_no_lines_are_a_fault_of_the_server_and_refused_ones_leave_nothing(lake, shapes, rows, junk, is_chunk, is_hand):
    table = shapes[is_hand]
    headers = {**chunk_of([0, 0, 0, 0, 9, 0], first=True, sink=f"s{table.head}"), **PLAIN} if is_chunk else PLAIN
    if is_chunk:
        rows = [{**row_at(0, 1, n), **row} for n, row in enumerate(rows)]
    before = _state(table)
    with asking(make_app(lake, linger_ms=0)) as client:
        answer = client.post(f"/ingest/{table.name}", content=_texts(rows, junk), headers=headers)
    assert answer.status_code in (200, 400, 412, 413, 422), answer.text
    if answer.status_code != 200:
        assert _state(table) == before


@LOOSE
@given(st.lists(JSON_ROWS, min_size=1, max_size=4))
def test_arrow_reads_lines_as_they_are_read_by_hand(rows):
    data = _texts(rows, [])

    def read(is_plain):
        reader = ndjson._Reader(pa.schema([*SHAPES, ("_op", pa.string()), ("_seq", pa.int64())]), weight())
        reader._is_plain = is_plain
        try:
            return repr(reader.read(data).to_pylist())
        except (Refusal, sl.Invalid) as error:
            told = error.error if isinstance(error, Refusal) else error
            return type(error), told.message, told.fields

    assert read(True) == read(False)


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


# --- growth ----------------------------------------------------------------------------------------------------


def send(client, rows, *, at=1, first=True, kind=ARROW, schema=None):
    """Post a chunk with the rows of one seq."""
    placed = [{**row_at(0, at, n), **row} for n, row in enumerate(rows)]
    headers = {**chunk_of([0, 0, at, 0, at + 1, 0], first=first), "Content-Type": kind}
    if kind == NDJSON:
        content = lines(*placed)
    else:
        table = pa.Table.from_pylist(placed)
        for name, type_ in (schema or {}).items():
            table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(type_))
        content = arrow(table)
    return client.post("/ingest/items", content=content, headers=headers)


@pytest.fixture
def client(lake, items):
    with asking(make_app(lake, linger_ms=0)) as client:
        yield client


def test_a_chunk_that_is_refused_adds_no_columns(client, items):
    new = {f"c{n}": 1 for n in range(300)}
    with nothing_written(items):
        assert send(client, [{"id": 1, **new}], first=False).status_code == 409
        assert send(client, [{"id": 1, "qty": "x", **new}]).status_code == 422
        assert send(client, [{"id": None, **new}]).status_code == 422
        outside = arrow([{**row_at(0, 7, 0), "id": 1, **new}])
        assert client.post("/ingest/items", content=outside, headers=chunk_of([0, 0, 1, 0, 2, 0])).status_code == 400
        plain = client.post("/ingest/items", content=arrow([{"id": 1, **new}]), headers={"Content-Type": ARROW})
        assert plain.status_code == 422
    assert items.schema.names == ITEMS.names


def test_a_chunk_that_is_known_adds_no_columns(client, items):
    assert send(client, [{"id": 1}]).status_code == 200
    with nothing_written(items):
        assert send(client, [{"id": 1, "new": 1}]).json() == {"rows": 0, "skipped": 1, "seq": None}


def test_requests_grow_a_table_up_to_a_bound(lake, items):
    with asking(make_app(lake, table_columns=5, linger_ms=0)) as client:
        assert send(client, [{"id": 1, "a": 1, "b": 1}]).status_code == 200
        with nothing_written(items):
            answer = send(client, [{"id": 1, "a": 1, "c": 1}], at=2, first=False)
            assert (answer.status_code, answer.json()["error"]["column"]) == (412, "c")
            assert "--table-columns" in answer.json()["error"]["hint"]
        assert send(client, [{"id": 1, "a": 2, "qty": 1 << 40}], at=2, first=False).status_code == 200
    assert items.schema.names == ["id", "name", "qty", "a", "b"]


def test_a_name_that_was_dropped_stops_the_sender_and_loses_no_rows(client, items):
    items.evolve(pa.schema([("old", pa.int64())]))
    items.drop_column("old")
    with nothing_written(items):
        for kind in (ARROW, NDJSON):
            answer = send(client, [{"id": 1, "old": 1}], kind=kind)
            assert (answer.status_code, answer.json()["error"]["column"]) == (412, "old")
            assert answer.json()["error"]["hint"] == "Use another name."


WIDER = [
    (pa.int8(), pa.int16(), 300), (pa.int8(), pa.int64(), 1 << 40), (pa.int16(), pa.int32(), 70_000),
    (pa.int32(), pa.int64(), 1 << 40), (pa.float32(), pa.float64(), 0.1),
]  # fmt: skip


@pytest.mark.parametrize("kind", [ARROW, NDJSON])
@pytest.mark.parametrize(("narrow", "wide", "value"), WIDER)
def test_a_number_that_a_sender_widened_is_widened_here(lake, kind, narrow, wide, value):
    table = lake.create_table("items", pa.schema([("id", pa.int64()), ("n", narrow)]), key=["id"])
    table.upsert([{"id": 0, "n": 5}])
    with asking(make_app(lake, linger_ms=0)) as client:
        with nothing_written(table):
            assert send(client, [{"id": 1, "n": value}], first=False, kind=kind, schema={"n": wide}).status_code == 409
        assert send(client, [{"id": 1, "n": value}], kind=kind, schema={"n": wide}).status_code == 200
        assert send(client, [{"id": 2, "n": 5}], at=2, first=False, kind=kind, schema={"n": narrow}).status_code == 200
    assert table.schema.field("n").type == wide
    assert {row["id"]: row["n"] for row in table.to_arrow().to_pylist()} == {0: 5, 1: value, 2: 5}


@pytest.mark.parametrize("kind", [ARROW, NDJSON])
@pytest.mark.parametrize(("narrow", "wide", "value"), WIDER)
def test_a_receiver_that_does_not_evolve_cuts_nothing(lake, kind, narrow, wide, value):
    table = lake.create_table("items", pa.schema([("id", pa.int64()), ("n", narrow)]), key=["id"])
    with asking(make_app(lake, linger_ms=0, evolve=False)) as client:
        with nothing_written(table):
            answer = send(client, [{"id": 1, "n": value}], kind=kind, schema={"n": wide})
        assert (answer.status_code, answer.json()["error"]["column"]) == (412, "n")
        assert send(client, [{"id": 1, "n": 5}], kind=kind, schema={"n": wide}).status_code == 200


@pytest.mark.parametrize("kind", [ARROW, NDJSON])
def test_floats_inside_of_a_list_are_not_cut(lake, kind):
    table = lake.create_table("items", pa.schema([("id", pa.int64()), ("n", pa.list_(pa.float32()))]), key=["id"])
    with asking(make_app(lake, linger_ms=0)) as client:
        with nothing_written(table):
            answer = send(client, [{"id": 1, "n": [0.5, 0.1]}], kind=kind)
        assert (answer.status_code, answer.json()["error"]["column"]) == (412, "n")
        assert send(client, [{"id": 1, "n": [0.5, 1.5]}], kind=kind).status_code == 200
    assert table.to_arrow()["n"].to_pylist() == [[0.5, 1.5]]


def test_a_column_that_went_before_the_commit_is_asked_for_again(lake, client, items):
    """Between check and commit another process drops a column: its values are not left out in silence."""
    from strandline.server.commit import commit_posts
    from strandline.server.requests import posts_of

    body = decode(arrow([{"id": 1, "name": "a"}]), Form(True, False), weight())
    waiting = posts_of(body.rows(items.schema), items.definition)
    items.drop_column("name")
    with nothing_written(items):
        (found,) = commit_posts(items.log, waiting)
    assert isinstance(found, sl.Unavailable)


@pytest.mark.parametrize("form", ["arrow", "ndjson"])
def test_a_table_that_is_widened_where_it_is_sent_from_arrives_exactly(tmp_path, form):
    narrow = pa.schema([("id", pa.int64()), ("f", pa.float32()), ("n", pa.int32())])
    far, home = sl.Lake(tmp_path / "far"), sl.Lake(tmp_path / "home")
    there, here = (lake.create_table("items", narrow, key=["id"], vnodes=2) for lake in (far, home))
    with served(far.storage.uri) as server:
        home.sink("central", "items", to=sl.HttpSink(f"{server.url}/ingest/items", format=form))
        here.upsert([{"id": 1, "f": 0.1, "n": 7}])
        home.tick()
        here.evolve(pa.schema([("f", pa.float64()), ("n", pa.int64())]))
        here.upsert([{"id": 2, "f": 0.1, "n": 1 << 40}, {"id": 3, "f": 1e300, "n": -(1 << 40)}])
        report = home.tick()
        assert [(sink.error, sink.dead) for sink in report.sinks] == [(None, 0)]
    assert rows_of(there.to_arrow()) == rows_of(here.to_arrow())
    assert there.schema == here.schema
