"""All that can be wrong with a request is found before it meets others, and is named."""

import json

import pyarrow as pa
import pytest

import receiving
from receiving import ARROW, NDJSON, arrow, error_of, lines, positions, post, row_at, send
from support import ITEMS, by_id, nothing_written

client = receiving.client


def test_each_vnode_of_a_chunk_has_its_own_position(client, items):
    send(client, [[0, 3, 1, 0, 4, 0]], [row_at(3, 3, 0, id=33)], first=True)
    send(client, [[1, 1, 4, 0, 5, 1]], [row_at(1, 4, 0, id=14), row_at(1, 5, 0, id=15)])
    rows = [row_at(0, 4, 0, id=4), row_at(1, 4, 0, id=14), row_at(1, 5, 0, id=15), row_at(1, 5, 1, id=16)]
    answer = send(client, [[0, 1, 4, 0, 6, 0], [3, 3, 2, 0, 3, 7]], [*rows, row_at(3, 3, 0, id=33)])
    assert answer.json() == {"rows": 2, "skipped": 3, "seq": 3}
    assert sorted(by_id(items)) == [4, 14, 15, 16, 33]
    assert positions(client) == [[0, 1, 6, 0], [2, 3, 4, 0]]
    assert positions(client, sink="q") == []


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
