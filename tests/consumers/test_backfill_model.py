"""A backfill under any course of events, against a strict destination.

The destination takes no row of the history twice, and no change that does not find the row from before it. A repeated
work must have the same rows. After every step, the rows of each vnode are those of the table at its mark, up to its
position. In the end the destination is the table, after a bounded number of rounds."""

import datetime as dt
import itertools
import shutil
import tempfile
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import update

import strandline as sl
from backfills import small_rounds
from forks import Interrupted, at_crash_points
from strandline.consumers.contract import LaneEnd, LaneStart, Receipt
from strandline.consumers.log_consumer import LogConsumer
from strandline.consumers.loop import run_marked
from strandline.consumers.plan import plan_marked
from strandline.consumers.tally import count_rows
from strandline.consumers.work import ROUND, SNAPSHOT
from strandline.model.key_order import encode_key, is_at_most
from strandline.model.keys import hash_keys, vnode_of
from strandline.pipeline import commands, pausing
from strandline.state.leases import leases
from strandline.tables.key_cuts import key_types
from strandline.tables.packing import Bundle, pack_files

SCHEMA = pa.schema(
    [
        pa.field("city", pa.string(), False),
        pa.field("n", pa.int32(), False),
        pa.field("at", pa.timestamp("us")),
        pa.field("value", pa.int64()),
    ]
)
KEYS = [(city, n) for city in ("", "a", "a\x01", "é") for n in (-2, 0, 7, 8)]
VNODES = 4
NAME = "copy"
DAYS = 9


def vnode_of_key(key):
    columns = [pa.chunked_array([pa.array([key[0]])]), pa.chunked_array([pa.array([key[1]], pa.int32())])]
    return vnode_of(int(hash_keys(columns)[0].as_py()), VNODES)


WHERE = {key: vnode_of_key(key) for key in KEYS}


class Wrong(AssertionError):
    """The destination refused something."""


class Model:
    """What the table was after each commit: values, and the day before which rows have expired."""

    def __init__(self):
        self.versions = {0: ({}, 0)}

    def at(self, seq):
        return self.versions[max(each for each in self.versions if each <= seq)]

    def rows_at(self, seq, vnode=None):
        rows, horizon = self.at(seq)
        return {k: v for k, v in rows.items() if v[0] >= horizon and vnode in (None, WHERE[k])}

    def commit(self, seq, rows, horizon):
        self.versions[seq] = rows, horizon


class Strict:
    """A destination that knows every life of its consumer. `effects` are the rows of each work that was applied, with
    the rows that it had before: a work and its mark do not land together."""

    def __init__(self, model):
        self.model = model
        self.lives = {}
        self.effects = {}

    def take(self, life, id_, rows, is_rows):
        rows = [(row["_op"], row["_seq"], (row["city"], row["n"]), row) for row in rows]
        plain = sorted((op, seq, key, row["value"]) for op, seq, key, row in rows)
        if id_ in self.effects:
            if self.effects[id_][0] != plain:
                raise Wrong(f"a repeated work has other rows: {plain} instead of {self.effects[id_][0]}")
            return
        held = self.lives.setdefault(life, {})
        self.effects[id_] = plain, dict(held)
        for op, seq, key, row in rows:
            if is_rows:
                if key in held:
                    raise Wrong(f"{key} is there already")
            else:
                before, horizon = self.model.at(seq - 1)
                known, was = before.get(key), held.get(key)
                # A row that expired before its round never came.
                if was != known and not (was is None and known[0] < horizon):
                    raise Wrong(f"{key} was {was} before seq {seq}, and the table had {known}")
            held.pop(key, None)
            if op == "upsert":
                held[key] = (row["at"].day, row["value"])


class Copy(LogConsumer):
    kind = "strict copy"
    lanes = 2

    def __init__(self, to):
        super().__init__(NAME, "items")
        self.to = to
        self.fails = None
        self.left = None
        self.stop = threading.Event()
        self.life = ""

    @property
    def destination(self):
        return "memory"

    def prepare(self, work, record, producer):
        self.life = record.generation
        return [LaneStart() for _ in work.lanes]

    def run(self, work):
        tally = {}
        with work.batches() as batches:
            rows = [row for batch in count_rows(batches, tally) for row in batch.to_pylist()]
        receipt = Receipt(rows=len(rows))
        for lane, intent in zip(work.lanes, work.intents, strict=True):
            if self.fails in lane:
                receipt.ends[lane] = LaneEnd(error=sl.Unavailable("not now"))
                continue
            mine = [row for row in rows if row["_vnode"] in lane]
            self.to.take(self.life, intent.id, mine, work.source in (ROUND, SNAPSHOT))
            receipt.ends[lane] = LaneEnd(tally={v: count for v, count in tally.items() if v in lane})
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                self.stop.set()
        return receipt


keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=6, unique=True)


class Life(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        small_rounds(self.patch, rows=3, table=2)
        self.patch.setattr("strandline.consumers.ranges.LANE_ROWS", 1)
        self.folder = Path(tempfile.mkdtemp(prefix="strandline-model-"))
        self.model = Model()
        self.to = Strict(self.model)
        self.values = itertools.count(1)
        self.lakes = []
        self.rounds = {}
        self.seen = {}
        lake = sl.Lake(self.folder / "lake")
        lake.create_table("items", SCHEMA, key=["city", "n"], vnodes=VNODES, time="at", compact_ratio=1e9)
        self.kinds = key_types(lake.table("items").definition)
        self.takes_over()

    # --- steps ----------------------------------------------------------------------------------------------

    @initialize()
    def fill(self):
        self.commit(KEYS[::2], [], 5)

    @rule(puts=keys, drops=st.lists(st.sampled_from(KEYS), max_size=3, unique=True), day=st.integers(1, DAYS))
    def commit(self, puts, drops, day):
        rows = dict(self.model.at(self.items.head)[0])
        made = {key: (day, next(self.values)) for key in puts}
        table = [
            {"city": city, "n": n, "at": dt.datetime(2020, 1, day), "value": value}
            for (city, n), (day, value) in made.items()
        ]
        seq = self.items.upsert(pa.Table.from_pylist(table, SCHEMA)).seq
        rows = {**rows, **made}
        self.model.commit(seq, rows, self.horizon)
        gone = [key for key in drops if key not in puts]
        if gone:
            named = pa.Table.from_pylist([{"city": city, "n": n} for city, n in gone], SCHEMA.remove(3).remove(2))
            seq = self.items.delete(named).seq
            self.model.commit(seq, {key: row for key, row in rows.items() if key not in gone}, self.horizon)

    @rule(works=st.integers(1, 5))
    def tick_some(self, works):
        """A runner that is told to end after some works."""
        self.tick(left=works)

    @rule(passes=st.integers(1, 70))
    def crash(self, passes):
        left = itertools.count(1)

        def here(name):
            if next(left) == passes:
                raise Interrupted

        self.tick(here=here)

    @rule(vnode=st.integers(0, VNODES - 1))
    def tick_with_a_lane_that_fails(self, vnode):
        self.tick(fails=vnode)

    @rule()
    def takes_over(self):
        """Another runner, with a lake of its own."""
        lake = sl.Lake(self.folder / "lake")
        self.consumer = Copy(self.to)
        lake.consumer(self.consumer)
        self.lakes.append(lake)
        self.lake, self.items = lake, lake.table("items")

    @rule(is_paused=st.booleans())
    def pauses(self, is_paused):
        if self.known.consumer is not None:
            (pausing.pause if is_paused else pausing.resume)(self.lake, NAME)

    @rule(is_stopped=st.booleans())
    def stops_its_history(self, is_stopped):
        self.lake.state.rates.set_stopped(NAME, is_stopped)

    @rule(rate=st.sampled_from([None, 1e3, 1e6]))
    def rate(self, rate):
        self.lake.state.rates.set_rate(NAME, rate, None)

    @rule()
    def fold(self):
        self.items.compact(full=True)

    @rule()
    def pack(self):
        files = self.items.log.refresh().by_seq
        if len(files) > 1:
            pack_files(self.items.log, [Bundle(tuple(files), 1)])

    @rule()
    def trim(self):
        self.items.vacuum(keep=0, grace=0)

    @rule(day=st.integers(1, DAYS))
    def expire(self, day):
        """Without asking the consumers, as if it had been decided before they began."""
        if day > self.horizon:
            rows, _ = self.model.at(self.items.head)
            seq = self.items.log.expire(int(dt.datetime(2020, 1, day, tzinfo=dt.UTC).timestamp() * 1e6), rows=1)
            if seq is not None:
                self.model.commit(seq, rows, day)

    @precondition(lambda self: self.known.consumer is not None)
    @rule()
    def restart(self):
        commands.reset(self.lake, NAME)

    # --- helpers --------------------------------------------------------------------------------------------

    @property
    def horizon(self):
        return self.model.at(self.items.head)[1]

    @property
    def known(self):
        return self.lake.consumer_state(NAME)

    def tick(self, *, left=None, fails=None, here=lambda name: None):
        consumer = self.lake.consumers[NAME]
        consumer.left, consumer.fails, consumer.stop = left, fails, threading.Event()
        runner = threading.get_ident()

        def mine(name):
            # A lease is renewed by a thread of its own.
            if threading.get_ident() == runner:
                here(name)

        with at_crash_points(mine):
            try:
                plan = plan_marked(self.lake, NAME, self.known)
                report = run_marked(self.lake, plan, stop=consumer.stop)
            except Interrupted:
                with self.lake.state.database.transaction() as connection:
                    connection.execute(update(leases).values(owner=None, expires_s=0.0))
                return
        for error in report.errors:
            assert fails is not None and type(error) is sl.Unavailable, error

    @invariant()
    def the_destination_is_the_table_up_to_its_positions(self):
        known = self.known
        if known.consumer is None:
            return
        life = known.consumer.generation
        whole = self.to.lives.get(life, {})
        horizon = self.horizon
        open_ = {intent.id: intent for intent in known.intents}
        for vnode in range(VNODES):
            mark, at = known.marks.get(vnode, 0), known.positions.get(vnode)
            held = whole
            for id_, intent in open_.items():
                if vnode in intent.vnodes and id_ in self.to.effects:
                    held = self.to.effects[id_][1]  # its mark has not moved
            found = {key: row for key, row in held.items() if WHERE[key] == vnode and row[0] >= horizon}
            expected = self.model.rows_at(mark, vnode) if mark else {}
            if at is not None and not at.is_done:
                expected = {
                    key: row
                    for key, row in expected.items()
                    if at.key and is_at_most(encode_key(key, self.kinds), at.key)
                }
            expected = {key: row for key, row in expected.items() if row[0] >= horizon}
            assert found == expected, (vnode, mark, at)
            if at is not None:
                before = self.seen.get((life, vnode))
                if before is not None:
                    assert (at.round, at.rows, at.share, at.is_done) >= (before.round, 0, 0, False)
                    assert at.share >= before.share and at.rows >= before.rows
                    assert not before.key or not at.key or is_at_most(before.key, at.key)
                self.seen[life, vnode] = at

    def teardown(self):
        try:
            self.lake.state.rates.set_stopped(NAME, False)
            if NAME in self.lake.state.pauses.all():
                pausing.resume(self.lake, NAME)
            for _ in range(3):
                self.tick()
            self.the_destination_is_the_table_up_to_its_positions()
            known = self.known
            assert not known.intents
            assert self.to.lives.get(known.consumer.generation, {}).keys() >= self.model.rows_at(self.items.head).keys()
            assert all(at.is_done and at.round <= 2 * len(KEYS) for at in known.positions.values())
            assert not plan_marked(self.lake, NAME, known).is_due
        finally:
            self.patch.undo()
            for lake in self.lakes:
                if lake.has_state:
                    lake.state.database.close()
            shutil.rmtree(self.folder, ignore_errors=True)


Life.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
test_a_backfill_holds_its_invariant_whatever_happens = Life.TestCase
