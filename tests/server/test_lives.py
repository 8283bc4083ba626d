"""A sink that starts again is a new life: nothing that an older one sent arrives after the newer one has begun."""

import contextlib
import shutil
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import strandline as sl
from positions_receiver import positions_receiver
from receiving import arrow, asking, chunk_of, row_at, served
from strandline.jobs.doctor import examine
from strandline.pipeline import commands
from strandline.pipeline.recover_marks import adopt_state
from strandline.server.app import make_app
from strandline.server.body import BodyFormat, decode
from strandline.server.commit import Outcome, commit_posts
from strandline.server.memory_cost import Weight
from strandline.server.requests import hidden_columns, make_posts
from strandline.sinks.contract import Batch, Producer
from strandline.sinks.forward.lane import HttpLane
from strandline.sinks.forward.message import ChunkHeader
from strandline.sinks.forward.protocol import CHUNK_HEADER, KEY_HEADER
from strandline.sinks.forward.refusal import Refusal
from support import ITEMS, by_id, nothing_written


@pytest.fixture
def client(lake, items):
    with asking(make_app(lake, linger_ms=0)) as client:
        yield client


def send(client, ranges, rows, **told):
    return client.post("/ingest/items", content=arrow(rows), headers=chunk_of(*ranges, **told))


def ask(client, **told):
    return client.get("/ingest/items/positions", params={"sink": "s", **told})


def error_of(answer, status):
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


OLD = [row_at(0, 5, 0, id=1, name="old")]
NEW = [row_at(0, 7, 0, id=1, name="new")]
FIRST = [[0, 0, 1, 0, 6, 0]]
AGAIN = [[0, 0, 1, 0, 8, 0]]


def test_a_late_chunk_of_an_older_life_is_refused_and_changes_nothing(client, items):
    assert send(client, FIRST, OLD, first=True, life=1).status_code == 200
    assert send(client, AGAIN, NEW, first=True, life=2).status_code == 200
    late = [row_at(0, 6, 0, id=1, name="late", extra=1)]
    with nothing_written(items):
        for ranges, rows, first in (
            ([[0, 0, 6, 0, 7, 0]], late, False),
            (FIRST, OLD, True),
            ([[1, 1, 1, 0, 9, 0]], [], True),
        ):
            error = error_of(send(client, ranges, rows, first=first, life=1), 410)
            assert (error["kind"], error["life"]) == ("Conflict", 2)
        assert error_of(ask(client, life=1), 410)["life"] == 2
    assert by_id(items) == {1: "new"}
    assert ask(client, life=2).json() == {"sink": "s", "life": 2, "positions": [[0, 0, 8, 0]]}
    assert ask(client, life=3).json()["positions"] == []
    assert ask(client).json() == {"sink": "s", "life": 2, "positions": [[0, 0, 8, 0]]}
    assert ask(client, sink="t").json() == {"sink": "t", "life": None, "positions": []}


def test_a_new_life_begins_with_its_first_rows_and_not_with_a_question_or_a_gap(client, items):
    send(client, FIRST, OLD, first=True, life=1)
    assert ask(client, life=9).json()["positions"] == []
    assert error_of(send(client, [[0, 0, 6, 0, 7, 0]], [], life=9), 409)["positions"] == []
    assert send(client, [[0, 0, 6, 0, 7, 0]], [row_at(0, 6, 0, id=1, name="next")], life=1).status_code == 200
    assert by_id(items) == {1: "next"}


def test_the_positions_of_an_older_life_are_forgotten(lake, client, items):
    send(client, [[0, 3, 1, 0, 6, 0]], OLD, first=True, life=1)
    send(client, FIRST, OLD, first=True, sink="t", life=1)
    send(client, [[1, 1, 1, 0, 8, 0]], [], first=True, life=2)
    mine = [app for app in items.log.refresh().snapshot.txns if app.startswith(("from/", "life/"))]
    assert sorted(mine) == ["from/s/2/1", "from/t/1/0", "life/s", "life/t"]
    items.log.delta.checkpoint()
    assert sorted(
        app for app in sl.Lake(lake.storage.uri).table("items").log.refresh().snapshot.txns if app in mine
    ) == sorted(mine)
    assert examine(lake.storage, deep=True).is_sound


def test_sinks_do_not_end_each_others_lives(client, items):
    send(client, FIRST, OLD, first=True, sink="lake-1.central", life=9)
    assert send(client, FIRST, OLD, first=True, sink="lake-2.central", life=1).status_code == 200
    assert send(client, FIRST, OLD, first=True, sink="lake-1.other", life=1).status_code == 200


def posts(table, ranges, rows, **told):
    chunk = ChunkHeader.parse(chunk_of(*ranges, **told)[CHUNK_HEADER])
    body = decode(arrow(rows), BodyFormat(True, False), Weight(1 << 24, 1000, 100))
    columns = pa.schema([*hidden_columns(is_chunk=True), *table.definition.schema])
    return make_posts(body.rows(columns), table.definition, chunk=chunk)


def test_lives_that_meet_in_one_commit_follow_each_other(items):
    group = [
        *posts(items, FIRST, OLD, first=True, life=1),
        *posts(items, AGAIN, NEW, first=True, life=2),
        *posts(items, [[0, 0, 6, 0, 7, 0]], [row_at(0, 6, 0, id=1, name="late")], life=1),
        *posts(items, [[1, 1, 1, 0, 8, 0]], [], first=True, life=2),
    ]
    first, second, late, third = commit_posts(items.log, group)
    assert (first, second, third) == (Outcome(1, seq=1), Outcome(1, seq=1), Outcome(0, seq=1))
    assert isinstance(late, Refusal) and late.status == 410
    assert by_id(items) == {1: "new"}
    kept = {app: at for app, at in items.log.refresh().snapshot.txns.items() if app.startswith(("from/", "life/"))}
    assert kept == {"life/s": 2, "from/s/2/0": 8 << 31, "from/s/2/1": 8 << 31}


def test_handles_that_race_with_two_lives_keep_nothing_of_the_older_one(lake, items):
    """Each has a view of the log of its own, as processes have."""

    def sent(vnode, name, life):
        rows = [row_at(vnode, 7, 0, id=vnode, name=name)]
        table = sl.Lake(lake.storage.uri).table("items")
        return table, posts(items, [[vnode, vnode, 1, 0, 8, 0]], rows, first=True, life=life)

    for life in range(1, 11, 2):
        work = [sent(vnode, f"{at}", at) for vnode in range(3) for at in (life, life + 1)]
        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(lambda each: commit_posts(each[0].log, each[1])[0], work))
        assert all(isinstance(found, Outcome) for found in done[1::2])
        assert by_id(items) == dict.fromkeys(range(3), f"{life + 1}")
        kept = [app for app in items.log.refresh().snapshot.txns if app.startswith("from/")]
        assert sorted(kept) == [f"from/s/{life + 1}/{vnode}" for vnode in range(3)]


# --- the sender --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def recording(status=503):
    """A receiver that knows nothing and takes nothing; yields its port and what it was sent."""
    sent = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments):
            pass

        def do_GET(self):
            self.answer(200, b'{"positions": []}')

        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            kept = ("Content-Type", CHUNK_HEADER, KEY_HEADER)
            sent.append((content, {name: self.headers[name] for name in kept if self.headers[name]}))
            self.answer(status, b"{}")

        def answer(self, status, data):
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, sent
    finally:
        server.shutdown()
        server.server_close()


def test_a_request_that_was_on_its_way_over_a_reset_replaces_nothing(lake, items, tmp_path):
    far = sl.Lake(tmp_path / "far").create_table("items", ITEMS, key=["id"])
    items.upsert([{"id": 1, "name": "old"}, {"id": 2, "name": "old"}])
    with recording() as (port, sent):
        lake.sink("central", "items", to=sl.HttpSink(f"http://127.0.0.1:{port}/ingest/items", patience="0s"))
        assert not lake.tick().is_well
        late = list(sent)
    assert late
    items.upsert([{"id": 1, "name": "new"}])
    commands.reset(lake, "central")
    with served(str(tmp_path / "far"), port=port) as server:
        assert lake.tick().is_well
        with nothing_written(far):
            for content, headers in late:
                assert server.post("items", content, headers).status_code == 410
        assert by_id(far) == {1: "new", 2: "old"}
        items.upsert([{"id": 3, "name": "next"}])
        assert lake.tick().is_well
    assert by_id(far) == by_id(items)


def test_a_lake_from_a_copy_that_a_newer_life_has_outlived_says_so_and_may_begin_again(lake, items, tmp_path):
    far = sl.Lake(tmp_path / "far").create_table("items", ITEMS, key=["id"])
    items.upsert([{"id": 1, "name": "a"}])
    with served(str(tmp_path / "far")) as server:
        to = sl.HttpSink(f"{server.url}/ingest/items")
        lake.sink("central", "items", to=to)
        lake.tick()
        lake.state.database.close()
        shutil.copytree(lake.storage.uri, tmp_path / "copy")
        commands.reset(lake, "central")
        lake.tick()
        copy = sl.Lake(tmp_path / "copy")
        copy.table("items").upsert([{"id": 1, "name": "of the copy"}])
        head = far.head
        for _ in range(2):
            (report,) = copy.tick().sinks
            assert isinstance(report.error, sl.Conflict) and report.error.fields["status"] == 410
            assert (report.requests, report.retries) == (0, 0), "it asks, and sends no row"
            (sink,) = copy.status().sinks
            assert sink.error == report.error.message and not copy.status().is_healthy
        assert far.head == head
        # The number of the life was given before; when it began was not.
        assert commands.reset(copy, "central").life == lake.state.registry.get("central").life == 2
        assert copy.tick().is_well and copy.status().is_healthy
        assert by_id(far) == {1: "of the copy"}
        items.upsert([{"id": 1, "name": "of the first"}])
        (report,) = lake.tick().sinks
        assert isinstance(report.error, sl.Conflict)
    assert by_id(far) == {1: "of the copy"}


def test_a_reset_begins_after_the_newest_life_that_the_receiver_knows(lake, items, tmp_path, monkeypatch):
    """A clock that went back would otherwise make a life that the receiver takes for an old one, reset after reset."""
    far = sl.Lake(tmp_path / "far").create_table("items", ITEMS, key=["id"])
    items.upsert([{"id": 1, "name": "a"}])
    with served(str(tmp_path / "far")) as server:
        lake.sink("central", "items", to=sl.HttpSink(f"{server.url}/ingest/items"))
        lake.tick()
        sink = f"{lake.catalog.refresh().lake_id}.central"
        later = chunk_of([0, 3, 1, 0, 2, 0], first=True, sink=sink, life=(1 << 53) - 10_000)
        assert server.post("items", arrow([row_at(0, 1, 0, id=1, name="b")]), later).status_code == 200
        items.upsert([{"id": 1, "name": "c"}])
        assert not lake.tick().is_well
        commands.reset(lake, "central")
        assert lake.tick().is_well
    assert by_id(far) == {1: "c"}


def test_an_outlived_state_is_not_adopted(lake, items, tmp_path):
    sl.Lake(tmp_path / "far").create_table("items", ITEMS, key=["id"])
    items.upsert([{"id": 1, "name": "a"}])
    with served(str(tmp_path / "far")) as server:
        lake.sink("central", "items", to=sl.HttpSink(f"{server.url}/ingest/items"))
        lake.tick()
        lake.state.database.close()
        shutil.copytree(lake.storage.uri, tmp_path / "copy")
        commands.reset(lake, "central")
        lake.tick()
        for path in (tmp_path / "copy").glob("state.db*"):
            path.unlink()
        copy = sl.Lake(tmp_path / "copy")
        (found,) = adopt_state(copy)
        assert found.marks is None and found.is_undecided


def test_a_lane_that_is_outlived_while_it_sends_stops_at_once():
    with positions_receiver() as receiver:
        producer = Producer("lake-1", "central", "items", "table-1", "9b1d", 7)
        batch = Batch("b", (0,), 4, 7, pa.schema([("id", pa.int64())]), ("id",))
        rows = pa.RecordBatch.from_pylist(
            [{"_op": "upsert", "_vnode": 0, "_seq": 5, "id": 1}], schema=batch.lane_schema
        )
        receiver.lives["lake-1.central"] = 8
        sink = sl.HttpSink(receiver.url)
        (result,) = HttpLane(sink, producer, batch, sink.secrets())(iter([rows]))
        assert isinstance(result.error, sl.Conflict) and result.requests == 1
        assert (result.error.fields["life"], result.error.fields["found"]) == (7, 8)
        assert not receiver.rows


def test_a_foreign_receiver_that_answers_410_stops_the_sink_as_before(lake, items):
    items.upsert([{"id": 1, "name": "a"}])
    with recording(410) as (port, _):
        lake.sink("out", "items", to=sl.HttpSink(f"http://127.0.0.1:{port}/x", receiver="any"))
        (report,) = lake.tick().sinks
    assert isinstance(report.error, sl.Invalid) and report.error.fields["status"] == 410


def test_lives_follow_each_other_whatever_the_clock_says(lake, items, monkeypatch):
    registry = lake.state.registry
    facts = {"kind": "http", "table": "items", "table_generation": "g", "definition": {}}
    for clock_s in (1000.0, 1000.0, 1000.0004, 400.0, 1000.002, 2000.0):
        monkeypatch.setattr("strandline.state.consumers.now_s", lambda _, at=clock_s: at)
        registry.register("a", destination=f"{clock_s} {len(registry.history('a'))}", **facts)
    began = [each.began_ms for each in registry.history("a")]
    assert began == sorted(set(began)) and began[-1] == 2_000_000


# --- a model -----------------------------------------------------------------------------------------------------


class Lives(RuleBasedStateMachine):
    """A sender's table of two vnodes, a sink that starts again now and then, and a network that delays and repeats what
    it sent, also what was given up. The receiver is a real one, which is started anew now and then."""

    KEYS, VNODES = 5, 2
    folder: Path

    def __init__(self):
        super().__init__()
        self.path = str(self.folder / uuid.uuid4().hex)
        sl.Lake(self.path).create_table("items", ITEMS, key=["id"], vnodes=2)
        self.open()
        self.log = []  # the key of each commit of the sender; the first commit is seq 1
        self.life = 1
        self.acknowledged = {}  # by vnode, of this life
        self.sent = []
        self.newest = 0  # the highest life of which the receiver has taken something
        self.seen = {}  # the seq of each key at the receiver

    def open(self):
        self.table = sl.Lake(self.path).table("items")
        self.asking = asking(make_app(sl.Lake(self.path), linger_ms=1))
        self.client = self.asking.__enter__()

    def teardown(self):
        self.asking.__exit__(None, None, None)

    @rule()
    def restart_the_receiver(self):
        self.teardown()
        self.open()

    @rule(key=st.integers(0, KEYS - 1))
    def write(self, key):
        self.log.append(key)

    @rule()
    def start_again(self):
        self.life += 1
        self.acknowledged = {}

    def request(self, vnode):
        """What is new for a vnode; of a life that begins, the rows as they are."""
        head, after = len(self.log), self.acknowledged.get(vnode)
        own = [(seq, key) for seq, key in enumerate(self.log, 1) if key % self.VNODES == vnode]
        if after is None:
            newest = {key: seq for seq, key in own}
            rows = [row_at(vnode, head, at, id=key, name=f"{newest[key]}") for at, key in enumerate(sorted(newest))]
        else:
            rows = [row_at(vnode, seq, 0, id=key, name=f"{seq}") for seq, key in own if seq >= after]
        told = chunk_of([vnode, vnode, after or 1, 0, head + 1, 0], first=after is None, life=self.life)
        return {"vnode": vnode, "to": head + 1, "life": self.life, "content": arrow(rows), "headers": told}

    @precondition(lambda self: self.log)
    @rule(vnode=st.integers(0, VNODES - 1), arrives=st.booleans(), is_answered=st.booleans())
    def tick(self, vnode, arrives, is_answered):
        request = self.request(vnode)
        self.sent.append(request)
        if arrives:
            assert self.arrive(request) == 200, "the newest life is never refused"
            if is_answered:
                self.acknowledged[vnode] = request["to"]

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def arrive_late(self, data):
        """One after the other, or at once."""
        late = data.draw(st.lists(st.sampled_from(range(len(self.sent))), min_size=1, max_size=4))
        newest = self.newest
        with ThreadPoolExecutor(4) as pool:
            statuses = list(pool.map(lambda at: self.arrive(self.sent[at]), late))
        for at, status in zip(late, statuses, strict=True):
            if self.sent[at]["life"] < newest:
                assert status == 410, "an older life is over"

    def arrive(self, request):
        answer = self.client.post("/ingest/items", content=request["content"], headers=request["headers"])
        # A gap: requests of one life of which one was lost.
        assert answer.status_code in (200, 409, 410), answer.text
        if answer.status_code == 200:
            self.newest = max(self.newest, request["life"])
        return answer.status_code

    @invariant()
    def each_vnode_is_a_state_of_the_sender_and_none_goes_back(self):
        found = {key: int(name) for key, name in by_id(self.table).items()}
        for key, seq in self.seen.items():
            assert found[key] >= seq, "an older row came over a newer one"
        self.seen = found
        for vnode in range(self.VNODES):
            own = {key: seq for key, seq in found.items() if key % self.VNODES == vnode}
            last = max(own.values(), default=0)
            assert own == {key: seq for seq, key in enumerate(self.log[:last], 1) if key % self.VNODES == vnode}


def test_whatever_is_delayed_or_repeated_the_receiver_only_goes_forward(tmp_path):
    Lives.folder = tmp_path
    run_state_machine_as_test(Lives, settings=settings(max_examples=10, stateful_step_count=20, deadline=None))
