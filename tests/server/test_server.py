"""The receiver's answers: what it takes, skips and refuses, and what is in the table after each."""

import gzip
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

import strandline as sl
from receiving import ARROW, NDJSON, arrow, asking, chunk_of, lines, row_at
from strandline.jobs.doctor import examine
from strandline.model.definition import TableDef
from strandline.server.app import make_app
from strandline.server.body import Form, decode
from strandline.server.commit import Outcome, commit_posts
from strandline.server.errors import answer
from strandline.server.idempotency import Key
from strandline.server.memory_cost import Weight
from strandline.server.queue import MemoryBudget
from strandline.server.requests import posts_of
from strandline.sinks.forward import encode as sent
from strandline.sinks.forward.message import ChunkHeader, pack
from strandline.sinks.forward.refusal import Refusal
from strandline.state.tokens import Tokens
from support import ITEMS, Oracle, by_id, nothing_written, refused

MIB = 1 << 20


@pytest.fixture
def client(lake, items):
    with asking(make_app(lake, linger_ms=0)) as client:
        yield client


def post(client, rows, table="items", **headers):
    content = rows if isinstance(rows, bytes) else arrow(rows)
    return client.post(f"/ingest/{table}", content=content, headers={"Content-Type": ARROW, **headers})


def send(client, ranges, rows, *, first=False, table="items"):
    """Post a chunk; `rows` are those of its body."""
    return client.post(f"/ingest/{table}", content=arrow(rows), headers=chunk_of(*ranges, first=first))


def positions(client, table="items", sink="s", life=1):
    return client.get(f"/ingest/{table}/positions", params={"sink": sink, "life": life}).json()["positions"]


def light(most=MIB):
    return Weight(most, 1_000_000, 4096)


def error_of(answer, status):
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


# --- chunks ----------------------------------------------------------------------------------------------------

SOME = [row_at(0, 5, 0, id=1, name="a"), row_at(0, 6, 0, id=2, name="b"), row_at(0, 6, 1, id=3, name="c")]


@pytest.mark.parametrize(
    ("known", "first", "rows", "skipped"),
    [
        (None, True, [1, 2, 3], 0),
        ((5, 0), False, [1, 2, 3], 0),
        ((5, 0), True, [1, 2, 3], 0),
        ((5, 1), False, [2, 3], 1),
        ((6, 1), False, [3], 2),
        ((6, 2), False, [], 3),
        ((7, 0), False, None, 3),
        ((9, 4), False, None, 3),
    ],
)
def test_a_chunk_is_applied_from_the_position_on(client, items, known, first, rows, skipped):
    if known is not None:
        assert send(client, [[0, 0, 0, 0, *known]], [], first=True).json() == {"rows": 0, "skipped": 0, "seq": 1}
    head = items.head
    answer = send(client, [[0, 0, 5, 0, 7, 0]], SOME, first=first)
    applied = {"rows": len(rows or []), "skipped": skipped, "seq": None if rows is None else head + 1}
    assert (answer.status_code, answer.json()) == (200, applied)
    assert sorted(by_id(items)) == (rows or [])
    assert positions(client) == [[0, 0, *max((7, 0), known or (0, 0))]]
    assert items.head == head + (rows is not None)


@pytest.mark.parametrize(("known", "first"), [(None, False), ((4, 9), False), ((4, 9), True)])
def test_a_gap_is_answered_with_the_positions_and_nothing_is_applied(client, items, known, first):
    if known is not None:
        send(client, [[0, 0, 0, 0, *known]], [], first=True)
    with nothing_written(items):
        error = error_of(send(client, [[0, 0, 5, 0, 7, 0]], SOME, first=first), 409)
    assert error["kind"] == "Conflict"
    assert error["positions"] == ([] if known is None else [[0, 0, *known]])


def test_a_gap_in_one_vnode_keeps_the_others_out(client, items):
    send(client, [[0, 3, 0, 0, 5, 0]], [], first=True)
    with nothing_written(items):
        rows = [row_at(1, 5, 0, id=1), row_at(2, 6, 0, id=2)]
        error = error_of(send(client, [[0, 1, 5, 0, 7, 0], [2, 2, 6, 0, 7, 0]], rows), 409)
    assert error["positions"] == [[0, 3, 5, 0]]


def test_each_vnode_of_a_chunk_has_its_own_position(client, items):
    send(client, [[0, 3, 1, 0, 4, 0]], [row_at(3, 3, 0, id=33)], first=True)
    send(client, [[1, 1, 4, 0, 5, 1]], [row_at(1, 4, 0, id=14), row_at(1, 5, 0, id=15)])
    rows = [row_at(0, 4, 0, id=4), row_at(1, 4, 0, id=14), row_at(1, 5, 0, id=15), row_at(1, 5, 1, id=16)]
    answer = send(client, [[0, 1, 4, 0, 6, 0], [3, 3, 2, 0, 3, 7]], [*rows, row_at(3, 3, 0, id=33)])
    assert answer.json() == {"rows": 2, "skipped": 3, "seq": 3}
    assert sorted(by_id(items)) == [4, 14, 15, 16, 33]
    assert positions(client) == [[0, 1, 6, 0], [2, 3, 4, 0]]
    assert positions(client, sink="q") == []


def test_rows_and_positions_land_in_one_commit(client, items):
    seq = send(client, [[0, 1, 5, 0, 7, 0]], SOME, first=True).json()["seq"]
    actions = items.log.delta.actions(seq)
    txns = {a["txn"]["appId"]: a["txn"]["version"] for a in actions if "txn" in a}
    assert txns == {"life/s": 1, "from/s/1/0": pack(7, 0), "from/s/1/1": pack(7, 0)}
    assert sum("add" in action for action in actions) == 1


def test_sinks_do_not_share_positions(client, items):
    send(client, [[0, 0, 5, 0, 7, 0]], SOME, first=True)
    other = client.post("/ingest/items", content=arrow(SOME), headers=chunk_of([0, 0, 5, 0, 7, 0], sink="q"))
    assert error_of(other, 409)["positions"] == []


def test_the_last_change_of_a_key_in_a_chunk_stands_whatever_it_is(client, items):
    items.upsert([{"id": 1, "name": "old"}, {"id": 2, "name": "old"}])
    rows = [
        row_at(0, 1, 0, id=1, name="a"), row_at(0, 2, 0, "delete", id=1), row_at(0, 3, 0, id=2, name="b"),
        row_at(0, 4, 0, "delete", id=3), row_at(0, 5, 0, id=3, name="c"), row_at(0, 6, 0, id=2, name="d"),
    ]  # fmt: skip
    assert send(client, [[0, 0, 1, 0, 7, 0]], rows, first=True).json()["rows"] == 6
    assert by_id(items) == {2: "d", 3: "c"}


def test_a_recreated_table_knows_no_positions(lake, client):
    send(client, [[0, 0, 5, 0, 7, 0]], SOME, first=True)
    lake.drop("items")
    assert error_of(send(client, [[0, 0, 7, 0, 8, 0]], []), 404)["kind"] == "NotFound"
    lake.create_table("items", ITEMS, key=["id"], vnodes=4)
    assert positions(client) == []
    assert error_of(send(client, [[0, 0, 7, 0, 8, 0]], []), 409)["positions"] == []


WRONG = [
    {"sink": "a b"}, {"sink": ""}, {"sink": "x" * 201}, {"sink": 7}, {"life": -1}, {"life": True}, {"life": "1"},
    {"life": 1 << 53}, {"is_first": 1},
    {"ranges": []}, {"ranges": [[0, 0, 0, 0, 1]]}, {"ranges": [[1, 0, 0, 0, 1, 0]]}, {"ranges": [[0, 0, 2, 0, 1, 9]]},
    {"ranges": [[0, 4096, 0, 0, 1, 0]]}, {"ranges": [[-1, 0, 0, 0, 1, 0]]}, {"ranges": [[0, 0, 0, 0, True, 0]]},
    {"ranges": [[0, 0, 0, 0, 1 << 32, 0]]}, {"ranges": [[0, 0, 0, 0, 1, 1 << 31]]}, {"ranges": [[0, 0, 0, 0, 1.0, 0]]},
    {"ranges": [[0, 2, 0, 0, 1, 0], [2, 3, 0, 0, 1, 0]]},
]  # fmt: skip
RIGHT = {"version": 1, "sink": "s", "life": 1, "is_first": True, "ranges": [[0, 0, 0, 0, 1, 0]]}


@pytest.mark.parametrize("header", ["", "[]", "{", "null", *(json.dumps({**RIGHT, **wrong}) for wrong in WRONG)])
def test_a_chunk_header_that_makes_no_sense_is_refused(client, items, header):
    with nothing_written(items):
        error_of(post(client, [], **{"Strandline-Chunk": header}), 400)


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_a_sender_of_another_version_waits_and_gives_no_rows_up(client, items, version):
    header = json.dumps({**RIGHT, "version": version})
    with nothing_written(items):
        assert error_of(post(client, [], **{"Strandline-Chunk": header}), 412)["kind"] == "Conflict"


@pytest.mark.parametrize(
    ("rows", "row", "column"),
    [
        ([row_at(0, 5, 0, id=1), row_at(1, 5, 0, id=2)], 1, "_vnode"),
        ([row_at(-1, 5, 0, id=1)], 0, "_vnode"),
        ([row_at(0, 4, 9, id=1)], 0, "_seq"),
        ([row_at(0, 5, 0, id=1), row_at(0, 7, 0, id=2)], 1, "_seq"),
        ([row_at(0, 5, 0, id=1), row_at(0, 5, 0, id=2)], 1, "_seq"),
        ([row_at(0, 6, 0, id=1), row_at(0, 5, 1, id=2)], 1, "_seq"),
        ([row_at(0, 5, 1 << 31, id=1)], 0, "_index"),
    ],
)
def test_rows_outside_of_their_chunk_are_refused(client, items, rows, row, column):
    with nothing_written(items):
        error = error_of(send(client, [[0, 0, 5, 0, 7, 0]], rows, first=True), 400)
    assert (error["row"], error["column"]) == (row, column)


# --- the columns of a sender -----------------------------------------------------------------------------------


def test_a_sender_adds_the_columns_that_its_table_gained(lake, client, items):
    rows = [row_at(0, 5, 0, id=1, name="a", score=1.5, tags=["x"])]
    assert send(client, [[0, 0, 5, 0, 6, 0]], rows, first=True).json()["rows"] == 1
    assert [items.schema.field(name) for name in ("score", "tags")] == [
        pa.field("score", pa.float64()),
        pa.field("tags", pa.list_(pa.string())),
    ]
    assert items.to_arrow().to_pylist() == [{"id": 1, "name": "a", "qty": None, "score": 1.5, "tags": ["x"]}]


def test_others_add_no_columns(client, items):
    with nothing_written(items):
        error = error_of(post(client, [{"id": 1, "score": 1.5}]), 422)
    assert (error["row"], error["column"]) == (0, "score")


def test_columns_that_cannot_be_are_refused_by_name(client, items):
    with nothing_written(items):
        for name, value, status in (("qty", "many", 422), ("a b", 1, 412), ("_hash", 1, 412)):
            rows = [row_at(0, 5, 0, id=1, **{name: value})]
            error = error_of(send(client, [[0, 0, 5, 0, 6, 0]], rows, first=True), status)
            assert error["column"] == name
            assert "evolve" not in error.get("hint", ""), "that cannot add it"


def test_a_receiver_may_be_told_not_to_evolve(lake, items):
    with asking(make_app(lake, evolve=False)) as client, nothing_written(items):
        rows = [row_at(0, 5, 0, id=1, score=1.5)]
        assert error_of(send(client, [[0, 0, 5, 0, 6, 0]], rows, first=True), 412)["column"] == "score"


def test_rows_that_were_taken_are_not_judged_again(client, items):
    rows = [row_at(0, 5, 0, id=1, score=1.5)]
    send(client, [[0, 0, 5, 0, 6, 0]], rows, first=True)
    items.drop_column("score")
    assert send(client, [[0, 0, 5, 0, 6, 0]], rows, first=True).json() == {"rows": 0, "skipped": 1, "seq": None}


# --- other clients ---------------------------------------------------------------------------------------------


def test_anyone_may_post_upserts_and_deletes(client, items):
    assert post(client, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]).json() == {"rows": 2, "skipped": 0, "seq": 1}
    more = lines(
        {"id": 1, "_op": "delete", "name": "not kept"}, {"id": 3, "name": "c"}, {"id": 2, "name": "d", "_seq": 9}
    )
    assert post(client, more, **{"Content-Type": NDJSON}).json()["rows"] == 3
    assert by_id(items) == {2: "d", 3: "c"}
    deleted = [row for row in items.changes().to_pylist() if row["_op"] == "delete"]
    assert [(row["id"], row["name"]) for row in deleted] == [(1, None)]


def test_a_body_without_rows_does_nothing(client, items):
    with nothing_written(items):
        for content, kind in (
            (arrow(pa.table({"id": pa.array([], pa.int64())})), ARROW),
            (b"", NDJSON),
            (b"\n \n", NDJSON),
        ):
            answer = post(client, content, **{"Content-Type": kind, "Idempotency-Key": "k"})
            assert answer.json() == {"rows": 0, "skipped": 0, "seq": None}


def test_a_table_without_a_key_takes_rows_in_their_order_and_no_deletes(lake, client):
    events = lake.create_table("events", ITEMS, vnodes=4)
    assert post(client, [{"id": n, "name": "x"} for n in (3, 1, 3)], "events").json()["rows"] == 3
    assert events.changes()["id"].to_pylist() == [3, 1, 3]
    with nothing_written(events):
        error = error_of(post(client, [{"id": 1}, {"id": 2, "_op": "delete"}], "events"), 422)
    assert (error["row"], error["column"]) == (1, "_op")


def test_a_repeated_key_is_answered_with_the_first_commit(client, items):
    first = post(client, [{"id": 1, "name": "a"}], **{"Idempotency-Key": "k"}).json()
    items.upsert([{"id": 1, "name": "newer"}])
    again = post(client, [{"id": 1, "name": "a"}], **{"Idempotency-Key": "k"}).json()
    assert again == {**first, "repeated": True}
    assert by_id(items) == {1: "newer"}
    assert post(client, [{"id": 1, "name": "b"}], **{"Idempotency-Key": "l"}).json()["seq"] == 3


def test_a_key_with_another_body_is_refused_and_says_where_the_first_one_is(lake, items):
    rows = lines({"id": 1, "name": "a"})
    others = [
        (lines({"id": 2, "name": "b"}), {}),
        (rows + b"\n", {}),
        (gzip.compress(rows), {"Content-Encoding": "gzip"}),
        (arrow([{"id": 1, "name": "a"}]), {"Content-Type": ARROW}),
        (b"", {}),
        (b"no JSON", {}),
    ]
    for _ in range(2):
        with asking(make_app(lake)) as client:  # what a key stands for is in the log, not in the process
            told = {"Content-Type": NDJSON, "Idempotency-Key": "k"}
            post(client, rows, **told)
            with nothing_written(items):
                for content, headers in others:
                    error = error_of(post(client, content, **{**told, **headers}), 422)
                    assert (error["kind"], error["seq"]) == ("Invalid", 1)
                assert post(client, rows, **told).json() == {"rows": 1, "skipped": 0, "seq": 1, "repeated": True}
    assert by_id(items) == {1: "a"}


def test_a_key_that_was_refused_or_brought_nothing_stands_for_no_body(client, items):
    told = {"Content-Type": NDJSON, "Idempotency-Key": "k"}
    error_of(post(client, lines({"id": "x"}), **told), 422)
    error_of(post(client, b"no JSON", **told), 400)
    assert post(client, b"", **told).json()["rows"] == 0
    assert post(client, lines({"id": 1}), **told).json()["seq"] == 1


@pytest.mark.parametrize("has_length", [True, False])
def test_what_was_done_is_answered_so_by_a_server_that_would_refuse_it_now(lake, items, has_length):
    """Smaller limits, and a table that has become another one."""
    keyed = lines(*({"id": n, "name": "x" * 50} for n in range(100)))
    placed = arrow([row_at(0, 1, n, id=n, name=f"{n}" * 50) for n in range(100)], compression=None)
    sent = [
        (keyed, {"Content-Type": NDJSON, "Idempotency-Key": "k"}),
        (placed, chunk_of((0, 0, 1, 0, 2, 0), first=True)),
    ]

    async def in_pieces(content):
        for at in range(0, len(content), 500):
            yield content[at : at + 500]

    def told(content):
        return content if has_length else in_pieces(content)

    with asking(make_app(lake)) as client:
        done = [client.post("/ingest/items", content=told(c), headers=headers).json() for c, headers in sent]
    items.drop_column("name")
    for limits, is_counted in (({}, True), ({"body_bytes": 1000, "queue_bytes": 1000}, False)):
        with asking(make_app(lake, **limits)) as client, nothing_written(items):
            again = [client.post("/ingest/items", content=told(c), headers=headers).json() for c, headers in sent]
            count = 100 if is_counted else None
            assert again == [{**done[0], "rows": count, "repeated": True}, {"rows": 0, "skipped": count, "seq": None}]
            other = client.post("/ingest/items", content=told(keyed + b"\n"), headers=sent[0][1])
            assert error_of(other, 422)["seq"] == 1
            if not is_counted:
                new = {**sent[0][1], "Idempotency-Key": "l"}
                error_of(client.post("/ingest/items", content=told(keyed), headers=new), 413)


@pytest.mark.parametrize("key", ["", "x" * 257])
def test_a_key_has_a_length(client, items, key):
    error_of(post(client, [{"id": 1}], **{"Idempotency-Key": key}), 400)


EVERY = pa.schema(
    [
        ("id", pa.int64()), ("i", pa.int16()), ("d", pa.float64()), ("f", pa.float32()), ("t", pa.string()),
        ("b", pa.binary()), ("y", pa.bool_()), ("day", pa.date32()), ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")), ("cash", pa.decimal128(12, 3)), ("doc", pa.json_()),
        ("list", pa.list_(pa.timestamp("us", tz="UTC"))), ("blobs", pa.list_(pa.binary())),
        ("rec", pa.struct([("x", pa.float64()), ("b", pa.binary()), ("day", pa.date32())])),
        ("map", pa.map_(pa.string(), pa.float64())), ("ranks", pa.map_(pa.int32(), pa.date32())),
    ]
)  # fmt: skip


@pytest.mark.parametrize("form", [sent.ARROW, sent.NDJSON])
def test_every_type_arrives_as_the_sender_says_it(lake, client, form):
    table = lake.create_table("every", EVERY, key=["id"])
    moment = np.datetime64("2024-02-29T12:30:00.000001")
    columns = {
        "id": [1, 2, 3], "i": [-1, None, 7], "d": [0.1, float("nan"), float("-inf")], "f": [1.5, None, 2.0],
        "t": ["NaN", 'quote " \n', None], "b": [b"\x00\xff", b"", None], "y": [True, False, None],
        "day": [moment.astype("M8[D]").item(), None, None], "at": [moment.item(), None, None],
        "local": [moment.item(), None, None], "cash": ["12.345", "-0.001", None],
        "doc": ['{"a": [1, "NaN"]}', "null", None],
        "list": [[moment.item(), None], [], None], "blobs": [[b"a", None], [], None],
        "rec": [{"x": float("inf"), "b": b"z", "day": None}, {"x": None, "b": None, "day": None}, None],
        "map": [[("k", float("nan"))], [], None], "ranks": [[(5, moment.astype("M8[D]").item())], [], None],
    }  # fmt: skip
    arrays = [
        pa.array(columns[f.name], pa.string()).cast(f.type) if f.name == "cash" else pa.array(columns[f.name], f.type)
        for f in EVERY
    ]
    rows = pa.RecordBatch.from_arrays(arrays, schema=EVERY)
    content, headers = sent.encode(rows, form)
    answer = post(client, content, "every", **headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["rows"] == 3
    found = table.to_arrow().sort_by("id")
    assert repr(found.to_pylist()) == repr(pa.Table.from_batches([rows]).to_pylist())


# --- what is wrong with a request ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "kind", "status", "row", "column"),
    [
        (lines({"id": 1}, {"id": 2, "qty": "many"}), NDJSON, 422, 1, "qty"),
        (b'\n{"id": 1}\n\n{"id": 2, "qty": 1.5}\n', NDJSON, 422, 1, "qty"),
        (lines({"id": 1}, {"name": "no key"}), NDJSON, 422, 1, "id"),
        (lines({"id": 1}, {"id": 2, "other": 1}), NDJSON, 422, 1, "other"),
        (lines({"id": 1}, {"id": 2, "_op": "insert"}), NDJSON, 422, 1, "_op"),
        (lines({"id": 1}, {"id": 2, "qty": 1 << 40}), NDJSON, 422, 1, "qty"),
        (b'{"id": 1}\n{"id": 2', NDJSON, 400, 1, None),
        (b'{"id": 1}\n[2]\n', NDJSON, 400, 1, None),
        (b'{"id": 1}\nnull\n', NDJSON, 400, 1, None),
        (b'{"id": 1, "name": "\xff"}\n', NDJSON, 400, 0, None),
        (arrow([{"id": 1}, {"id": None}]), ARROW, 422, 1, "id"),
        (arrow([{"id": 1, "qty": 1}, {"id": 1, "qty": 1 << 40}]), ARROW, 422, 1, "qty"),
        (arrow([{"id": 1, "name": 5}]), ARROW, 422, 0, "name"),
        (arrow([{"id": 1, "_op": "upsert"}, {"id": 2, "_op": "withheld"}]), ARROW, 422, 1, "_op"),
        (b"", ARROW, 400, None, None),
        (b"no arrow at all", ARROW, 400, None, None),
        (arrow([{"id": 1}])[:-40], ARROW, 400, None, None),
        (b"id,name\n1,a\n", "text/csv", 415, None, None),
        (b"[]", "application/json", 415, None, None),
        (b"", "", 415, None, None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_and_nothing_is_written(client, items, content, kind, status, row, column):
    with nothing_written(items):
        error = error_of(post(client, content, **{"Content-Type": kind}), status)
    assert error["kind"] == "Invalid"
    assert (error.get("row"), error.get("column")) == (row, column)


def test_a_required_value_is_asked_of_upserts_only(lake, client):
    columns = pa.schema([("id", pa.int64()), pa.field("name", pa.string(), False)])
    table = lake.create_table("named", columns, key=["id"])
    assert post(client, [{"id": 1, "name": "a"}, {"id": 2, "_op": "delete"}], "named").json()["rows"] == 2
    with nothing_written(table):
        rows = [{"id": 1, "_op": "delete"}, {"id": 2, "_op": "upsert"}]
        error = error_of(post(client, rows, "named"), 422)
    assert (error["row"], error["column"]) == (1, "name")


def test_encodings_other_than_gzip_are_not_taken(client, items):
    good = gzip.compress(lines({"id": 1}))
    headers = {"Content-Type": NDJSON, "Content-Encoding": "gzip"}
    assert post(client, good, **headers).json()["rows"] == 1
    assert post(client, good + gzip.compress(lines({"id": 2})), **headers).json()["rows"] == 2
    error_of(post(client, good, **{**headers, "Content-Encoding": "br"}), 415)
    for wrong in (good[:-9], b"plain", good + b"rest"):
        error_of(post(client, wrong, **headers), 400)


@pytest.mark.parametrize("path", ["/ingest/nothing", "/ingest/no-name", "/ingest/items/more", "/"])
def test_unknown_tables_and_routes_are_not_found(client, path):
    error = error_of(client.post(path, content=lines({"id": 1}), headers={"Content-Type": NDJSON}), 404)
    assert error["kind"] == "NotFound"


def test_positions_are_asked_for_a_life_of_a_sink(client):
    assert error_of(client.get("/ingest/items/positions"), 400)["kind"] == "Invalid"
    error_of(client.get("/ingest/items/positions", params={"sink": "a b", "life": 1}), 400)
    error_of(client.get("/ingest/nothing/positions", params={"sink": "s", "life": 1}), 404)


@pytest.mark.parametrize(
    ("error", "status", "kind", "waits"),
    [
        (sl.Unavailable("x"), 503, "Unavailable", True),
        (OSError(28, "No space left"), 503, "Unavailable", True),
        (sl.Conflict("x"), 409, "Conflict", False),
        (sl.Invalid("x"), 422, "Invalid", False),
        (sl.NotFound("x"), 404, "NotFound", False),
        (sl.NotRetained("x"), 410, "NotRetained", False),
        (sl.Corrupt("x"), 500, "Corrupt", False),
        (sl.Internal("x"), 500, "Internal", False),
        (ValueError("a secret"), 500, "Internal", False),
    ],
)
def test_each_kind_of_error_has_its_status(error, status, kind, waits):
    told = answer(error)
    assert (told.status_code, json.loads(told.body)["error"]["kind"]) == (status, kind)
    assert ("Retry-After" in told.headers) is waits
    assert b"a secret" not in told.body


def test_the_doctor_finds_nothing_wrong_with_what_was_received(lake, client, items):
    for seq in range(1, 60):
        send(client, [[0, 1, seq, 0, seq + 1, 0]], [row_at(0, seq, 0, id=seq)], first=seq == 1)
        post(client, [{"id": -seq}], **{"Idempotency-Key": f"k{seq}"})
    assert examine(lake.storage, deep=True).is_sound
    assert sl.Lake(lake.storage.uri).table("items").log.refresh().snapshot.txns == items.log.refresh().snapshot.txns


def test_status_is_the_status_of_the_lake(lake, client, items):
    post(client, [{"id": 1}])
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/status").json() == json.loads(json.dumps(lake.status().to_dict()))


# --- bounds ----------------------------------------------------------------------------------------------------


def test_a_body_above_the_limit_is_refused_before_it_is_there(lake, items):
    taken = 0

    async def endless():
        nonlocal taken
        while taken < 100:
            taken += 1
            yield b" " * MIB

    with asking(make_app(lake, body_bytes=MIB)) as client, nothing_written(items):
        error = error_of(post(client, lines({"id": 1, "name": "x" * MIB}), **{"Content-Type": NDJSON}), 413)
        assert error["limit"] == MIB
        answer = client.post("/ingest/items", content=endless(), headers={"Content-Type": NDJSON})
        error_of(answer, 413)


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
            posts_of(decode(bytes(data), Form(True, False), light()).rows(columns.schema), columns)
        except (Refusal, sl.Invalid) as error:
            assert not isinstance(error, Refusal) or error.status in (400, 413)


def test_a_full_budget_refuses_what_is_new_and_takes_it_later():
    budget = MemoryBudget(100, 2)
    with budget.claim(60) as first:
        for size, status in ((41, 429), (100, 429), (101, 413)):
            with pytest.raises(Refusal) as caught:
                budget.claim(size)
            assert caught.value.status == status
        with budget.claim(40) as second:
            with pytest.raises(Refusal):
                budget.claim(0)
            with pytest.raises(Refusal):
                second.hold(41)
            first.hold(10)
            second.hold(90)
    assert (budget.bytes, budget.requests) == (0, 0)
    with budget.claim(0) as alone:
        alone.hold(100)
        with pytest.raises(Refusal) as caught:
            alone.hold(101)  # not even the only one may pass the whole budget
        assert (caught.value.status, budget.bytes) == (413, 100)


@pytest.mark.parametrize("wrong", [{"body_bytes": 0}, {"queue_bytes": 1}, {"commit_rows": 0}, {"linger_ms": -1}])
def test_limits_that_make_no_sense_are_refused(lake, wrong):
    with refused(setting=next(iter(wrong))):
        make_app(lake, **wrong)


# --- one commit for many ---------------------------------------------------------------------------------------


def posts(table, rows, *, key=None, chunk=None):
    body = decode(arrow(rows), Form(True, False), light())
    return posts_of(
        body.rows(table.schema), table.definition, chunk=chunk, key=None if key is None else Key(key, len(rows))
    )


def test_a_group_is_one_commit_in_the_order_of_arrival(items):
    group = [
        *posts(items, [{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]),
        *posts(items, [{"id": 1, "_op": "delete"}, {"id": 3, "_op": "delete"}]),
        *posts(items, [{"id": 3, "name": "c"}, {"id": 2, "name": "c"}]),
    ]
    assert commit_posts(items.log, group) == [Outcome(2, seq=1), Outcome(2, seq=1), Outcome(2, seq=1)]
    assert items.head == 1
    assert by_id(items) == {2: "c", 3: "c"}


def test_one_key_twice_in_a_group_counts_once_and_both_are_answered(items):
    group = [*posts(items, [{"id": 1}], key="k"), *posts(items, [{"id": 2}]), *posts(items, [{"id": 1}], key="k")]
    assert commit_posts(items.log, group) == [
        Outcome(1, seq=1),
        Outcome(1, seq=1),
        Outcome(1, seq=1, is_repeated=True),
    ]
    assert items.history()[-1].rows == 2


def test_one_key_with_two_bodies_in_a_group_takes_the_first_and_refuses_the_other(items):
    group = [
        *posts(items, [{"id": 1}], key="k"),
        *posts(items, [{"id": 8}, {"id": 9}], key="k"),
        *posts(items, [{"id": 2}]),
    ]
    first, other, third = commit_posts(items.log, group)
    assert (first, third) == (Outcome(1, seq=1), Outcome(1, seq=1))
    assert isinstance(other, sl.Invalid)
    assert sorted(by_id(items)) == [1, 2]
    later = [*posts(items, [{"id": 8}, {"id": 9}], key="k"), *posts(items, [{"id": 1}], key="k")]
    with nothing_written(items):
        other, again = commit_posts(items.log, later)
    assert isinstance(other, sl.Invalid) and other.fields["seq"] == 1
    assert again == Outcome(1, seq=1, is_repeated=True)


def test_chunks_of_a_group_see_those_before_them_and_a_gap_harms_no_other(items):
    def chunk(start, end, first=False):
        return ChunkHeader.parse(
            json.dumps({"version": 1, "sink": "s", "life": 1, "is_first": first, "ranges": [[0, 0, *start, *end]]})
        )

    group = [
        *posts(items, [row_at(0, 1, 0, id=1)], chunk=chunk((1, 0), (2, 0), True)),
        *posts(items, [row_at(0, 3, 0, id=3)], chunk=chunk((3, 0), (4, 0))),
        *posts(items, [row_at(0, 1, 0, id=1), row_at(0, 2, 0, id=2)], chunk=chunk((1, 0), (3, 0))),
        *posts(items, [row_at(0, 1, 0, id=1)], chunk=chunk((1, 0), (2, 0), True)),
    ]
    first, gap, second, repeated = commit_posts(items.log, group)
    assert (first, second, repeated) == (Outcome(1, seq=1), Outcome(1, 1, seq=1), Outcome(0, 1))
    assert isinstance(gap, sl.Conflict)
    assert gap.fields["positions"] == [[0, 0, 2, 0]]
    assert sorted(by_id(items)) == [1, 2]


def test_rows_checked_before_a_column_was_added_share_a_commit_with_later_ones(items):
    early = posts(items, [{"id": 1, "name": "a"}])
    items.evolve(pa.schema([("score", pa.float64()), ("qty", pa.int64())]))
    late = posts(items, [{"id": 2, "name": "b", "score": 1.0, "qty": 1 << 40}])
    assert commit_posts(items.log, [*early, *late]) == [Outcome(1, seq=2), Outcome(1, seq=2)]
    found = sorted(items.to_arrow(columns=["id", "score"]).to_pylist(), key=lambda row: row["id"])
    assert found == [{"id": 1, "score": None}, {"id": 2, "score": 1.0}]


def test_a_dropped_table_takes_nothing_more(lake, items):
    waiting = posts(items, [{"id": 1}])
    lake.drop("items")
    with refused(sl.NotFound):
        commit_posts(items.log, waiting)


def test_handles_that_race_with_one_chunk_apply_it_once(lake, items):
    """Each has a view of the log of its own, as processes have."""
    tables = [sl.Lake(lake.storage.uri).table("items") for _ in range(4)]
    for seq in range(1, 6):
        facts = {"version": 1, "sink": "s", "life": 1, "is_first": seq == 1, "ranges": [[0, 1, seq, 0, seq + 1, 0]]}
        chunk = ChunkHeader.parse(json.dumps(facts))
        rows = [row_at(0, seq, 0, id=seq), row_at(1, seq, 0, id=-seq)]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda t, c=chunk, r=rows: commit_posts(t.log, posts(t, r, chunk=c))[0], tables))
        assert sorted((outcome.rows, outcome.skipped) for outcome in found) == [(0, 2)] * 3 + [(2, 0)]
    assert items.head == 5
    assert [entry.rows for entry in items.history()[1:]] == [2] * 5


# --- versions --------------------------------------------------------------------------------------------------

VERSIONED = pa.schema([("id", pa.int64()), ("name", pa.string()), ("v", pa.int64())])


def test_with_versions_a_chunk_says_in_several_commits_what_one_cannot(lake, client):
    table = lake.create_table("versioned", VERSIONED, key=["id"], version="v")
    oracle = Oracle(["id"], "v")
    dice = random.Random(3)
    first = True
    for start in range(1, 60, 10):
        rows = []
        for seq in range(start, start + 10):
            row = {"id": dice.randint(1, 3), "name": str(seq), "v": dice.randint(1, 9)}
            if dice.random() < 0.4:
                oracle.delete([row])
                rows.append(row_at(0, seq, 0, "delete", id=row["id"], name=None, v=None))
            else:
                oracle.upsert([row])
                rows.append(row_at(0, seq, 0, **row))
        answer = send(client, [[0, 0, start, 0, start + 10, 0]], rows, first=first, table="versioned")
        assert answer.json()["rows"] == 10
        assert answer.json()["seq"] == table.head
        first = False
    assert by_id(table) == {row["id"]: row["name"] for row in oracle.copy()}
    assert table.head > 6
    assert positions(client, "versioned") == [[0, 0, 61, 0]]


def test_no_part_of_a_chunk_with_versions_is_applied_without_those_before_it(lake):
    table = lake.create_table("versioned", VERSIONED, key=["id"], version="v")
    rows = [
        row_at(0, 1, 0, id=1, v=5), row_at(0, 2, 0, "delete", id=1), row_at(0, 3, 0, id=1, v=1),
        row_at(1, 1, 0, "delete", id=1), row_at(1, 2, 0, id=1, v=2),
    ]  # fmt: skip
    facts = {"version": 1, "sink": "s", "life": 1, "is_first": True, "ranges": [[0, 2, 1, 0, 9, 0]]}
    parts = posts(table, rows, chunk=ChunkHeader.parse(json.dumps(facts)))
    assert [part.rows.num_rows for part in parts] == [2, 2, 1]
    assert [part.chunk.is_first for part in parts] == [True, False, False]
    for late in parts[1:]:
        assert isinstance(commit_posts(table.log, [late])[0], sl.Conflict)
    assert [commit_posts(table.log, [part])[0].rows for part in parts] == [2, 2, 1]
    assert [row["v"] for row in table.to_arrow().to_pylist()] == [2]


def test_a_chunk_without_rows_moves_the_positions_of_a_table_with_versions(lake, client):
    lake.create_table("versioned", VERSIONED, key=["id"], version="v")
    answer = send(client, [[0, 3, 1, 0, 9, 0]], [], first=True, table="versioned")
    assert answer.json() == {"rows": 0, "skipped": 0, "seq": 1}
    assert positions(client, "versioned") == [[0, 3, 9, 0]]


def test_with_versions_a_group_ends_before_an_upsert_of_a_deleted_key(lake):
    table = lake.create_table("versioned", VERSIONED, key=["id"], version="v")
    table.upsert([{"id": 1, "name": "high", "v": 9}])
    group = [
        *posts(table, [{"id": 1, "_op": "delete"}]),
        *posts(table, [{"id": 2, "name": "other", "v": 1}]),
        *posts(table, [{"id": 1, "name": "low", "v": 1}]),
        *posts(table, [{"id": 1, "_op": "delete"}]),
    ]
    assert commit_posts(table.log, group) == [Outcome(1, seq=2), Outcome(1, seq=2)]
    assert commit_posts(table.log, group[2:]) == [Outcome(1, seq=3), Outcome(1, seq=3)]
    assert by_id(table) == {2: "other"}


def test_with_versions_one_request_cannot_revive_what_it_deletes(lake, client):
    table = lake.create_table("versioned", VERSIONED, key=["id"], version="v")
    rows = [{"id": 1, "v": 3}, {"id": 1, "_op": "delete"}, {"id": 2, "v": 1}, {"id": 1, "v": 1}]
    with nothing_written(table):
        assert error_of(post(client, rows, "versioned"), 422)["row"] == 3
    assert post(client, rows[:3], "versioned").json()["rows"] == 3
    assert sorted(by_id(table)) == [2]


# --- who may do what -------------------------------------------------------------------------------------------


@pytest.fixture
def tokens(lake, items):
    return Tokens(lake.state.database)


ASKED = [
    ("POST", "/ingest/items", {"writer", "admin"}),
    ("GET", "/ingest/items/positions?sink=s&life=1", {"writer", "reader", "admin"}),
    ("GET", "/status", {"reader", "admin"}),
    ("GET", "/healthz", {"reader", "writer", "admin", None, "unknown"}),
]


@pytest.mark.parametrize(("method", "path", "allowed"), ASKED)
def test_each_route_has_its_roles(lake, tokens, method, path, allowed):
    secrets = {role: tokens.add(f"a-{role}", role) for role in ("reader", "writer", "admin")}
    with asking(make_app(lake, tokens=tokens)) as client:
        for role in ("reader", "writer", "admin", None, "unknown"):
            headers = {"Content-Type": NDJSON}
            if role is not None:
                headers["Authorization"] = f"Bearer {secrets.get(role, 'sl_unknown')}"
            answer = client.request(method, path, content=lines({"id": 1}), headers=headers)
            expected = 200 if role in allowed else 403 if role in secrets else 401
            assert answer.status_code == expected, (role, answer.text)
            assert ("WWW-Authenticate" in answer.headers) == (expected == 401)


def test_without_tokens_this_machine_is_trusted_until_there_is_one(lake, tokens, monkeypatch):
    monkeypatch.setattr("strandline.server.auth._FRESH_S", 0.0)
    with asking(make_app(lake, tokens=tokens)) as client:
        assert client.get("/status").status_code == 200
        secret = tokens.add("dash", "reader")
        assert client.get("/status").status_code == 401
        for scheme in ("Bearer", "bearer"):
            assert client.get("/status", headers={"Authorization": f"{scheme} {secret}"}).status_code == 200
        for wrong in (secret, f"Basic {secret}", "Bearer", "Bearer  "):
            assert client.get("/status", headers={"Authorization": wrong}).status_code == 401


def test_a_public_server_trusts_nobody_when_the_last_token_is_revoked(lake, tokens, monkeypatch):
    monkeypatch.setattr("strandline.server.auth._FRESH_S", 0.0)
    secret = tokens.add("dash", "reader")
    with asking(make_app(lake, tokens=tokens, is_public=True)) as client:
        assert client.get("/status", headers={"Authorization": f"Bearer {secret}"}).status_code == 200
        tokens.revoke("dash")
        assert client.get("/status", headers={"Authorization": f"Bearer {secret}"}).status_code == 401
        assert client.get("/status").status_code == 401


def test_a_wrong_token_is_refused_before_the_body_is_looked_at(lake, tokens):
    tokens.add("dash", "reader")
    with asking(make_app(lake, tokens=tokens)) as client:
        assert client.post("/ingest/nothing", content=b"x", headers={"Content-Type": "text/csv"}).status_code == 401


def test_a_status_that_takes_long_keeps_nobody_waiting(lake, items, monkeypatch):
    status = lake.status
    monkeypatch.setattr(lake, "status", lambda: (time.sleep(0.5), status())[1])
    with asking(make_app(lake)) as client, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(client.get, "/status")
        time.sleep(0.1)
        assert client.get("/healthz").status_code == 200
        assert not slow.done()
        assert slow.result().status_code == 200
