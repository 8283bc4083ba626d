"""The chunks of a whole backfill, at a receiver that does what the protocol says. Whatever the rounds and the cuts are,
and whatever is sent again: each row is applied once, and every vnode ends behind its history."""

import itertools
import json
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.consumers.history import finish_positions
from strandline.consumers.tally import count_rows
from strandline.consumers.work import LOG, ROUND
from strandline.sinks.contract import WHOLE, Batch
from strandline.sinks.forward.chunks import MOST_RANGES, CutRule, Cutter
from strandline.sinks.forward.message import ChunkHeader, pack
from strandline.sinks.forward.positions import find_new_rows, holds_chunk
from strandline.state.key_positions import Position

COLUMNS = pa.schema([pa.field("id", pa.int64(), False)])
VNODES = (0, 1, 2, 5)
RULES = st.builds(CutRule, st.integers(1, 7), st.integers(1, 200))


class Receiver:
    """Positions and rows, kept as `strandline serve` keeps them."""

    def __init__(self):
        self.txns = {}
        self.rows = []
        self.chunks = []

    def take(self, chunk):
        self.chunks.append(chunk)
        assert len(chunk.ranges) <= MOST_RANGES
        facts = {"version": 1, "sink": "s", "life": 1, "is_first": chunk.is_first, "ranges": chunk.ranges}
        header = ChunkHeader.parse(json.dumps(facts))
        rows = chunk.rows.to_pylist()
        places = header.places(*(chunk.rows.column(name).to_numpy() for name in ("_vnode", "_seq", "_index")))
        if holds_chunk(header, self.txns):
            return
        new = find_new_rows(header, places, self.txns)
        self.rows += rows if new.is_new is None else itertools.compress(rows, new.is_new)
        self.txns |= new.moved

    def held(self, vnodes):
        found = {v: self.txns.get(f"from/s/1/{v}") for v in vnodes}
        return {v: (at >> 31, at & ((1 << 31) - 1)) for v, at in found.items() if at is not None}


class Sender:
    """A consumer's marks and positions, moved by the code that moves them."""

    def __init__(self, vnodes=VNODES, key=("id",)):
        self.vnodes, self.key = vnodes, key
        self.mark = 0
        self.positions = dict.fromkeys(vnodes)
        self.round = 0
        self.sent = []
        self.names = itertools.count()

    def batch(self, source, upto, is_last):
        after = upto if source == ROUND and self.mark else self.mark
        end = WHOLE if is_last else self.round + (source == ROUND)
        sent = {vnode: at.sent for vnode, at in self.positions.items() if at is not None}
        return Batch(
            "b", tuple(self.vnodes), after, upto, COLUMNS, self.key,
            is_first=after == 0, is_rows=source == ROUND, start_round=self.round, end_round=end, sent=sent,
        )  # fmt: skip

    def rows(self, batch, places, withheld):
        made = []
        for at, (vnode, seq, *row) in enumerate(sorted(places)):
            op = "withheld" if at in withheld else "upsert"
            made.append({"_op": op, "_vnode": vnode, "_seq": seq, "_row": (row or [0])[0], "id": next(self.names)})
        self.sent += [row["id"] for row in made if row["_op"] == "upsert"]
        return pa.RecordBatch.from_pylist(made, schema=batch.lane_schema)

    def finish(self, source, batch, rows):
        tally = {}
        for _ in count_rows([rows], tally):
            pass
        until = None if batch.end.has_history else bytes([self.round + 1])
        begun = {vnode: (at or Position()).begun(until) for vnode, at in self.positions.items()}
        before = begun if source == ROUND else self.positions
        work = SimpleNamespace(source=source, positions=self.positions)
        moves = finish_positions(work, self.vnodes, before, tally, 1.0)
        self.positions |= {vnode: to for vnode, (_, to) in moves.items()}
        self.mark = batch.upto
        self.round += source == ROUND


def send(receiver, batch, rows, rule, data):
    """Send the chunks of a batch, some of them twice, halved or cut where the receiver is."""
    sent = []
    for whole in Cutter(batch, rule).chunks([rows]):
        how = data.draw(st.sampled_from(["whole", "whole", "halves", "held", "stop"]))
        if how == "stop":
            return False
        parts = [whole]
        if how == "halves" and whole.rows.num_rows > 1:
            parts = whole.halves()
        if how == "held":
            parts = whole.split_held(receiver.held(batch.vnodes))
        for chunk in [part for each in parts for part in each.split_vnodes()]:
            if chunk.ranges:
                receiver.take(chunk)
                sent.append(chunk)
    for chunk in sent:
        if data.draw(st.booleans()):
            receiver.take(chunk)
    return True


def deliver(receiver, sender, source, upto, places, data, *, is_last=False, withheld=frozenset()):
    """One batch, begun again under other rules until it is through."""
    batch = sender.batch(source, upto, is_last)
    rows = sender.rows(batch, places, withheld)
    for _ in range(3):
        if send(receiver, batch, rows, data.draw(RULES), data):
            break
    else:
        for chunk in Cutter(batch, data.draw(RULES)).chunks([rows]):
            for part in chunk.split_vnodes():
                if part.ranges:
                    receiver.take(part)
    sender.finish(source, batch, rows)


withheld = st.sets(st.integers(0, 20), max_size=4)
catch_up = st.tuples(
    st.just(LOG),
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from(VNODES), st.integers(1, 3)), max_size=8),
    withheld,
)
round_ = st.tuples(st.just(ROUND), st.just(0), st.lists(st.sampled_from(VNODES), max_size=9), withheld)


@settings(max_examples=150)
@given(steps=st.lists(catch_up | round_ | round_, max_size=6), data=st.data())
def test_a_backfill_cut_in_any_way_is_applied_once_and_ends_whole(steps, data):
    receiver, sender = Receiver(), Sender()
    head = 3
    last = (ROUND, 0, [0, 0, 1, 5], set())
    for step in [*steps, last]:
        source, more, places, hidden = step
        if source == LOG:
            if not sender.mark:
                continue
            head += more
            found = [(vnode, min(sender.mark + seq, head)) for vnode, seq in places]
        else:
            found = [(vnode, head) for vnode in places]
        deliver(receiver, sender, source, head, found, data, is_last=step is last, withheld=hidden)
    assert sorted(row["id"] for row in receiver.rows) == sorted(sender.sent)
    assert {vnode: receiver.txns[f"from/s/1/{vnode}"] for vnode in VNODES} == dict.fromkeys(VNODES, pack(head + 1, 0))
    for vnode in VNODES:
        places = [(row["_seq"], row["_index"]) for row in receiver.rows if row["_vnode"] == vnode]
        assert places == sorted(set(places))
    # Late requests change nothing.
    rows = list(receiver.rows)
    for chunk in list(receiver.chunks):
        receiver.take(chunk)
    assert receiver.rows == rows
    # And on as ever.
    sender.positions = {}
    batch = Batch("c", VNODES, head, head + 2, COLUMNS, ("id",))
    rows = sender.rows(batch, [(0, head + 1), (5, head + 2)], ())
    assert send(receiver, batch, rows, CutRule(2, 100), _Plain())
    assert sorted(row["id"] for row in receiver.rows) == sorted(sender.sent)


class _Plain:
    def draw(self, strategy):
        return "whole"


@settings(max_examples=100)
@given(
    commits=st.lists(st.lists(st.sampled_from(VNODES), min_size=1, max_size=6), min_size=1, max_size=5),
    cuts=st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=8),
    data=st.data(),
)
def test_rows_without_a_key_go_on_within_their_seq(commits, cuts, data):
    receiver, sender = Receiver(), Sender(key=())
    table = [(seq, row, vnode) for seq, commit in enumerate(commits[:1], 1) for row, vnode in enumerate(commit)]
    waiting, head, at = commits[1:], 1, 0
    for count, is_after_commit in [*cuts, (1000, False)]:
        if is_after_commit and waiting:
            head += 1
            table += [(head, row, vnode) for row, vnode in enumerate(waiting.pop(0))]
        part, at = table[at : at + count], at + count
        places = [(vnode, seq, row) for seq, row, vnode in part]
        deliver(receiver, sender, ROUND, head, places, data, is_last=at >= len(table))
        if at >= len(table):
            break
    assert [row["id"] for row in sorted(receiver.rows, key=lambda row: row["id"])] == sorted(sender.sent)
    assert {vnode: receiver.txns[f"from/s/1/{vnode}"] for vnode in VNODES} == dict.fromkeys(VNODES, pack(head + 1, 0))
    for vnode in VNODES:
        found = [(row["_seq"], row["_index"]) for row in receiver.rows if row["_vnode"] == vnode]
        expected = [seq for seq, _, owner in table if owner == vnode]
        assert [seq for seq, _ in found] == expected
        for seq in set(expected):
            assert [index for one, index in found if one == seq] == list(range(expected.count(seq)))


def test_vnodes_with_places_of_their_own_make_headers_that_servers_take():
    sender = Sender(vnodes=tuple(range(4096)))
    sender.mark, sender.round = 9, 1
    sender.positions = {
        v: Position(1, b"k", 5, ((1 << 32) - 2 - v % 2, (1 << 30) + v), 0.1, 1.0) for v in sender.vnodes
    }
    batch = sender.batch(ROUND, (1 << 32) - 1, is_last=True)
    batch = Batch(**{**vars(batch), "upto": (1 << 32) - 2})
    rows = sender.rows(batch, [(v, (1 << 32) - 2) for v in range(0, 4096, 7)], ())
    chunks = [part for chunk in Cutter(batch, CutRule(5000, 1 << 20)).chunks([rows]) for part in chunk.split_vnodes()]
    texts = [json.dumps(chunk.ranges) for chunk in chunks]
    assert max(map(len, texts)) < 4500
    covered = [vnode for chunk in chunks for first, last, *_ in chunk.ranges for vnode in range(first, last + 1)]
    assert covered == list(sender.vnodes)
    assert sum(chunk.rows.num_rows for chunk in chunks) == rows.num_rows


def test_a_part_behind_the_last_row_of_a_first_round_moves_nothing():
    receiver, sender = Receiver(), Sender()
    batch = sender.batch(ROUND, 3, is_last=False)
    rows = sender.rows(batch, [(0, 3), (0, 3)], ())
    (chunk,) = Cutter(batch, CutRule(10, 1000)).chunks([rows])
    receiver.take(chunk)
    left, right = chunk.split_held(receiver.held(VNODES))
    assert left.rows.num_rows == 2 and not right.rows.num_rows
    assert [part.ranges for part in right.split_vnodes()] == [[], [(1, 2, 1, 0, 1, 0), (5, 5, 1, 0, 1, 0)]]
    later = Sender()
    later.mark, later.round = 3, 1
    later.positions = {v: Position(1, b"k", 2, (3, 1) if v == 0 else (1, 0)) for v in VNODES}
    gap = next(iter(Cutter(later.batch(ROUND, 3, is_last=False), CutRule(10, 1000)).chunks([rows])))
    with pytest.raises(sl.Conflict):
        Receiver().take(gap)
