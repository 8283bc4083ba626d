"""The receiver as a real process: what it acknowledged is there for everyone, whenever it is killed."""

import json
import signal
import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from receiving import ARROW, NDJSON, arrow, chunk_of, lines, row_at, served
from support import ITEMS, by_id, python

PLAIN = {"Content-Type": NDJSON}


@pytest.fixture(scope="module")
def hall(tmp_path_factory):
    """A lake and a server of it, for all tests that need nothing else."""
    lake = sl.Lake(tmp_path_factory.mktemp("hall") / "lake")
    lake.create_table("first", ITEMS)
    with served(lake.storage.uri) as server:
        yield lake, server


def new_table(lake, **options):
    return lake.create_table(f"t{uuid.uuid4().hex}", ITEMS, **{"key": ["id"], "vnodes": 4, **options})


COUNT = """
import json, sys
import strandline as sl
print(json.dumps(sorted(sl.Lake(sys.argv[1]).table(sys.argv[2]).to_arrow(columns=["id"])["id"].to_pylist())))
"""


def test_many_small_posts_share_few_commits_and_each_answer_is_readable_by_others(hall):
    lake, server = hall
    table = new_table(lake)
    seqs = {}

    def client(number):
        with httpx.Client(base_url=server.url, timeout=60) as own:
            for at in range(20):
                id = number * 100 + at
                answer = own.post(f"/ingest/{table.name}", content=lines({"id": id}), headers=PLAIN)
                assert answer.status_code == 200, answer.text
                seqs[id] = answer.json()["seq"]
                if at == number:
                    # What is answered is there, also for one who has not looked before.
                    assert id in by_id(sl.Lake(lake.storage.uri).table(table.name))

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(client, range(12)))
    assert len(seqs) == 240
    assert table.head <= 120
    changes = {row["id"]: row["_seq"] for row in table.changes().to_pylist()}
    assert changes == seqs
    ended = python(COUNT, lake.storage.uri, table.name)
    assert json.loads(ended.stdout) == sorted(seqs)


def test_one_of_two_posts_with_one_key_at_once_is_the_repeated_one(hall):
    lake, server = hall
    table = new_table(lake)
    for at in range(5):
        with ThreadPoolExecutor(4) as pool:
            headers = {**PLAIN, "Idempotency-Key": f"key {at}"}
            answers = [
                future.result().json()
                for future in [pool.submit(server.post, table.name, lines({"id": at}), headers) for _ in range(4)]
            ]
        assert sum(answer.get("repeated", False) for answer in answers) == 3
        assert len({answer["seq"] for answer in answers}) == 1
    assert table.changes()["id"].to_pylist() == list(range(5))


# --- a model ---------------------------------------------------------------------------------------------------

VNODES = 3


class Sender:
    """A sender's changes by vnode, and what a receiver should make of any chunk of them."""

    def __init__(self, changes):
        self.changes = changes
        self.at = {}
        self.rows = {}

    def post(self, vnodes, start, end, first):
        """The body's rows and what the answer should be: (status, rows, skipped)."""
        body = [change for vnode in vnodes for change in self.changes[vnode] if start <= (change[1], change[2]) < end]
        floors = {}
        for vnode in vnodes:
            known = self.at.get(vnode)
            if known is None and first:
                known = start
            if known is None or known < start:
                return body, (409, None, None)
            floors[vnode] = known
        new = [change for change in body if (change[1], change[2]) >= floors[change[0]]]
        for _, _, _, op, key, value in new:
            if op == "delete":
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
        for vnode in vnodes:
            self.at[vnode] = max(floors[vnode], end)
        return body, (200, len(new), len(body) - len(new))


places = st.tuples(st.integers(0, 4), st.integers(0, 3))


@st.composite
def changes(draw):
    found = {}
    for vnode in range(VNODES):
        found[vnode] = [
            (
                vnode,
                *place,
                draw(st.sampled_from(["upsert", "upsert", "delete"])),
                vnode * 10 + draw(st.integers(0, 2)),
                n,
            )
            for n, place in enumerate(sorted(draw(st.sets(places, max_size=8))))
        ]
    return found


requests = st.tuples(
    st.integers(0, VNODES - 1), st.integers(0, VNODES - 1), places, places, st.booleans(), st.booleans()
)


@settings(max_examples=25)
@given(changes(), st.lists(requests, min_size=1, max_size=8))
def test_chunks_in_any_cut_and_order_leave_what_a_dict_would_hold(hall, changes, requests):
    lake, server = hall
    table = new_table(lake)
    sender = Sender(changes)
    for one, other, here, there, first, is_repeated in requests:
        vnodes, (start, end) = range(min(one, other), max(one, other) + 1), sorted((here, there))
        for _ in range(1 + is_repeated):
            body, expected = sender.post(vnodes, start, end, first)
            rows = [row_at(v, s, i, op, id=k, name=None if op == "delete" else str(n)) for v, s, i, op, k, n in body]
            headers = chunk_of([vnodes[0], vnodes[-1], *start, *end], first=first)
            answer = server.post(table.name, arrow(rows), headers)
            told = answer.json()
            assert (answer.status_code, told.get("rows"), told.get("skipped")) == expected
    assert by_id(table) == {key: str(value) for key, value in sender.rows.items()}
    told = server.client.get(f"/ingest/{table.name}/positions", params={"sink": "s", "life": 1}).json()["positions"]
    held = {v: (seq, index) for first, last, seq, index in told for v in range(first, last + 1)}
    assert held == sender.at


@pytest.mark.parametrize("form", ["arrow", "ndjson"])
def test_a_lake_that_forwards_its_table_here_is_followed(hall, tmp_path, form):
    lake, server = hall
    here = new_table(lake)
    home = sl.Lake(tmp_path / "home")
    there = home.create_table("items", ITEMS, key=["id"], vnodes=8)
    home.sink("central", "items", to=sl.HttpSink(f"{server.url}/ingest/{here.name}", format=form, chunk_rows=70))
    for at in range(3):
        there.upsert([{"id": id, "name": f"{at}"} for id in range(at * 100, at * 100 + 200)])
        there.delete(list(range(at * 50, at * 50 + 30)))
        report = home.tick()
        assert [(sink.error, sink.dead) for sink in report.sinks] == [(None, 0)]
        assert by_id(here) == by_id(there)


@pytest.fixture(params=["arrow", "ndjson"])
def twins(hall, tmp_path, request):
    """A table, its copy in the lake of the server, and a call that ticks and compares them."""
    lake, server = hall
    copy = new_table(lake)
    home = sl.Lake(tmp_path / "home")
    table = home.create_table("items", ITEMS, key=["id"], vnodes=8)
    home.sink("central", "items", to=sl.HttpSink(f"{server.url}/ingest/{copy.name}", format=request.param))
    table.upsert([{"id": id, "name": f"{id}", "qty": id} for id in range(100)])
    assert home.tick().is_well
    return home, table, copy


def sorted_rows(table):
    return sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"])


def test_a_column_that_is_renamed_there_and_then_here_stays_one_column(twins):
    home, table, copy = twins
    copy.rename_column("name", "title")
    table.upsert([{"id": 5, "name": "corrected", "qty": 5}])
    table.rename_column("name", "title")
    table.upsert([{"id": 6, "title": "new", "qty": 6}])
    assert home.tick().is_well
    assert copy.schema.names == table.schema.names == ["id", "title", "qty"]
    assert sorted_rows(copy) == sorted_rows(table)


def test_a_tick_between_the_two_renames_still_finds_its_column(twins):
    home, table, copy = twins
    copy.rename_column("name", "title")
    copy.rename_column("qty", "amount")
    table.upsert([{"id": 5, "name": "corrected", "qty": 5}])
    table.delete([6])
    assert home.tick().is_well
    assert copy.schema.names == ["id", "title", "amount"]
    assert [list(row.values()) for row in sorted_rows(copy)] == [list(row.values()) for row in sorted_rows(table)]
    table.rename_column("name", "title")
    table.rename_column("qty", "amount")
    table.upsert([{"id": 7, "title": "new", "amount": 6}])
    assert home.tick().is_well
    assert sorted_rows(copy) == sorted_rows(table)


def test_a_column_that_is_renamed_here_alone_is_a_new_column_there(twins):
    home, table, copy = twins
    table.rename_column("name", "title")
    table.upsert([{"id": 5, "title": "corrected", "qty": 5}])
    if not home.tick().is_well:
        assert copy.schema.names == ["id", "name", "qty"], "JSON has no types, so no column is added"
        copy.add_column("title", "string")
        assert home.tick().is_well
    assert sorted_rows(copy)[4:6] == [
        {"id": 4, "name": "4", "qty": 4, "title": None},
        {"id": 5, "name": None, "qty": 5, "title": "corrected"},
    ]


# --- crashes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("point", "is_there"), [("receiver.queued", False), ("receiver.committed", True)])
def test_a_request_that_was_not_answered_counts_once_when_it_is_repeated(lake, items, point, is_there):
    posts = [
        (arrow([row_at(0, 1, 0, id=1), row_at(1, 1, 0, id=2)]), chunk_of([0, 1, 1, 0, 2, 0], first=True)),
        (lines({"id": 3}), {**PLAIN, "Idempotency-Key": "k"}),
    ]
    events = lake.create_table("events", ITEMS, vnodes=4)
    for content, headers in posts:
        before = events.head
        with served(lake.storage.uri, crash=point) as server:
            with pytest.raises(httpx.TransportError):
                server.post("events", content, headers)
            assert server.process.wait(10) == -signal.SIGKILL
        assert (events.head > before) is is_there
    with served(lake.storage.uri) as server:
        answers = [server.post("events", content, headers).json() for content, headers in posts]
        again = [server.post("events", content, headers).json() for content, headers in posts]
        positions = server.client.get("/ingest/events/positions", params={"sink": "s", "life": 1}).json()["positions"]
    assert sorted(events.to_arrow()["id"].to_pylist()) == [1, 2, 3]
    assert (answers[0]["rows"], answers[0]["skipped"]) == ((0, 2) if is_there else (2, 0))
    assert answers[1].get("repeated", False) is is_there
    assert [answer["seq"] for answer in again] == [None, answers[1]["seq"]]
    assert positions == [[0, 1, 2, 0]]


def test_two_servers_of_one_lake_that_get_the_same_chunks_apply_them_once(lake):
    events = lake.create_table("events", ITEMS, vnodes=4)
    with served(lake.storage.uri) as one, served(lake.storage.uri) as other:
        for seq in range(1, 9):
            rows = arrow([row_at(vnode, seq, 0, id=seq * 10 + vnode) for vnode in range(2)])
            headers = chunk_of([0, 1, seq, 0, seq + 1, 0], first=seq == 1)
            with ThreadPoolExecutor(4) as pool:
                sent = [pool.submit(server.post, "events", rows, headers) for server in (one, other, one, other)]
                answers = [future.result() for future in sent]
            assert {answer.status_code for answer in answers} == {200}
            assert sorted(answer.json()["rows"] for answer in answers) == [0, 0, 0, 2]
    assert sorted(events.to_arrow()["id"].to_pylist()) == [
        seq * 10 + vnode for seq in range(1, 9) for vnode in range(2)
    ]
    assert events.head == 8


# --- bounds ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    lake = sl.Lake(tmp_path_factory.mktemp("narrow") / "lake")
    lake.create_table("items", ITEMS, key=["id"])
    limits = {"body_bytes": 100_000, "queue_bytes": 500_000, "queue_requests": 3}
    with served(lake.storage.uri, **limits) as server:
        yield lake, server


class Slow:
    """A request that the server has begun to read, and whose body comes when it is told."""

    def __init__(self, url, body, headers=""):
        host, port = url.removeprefix("http://").split(":")
        self._body = body
        self._socket = socket.create_connection((host, int(port)))
        head = f"POST /ingest/items HTTP/1.1\r\nHost: {host}\r\nContent-Type: {NDJSON}\r\nExpect: 100-continue\r\n"
        head += headers
        self._socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        assert self._answer() == b"100"

    def _answer(self):
        return self._socket.recv(10_000).split(b" ")[1]

    def send(self, data):
        self._socket.sendall(data)

    def end(self):
        self.send(self._body)
        return self._answer()

    def close(self):
        self._socket.close()


def eighty_kb(first):
    return lines(*({"id": id_, "name": "x" * 8_000} for id_ in range(first, first + 10)))


def test_a_full_queue_is_429_until_there_is_room(narrow):
    lake, server = narrow
    slow, large = Slow(server.url, eighty_kb(10)), eighty_kb(20)
    answer = server.post("items", large, PLAIN)
    assert answer.status_code == 429
    assert answer.headers["Retry-After"] == "1"
    assert answer.json()["error"]["kind"] == "Unavailable"
    assert server.post("items", lines({"id": 3}), PLAIN).status_code == 200, "a small one has room"
    assert slow.end() == b"200"
    assert server.post("items", large, PLAIN).status_code == 200

    several = [Slow(server.url, lines({"id": 4})) for _ in range(3)]
    assert server.post("items", lines({"id": 5}), PLAIN).status_code == 429
    assert [each.end() for each in several] == [b"200"] * 3
    assert server.post("items", lines({"id": 5}), PLAIN).status_code == 200
    assert sorted(by_id(lake.table("items"))) == [3, 4, 5, *range(10, 30)]


def test_a_client_that_goes_away_leaves_its_room_to_others(narrow):
    _, server = narrow
    gone = [Slow(server.url, lines({"id": 6, "name": "x" * 70_000})) for _ in range(2)]
    large = eighty_kb(30)
    assert server.post("items", large, PLAIN).status_code == 429
    for each in gone:
        each.close()
    while server.post("items", large, PLAIN).status_code != 200:
        time.sleep(0.01)


def test_a_body_that_ends_too_soon_is_no_request_and_its_key_stays_unknown(narrow):
    """The sender was killed in the middle: what came looks like a whole body with fewer rows."""
    lake, server = narrow
    keyed, body = PLAIN | {"Idempotency-Key": "cut"}, lines({"id": 50}, {"id": 51})
    cut = Slow(server.url, body, "Idempotency-Key: cut\r\n")
    cut.send(lines({"id": 50}))
    cut.close()
    time.sleep(0.3)
    assert 50 not in by_id(lake.table("items"))
    assert server.post("items", body, keyed).json()["rows"] == 2
    assert {50, 51} <= set(by_id(lake.table("items")))


def test_a_body_that_is_too_long_is_413_however_it_comes(narrow):
    _, server = narrow
    assert server.post("items", b" " * 100_001, PLAIN).status_code == 413
    assert server.post("items", (b" " * 10_000 for _ in range(50)), PLAIN).status_code == 413
    assert server.post("items", lines({"id": 8}), PLAIN).status_code == 200, "the connection goes on"


def test_bodies_without_a_length_have_a_place_in_the_queue_too(narrow):
    _, server = narrow
    rows = [lines({"id": 20 + n, "name": "y" * 5_000}) for n in range(10)]
    assert server.post("items", iter(rows), PLAIN).json()["rows"] == 10
    table = pa.table({"id": range(30, 40), "name": ["z" * 5_000] * 10})
    assert server.post("items", arrow(table, compression=None), {"Content-Type": ARROW}).json()["rows"] == 10
