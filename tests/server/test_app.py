"""The receiver's answers: what it takes, skips and refuses, and what is in the table after each."""

import gzip
import json
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

import receiving
import strandline as sl
from receiving import MIB, NDJSON, arrow, asking, chunk_of, error_of, lines, positions, post, row_at, send
from strandline.jobs.doctor import examine
from strandline.server.app import make_app
from strandline.sinks.forward import encode as sent
from strandline.sinks.forward.message import pack
from strandline.state.tokens import Tokens
from support import ITEMS, by_id, nothing_written, refused

client = receiving.client


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


# --- the columns of a sender -----------------------------------------------------------------------------------


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
        "doc": ['{"a": [1, "NaN"]}', '"null"', None],
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


@pytest.mark.parametrize("wrong", [{"body_bytes": 0}, {"queue_bytes": 1}, {"commit_rows": 0}, {"linger_ms": -1}])
def test_limits_that_make_no_sense_are_refused(lake, wrong):
    with refused(setting=next(iter(wrong))):
        make_app(lake, **wrong)


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
