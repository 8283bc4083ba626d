"""A dead letter that is sent again, and arrives late: it never puts an older row over a newer one."""

import json
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test
from test_lives import Lives

import strandline as sl
from receiving import ARROW, arrow, asking, chunk_of, row_at, served
from strandline.jobs.doctor import examine
from strandline.pipeline import commands, redelivery
from strandline.server.app import make_app
from strandline.server.body import BodyFormat, decode
from strandline.server.commit import Outcome, commit_posts
from strandline.server.idempotency import Key
from strandline.server.memory_cost import Weight
from strandline.server.requests import Post, hidden_columns, make_posts
from strandline.sinks.forward.client import Connection
from strandline.sinks.forward.message import ChunkHeader, Replay, Sender
from strandline.sinks.forward.protocol import REPLAY_HEADER
from support import by_id, nothing_written


@pytest.fixture
def client(lake, items):
    with asking(make_app(lake, linger_ms=0)) as client:
        yield client


def replay_of(as_of, *, sink="s", life=1, key=None):
    """The headers of a replay of Arrow rows."""
    facts = {"version": 1, "sink": sink, "life": life, "as_of": as_of, "source": {}}
    more = {} if key is None else {"Idempotency-Key": key}
    return {"Content-Type": ARROW, REPLAY_HEADER: json.dumps(facts), **more}


def send(client, headers, *rows):
    return client.post("/ingest/items", content=arrow(list(rows)), headers=headers)


def again(client, name, as_of, **told):
    return send(client, replay_of(as_of, **told), {"_op": "upsert", "_seq": as_of, "id": 1, "name": name})


def chunk(client, name, *, upto, start=1, first=False, life=1, vnode=0):
    rows = [row_at(vnode, upto, 0, id=1, name=name)]
    return send(client, chunk_of([vnode, vnode, start, 0, upto + 1, 0], first=first, life=life), *rows)


def kept(table):
    return {app: at for app, at in table.log.refresh().snapshot.txns.items() if app.startswith(("from/", "life/"))}


def test_a_replay_that_is_older_than_the_changes_of_its_sink_is_refused_and_changes_nothing(client, items):
    assert chunk(client, "5", upto=5, first=True).status_code == 200
    assert again(client, "now", as_of=5).status_code == 200, "it has nothing newer"
    assert by_id(items) == {1: "now"}
    assert chunk(client, "7", upto=7, start=6).status_code == 200
    with nothing_written(items):
        for as_of in (5, 6):
            late = again(client, "late", as_of=as_of, key=f"{as_of}")
            assert late.status_code == 409, late.text
            assert (late.json()["error"]["kind"], late.json()["error"]["as_of"]) == ("Conflict", 7)
    assert again(client, "now", as_of=7).status_code == 200
    assert by_id(items) == {1: "now"}


def test_a_part_of_a_seq_is_newer_than_a_replay_of_the_seq_before(client, items):
    assert send(client, chunk_of([0, 0, 1, 0, 6, 0], first=True)).status_code == 200
    rows = [row_at(0, 6, at, id=at, name="6") for at in (0, 1)]
    assert send(client, chunk_of([0, 0, 6, 0, 6, 2]), *rows).status_code == 200
    assert again(client, "5", as_of=5).status_code == 409
    assert again(client, "now", as_of=6).status_code == 200


def test_a_replay_that_a_later_one_overtook_is_refused(client, items):
    assert chunk(client, "5", upto=5, first=True).status_code == 200
    assert again(client, "7", as_of=7).status_code == 200
    assert again(client, "6", as_of=6).status_code == 409
    assert again(client, "7", as_of=7).status_code == 200
    assert by_id(items) == {1: "7"}
    assert chunk(client, "8", upto=8, start=6).status_code == 200, "what lies between comes still"
    assert by_id(items) == {1: "8"}


def test_a_replay_of_an_older_life_is_refused_and_one_of_a_newer_life_begins_it(lake, client, items):
    assert chunk(client, "5", upto=5, first=True).status_code == 200
    assert again(client, "6", as_of=6).status_code == 200
    assert kept(items) == {"life/s": 1, "from/s/1/0": 6 << 31, "from/s/1/replay": 6}
    assert again(client, "of life 2", as_of=4, life=2).status_code == 200
    assert kept(items) == {"life/s": 2, "from/s/2/replay": 4}, "nothing is kept of the older life"
    with nothing_written(items):
        assert again(client, "late", as_of=9, life=1).status_code == 410
        assert chunk(client, "late", upto=9, start=6, life=1).status_code == 410
    assert chunk(client, "first of life 2", upto=4, first=True, life=2).status_code == 200
    assert chunk(client, "of life 3", upto=4, first=True, life=3).status_code == 200
    assert kept(items) == {"life/s": 3, "from/s/3/0": 5 << 31}
    assert again(client, "late", as_of=9, life=2).status_code == 410
    assert by_id(items) == {1: "of life 3"}
    assert client.get("/ingest/items/positions", params={"sink": "s"}).json()["positions"] == [[0, 0, 5, 0]]
    assert examine(lake.storage, deep=True).is_sound


def test_a_replay_that_was_done_is_answered_so_whatever_came_after_it(client, items):
    assert again(client, "5", as_of=5, key="k").status_code == 200
    assert chunk(client, "7", upto=7, first=True).status_code == 200
    with nothing_written(items):
        assert again(client, "5", as_of=5, key="k").json() == {"rows": 1, "skipped": 0, "seq": 1, "repeated": True}
    assert by_id(items) == {1: "7"}


def test_a_replay_grows_the_table_as_a_chunk_does(lake, client, items):
    new = {"_op": "upsert", "_seq": 5, "id": 1, "name": "a", "qty": 1 << 40, "score": 1.5}
    assert chunk(client, "7", upto=7, first=True).status_code == 200
    with asking(make_app(lake, evolve=False, linger_ms=0)) as other, nothing_written(items):
        assert send(client, replay_of(5), new).status_code == 409, "what is refused changes nothing"
        answer = send(other, replay_of(7), new)
        assert (answer.status_code, answer.json()["error"]["column"]) == (412, "score")
        assert send(client, replay_of(7), {**new, "_hash": 1}).status_code == 412
    assert send(client, replay_of(7, key="k"), new).status_code == 200
    assert send(client, replay_of(7, key="k"), new).json()["repeated"]
    assert items.to_arrow().to_pylist() == [{"id": 1, "name": "a", "qty": 1 << 40, "score": 1.5}]


def test_sinks_do_not_refuse_each_others_replays(client, items):
    assert chunk(client, "7", upto=7, first=True).status_code == 200
    assert again(client, "of t", as_of=3, sink="t").status_code == 200


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("[]", 400),
        ("{", 400),
        ('{"version": 2}', 412),
        ('{"version": 1, "sink": "s", "life": 1}', 400),
        ('{"version": 1, "sink": "s", "life": 1, "as_of": -1}', 400),
        ('{"version": 1, "sink": "s", "life": 1, "as_of": true}', 400),
        ('{"version": 1, "sink": "s", "life": 1, "as_of": 4294967296}', 400),
        ('{"version": 1, "sink": "", "life": 1, "as_of": 1}', 400),
    ],
)
def test_a_header_that_says_nothing_usable_is_refused(client, items, said, status):
    with nothing_written(items):
        assert send(client, {"Content-Type": ARROW, REPLAY_HEADER: said}, {"id": 1}).status_code == status


def test_a_request_is_a_chunk_or_a_replay(client, items):
    with nothing_written(items):
        both = {**chunk_of([0, 0, 1, 0, 6, 0], first=True), **replay_of(5)}
        assert send(client, both, row_at(0, 5, 0, id=1, name="a")).status_code == 400


def posts(table, vnode, name, seq, start=1, is_first=False):
    """A chunk that ends with `seq`."""
    told = ChunkHeader.parse(chunk_of([vnode, vnode, start, 0, seq + 1, 0], first=is_first)["Strandline-Chunk"])
    body = decode(arrow([row_at(vnode, seq, 0, id=1, name=name)]), BodyFormat(True, False), Weight(1 << 24, 1000, 100))
    columns = pa.schema([*hidden_columns(is_chunk=True), *table.definition.schema])
    return make_posts(body.rows(columns), table.definition, chunk=told)


def replay_post(name, as_of, life=1, key=None):
    rows = pa.table({"_op": ["upsert"], "id": pa.array([1], pa.int64()), "name": [name]})
    return Post(rows, key=key, replay=Replay(Sender("s", life), as_of))


def test_replays_and_chunks_that_meet_in_one_commit_follow_each_other(items):
    group = [
        replay_post("replay as of 5", 5),
        *posts(items, 0, "6", 6, is_first=True),
        replay_post("late", 5),
        replay_post("replay as of 6", 6),
        replay_post("of life 2", 1, life=2),
        replay_post("late", 9),
    ]
    first, chunked, late, second, third, outlived = commit_posts(items.log, group)
    assert (first, chunked, second, third) == (Outcome(1, seq=1),) * 4
    assert isinstance(late, sl.Conflict) and outlived.status == 410
    assert by_id(items) == {1: "of life 2"}
    assert kept(items) == {"life/s": 2, "from/s/2/replay": 1}


def test_a_replay_that_comes_twice_with_a_newer_chunk_between_counts_once_and_was_done(items):
    first, second, third = (replay_post("5", 5, key=Key("k", 1)) for _ in range(3))
    for group in ([first, *posts(items, 0, "6", 6, is_first=True), second], [third]):
        assert commit_posts(items.log, group)[-1] == Outcome(1, seq=1, is_repeated=True)
    assert by_id(items) == {1: "6"} and items.head == 1


def test_a_replay_that_races_with_newer_chunks_never_comes_after_them(lake, items):
    """Each has a view of the log of its own, as processes have; the chunks are of any vnode."""
    for seq in range(1, 13):
        vnode = seq % 3
        newer = posts(items, vnode, f"{seq}", seq, start=max(1, seq - 2), is_first=seq <= 3)
        work = [newer, *([replay_post("late", seq - 1)] for _ in range(3))]
        tables = [sl.Lake(lake.storage.uri).table("items") for _ in work]
        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(lambda table, each: commit_posts(table.log, each)[0], tables, work))
        assert isinstance(done[0], Outcome)
        assert by_id(items) == {1: f"{seq}"}


LAX = pa.schema([("id", pa.int64()), ("name", pa.string())])
STRICT = pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string(), False)])


# --- the sender --------------------------------------------------------------------------------------------------


def test_a_replay_that_was_given_up_and_arrives_late_replaces_nothing(lake, tmp_path, monkeypatch):
    items = lake.create_table("items", LAX, key=["id"])
    far = sl.Lake(tmp_path / "far").create_table("items", STRICT, key=["id"])
    items.upsert([{"id": 1, "name": None}, {"id": 2, "name": "good"}])
    given_up = []

    def give_up(line, content, headers):
        given_up.append((content, {name: text for name, text in headers.items() if name != "Authorization"}))
        raise sl.Unavailable("no answer")

    with served(str(tmp_path / "far")) as server:
        lake.sink("central", "items", to=sl.HttpSink(f"{server.url}/ingest/items"))
        lake.tick()
        (letter,) = lake.state.letters.all()
        items.upsert([{"id": 1, "name": "put right"}])
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "post", give_up)
            (replayed,) = redelivery.replay(lake, [letter.id])
        assert isinstance(replayed.error, sl.Unavailable) and len(given_up) == 1
        items.upsert([{"id": 1, "name": "newest"}])
        assert lake.tick().sinks[0].error is None
        assert by_id(far) == {1: "newest", 2: "good"}
        with nothing_written(far):
            assert server.post("items", *given_up[0]).status_code == 409
        (replayed,) = redelivery.replay(lake, [letter.id])
        assert replayed.error is None and not lake.state.letters.all()
        commands.reset(lake, "central")
        lake.tick()
        with nothing_written(far):
            assert server.post("items", *given_up[0]).status_code == 410
    assert by_id(far) == by_id(items) == {1: "newest", 2: "good"}


def test_a_sender_that_is_told_that_its_rows_are_old_keeps_the_letter_and_says_so(lake, tmp_path):
    items = lake.create_table("items", LAX, key=["id"])
    far = sl.Lake(tmp_path / "far").create_table("items", STRICT, key=["id"])
    items.upsert([{"id": 1, "name": None}])
    with served(str(tmp_path / "far")) as server:
        lake.sink("central", "items", to=sl.HttpSink(f"{server.url}/ingest/items"))
        lake.tick()
        (letter,) = lake.state.letters.all()
        items.upsert([{"id": 1, "name": "put right"}])
        # What another copy of the lake has sent.
        consumer = lake.state.registry.get("central")
        told = {"sink": f"{lake.catalog.refresh().lake_id}.central", "life": consumer.began_ms}
        row = {"_op": "upsert", "_seq": 9, "id": 1, "name": "of the copy"}
        assert server.post("items", arrow([row]), replay_of(9, **told)).status_code == 200
        (replayed,) = redelivery.replay(lake, [letter.id])
        assert isinstance(replayed.error, sl.Conflict) and replayed.error.fields["status"] == 409
        assert f"strandline deadletter replay {letter.id[:8]}" in replayed.error.hint
        assert lake.state.letters.all() == [letter], "it is no attempt"
        assert server.post("items", arrow([row]), replay_of(9, **{**told, "life": 1 << 52})).status_code == 200
        (replayed,) = redelivery.replay(lake, [letter.id])
        assert isinstance(replayed.error, sl.Conflict) and replayed.error.fields["status"] == 410
    assert lake.state.letters.all() == [letter] and by_id(far) == {1: "of the copy"}


# --- a model -----------------------------------------------------------------------------------------------------


class LivesAndReplays(Lives):
    """The lives of a sink whose dead letters are sent again, too: keys of any vnode as they are, on a network that
    delays and repeats. A replay may be ahead of the changes, which then pass through older states again; nothing is
    ever older than what the positions say, and no replay makes a key older."""

    KEYS = 2

    def __init__(self):
        super().__init__()
        self.floors = {}  # the oldest seq that each key may have

    @rule(key=st.integers(0, KEYS - 1))
    def write(self, key):
        self.log.append(key)

    @precondition(lambda self: self.log)
    @rule(keys=st.sets(st.integers(0, KEYS - 1), min_size=1), arrives=st.booleans())
    def replay(self, keys, arrives):
        head = len(self.log)
        newest = {key: seq for seq, key in enumerate(self.log, 1)}
        rows = [{"_op": "upsert", "_seq": head, "id": key, "name": f"{newest[key]}"} for key in keys if key in newest]
        if not rows:
            return
        headers = replay_of(head, life=self.life, key=f"{self.life} {head} {sorted(keys)}")
        request = {"life": self.life, "content": arrow(rows), "headers": headers}
        self.sent.append(request)
        if arrives:
            assert self.arrive(request) == 200, "the newest rows are never refused"
            found = {key: int(name) for key, name in by_id(self.table).items()}
            assert {key: found[key] for key in keys if key in newest} == {key: newest[key] for key in keys & {*newest}}

    @rule(key=st.integers(0, KEYS - 1), is_by_replay=st.booleans())
    def overtake_a_replay(self, key, is_by_replay):
        """What goes wrong rarely by chance: a replay is delayed, and its key goes on."""
        self.write(key)
        self.replay({key}, arrives=False)
        self.write(key)
        if is_by_replay:
            self.replay({key}, arrives=True)
        else:
            self.tick(key % self.VNODES, arrives=True, is_answered=True)

    @precondition(lambda self: any(REPLAY_HEADER in request["headers"] for request in self.sent))
    @rule(data=st.data())
    def replays_arrive_late(self, data):
        replays = [request for request in self.sent if REPLAY_HEADER in request["headers"]]
        before = by_id(self.table)
        late = data.draw(st.lists(st.sampled_from(range(len(replays))), min_size=1, max_size=3))
        for at in late:
            self.arrive(replays[at])
        after = by_id(self.table)
        assert all(int(after[key]) >= int(name) for key, name in before.items()), "a replay made a key older"

    @precondition(lambda self: self.log)
    @rule()
    def catch_up(self):
        for vnode in range(self.VNODES):
            self.tick(vnode, arrives=True, is_answered=True)
        assert by_id(self.table) == {key: f"{seq}" for seq, key in enumerate(self.log, 1)}

    @invariant()
    def each_vnode_is_a_state_of_the_sender_and_none_goes_back(self):
        held = self.client.get("/ingest/items/positions", params={"sink": "s"}).json()["positions"]
        ends = {vnode: seq for first, last, seq, _ in held for vnode in range(first, last + 1)}
        for seq, key in enumerate(self.log, 1):
            if seq < ends.get(key % self.VNODES, 0):
                self.floors[key] = max(seq, self.floors.get(key, 0))
        found = {key: int(name) for key, name in by_id(self.table).items()}
        assert all(self.log[seq - 1] == key for key, seq in found.items())
        assert all(found[key] >= seq for key, seq in self.floors.items()), "an older row came over a newer one"


def test_whatever_is_delayed_or_sent_again_no_key_is_older_than_its_position_says(tmp_path):
    LivesAndReplays.folder = tmp_path
    run_state_machine_as_test(
        LivesAndReplays, settings=settings(max_examples=12, stateful_step_count=20, deadline=None)
    )
