"""A catch-up and a round of a backfill: after both, the destination holds the table at their seq up to the round's key.

The destination is strict. A row of the table must not be there yet, and a change must find the row that the table had
just before it. Five broken ways to make a round are each noticed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from folding import fold_vnodes
from strandline.consumers.feed import Feed, KeySpan
from strandline.model.key_order import encode_key, is_at_most
from strandline.sinks.outgoing import Outgoing
from strandline.tables.key_cuts import key_types
from strandline.tables.packing import Bundle, pack_files

COMPOSITE = pa.schema(
    [pa.field("city", pa.string(), False), pa.field("n", pa.int32(), False), pa.field("value", pa.int64())]
)
CITIES = ["", "a", "a\x01", "b", "é"]
KEYS = [(city, n) for city in CITIES for n in (-2, 0, 7)]
VNODES = (0, 1)


class Wrong(Exception):
    """The destination refused a row."""


@dataclass
class Destination:
    """The rows of one vnode, with the table as it was at each seq to compare them with."""

    table: sl.Table
    rows: dict[tuple[str, int], int] = field(default_factory=dict)

    def take(self, row, is_history):
        key = row["city"], row["n"]
        if is_history:
            if key in self.rows:
                raise Wrong(f"{key} is there already")
        elif self.rows.get(key) != self._value_before(key, row["_seq"]):
            raise Wrong(f"{key} was {self.rows.get(key)} before {row}")
        if row["_op"] == "delete":
            self.rows.pop(key, None)
        else:
            self.rows[key] = row["value"]

    def _value_before(self, key, seq):
        return rows_at(self.table, seq - 1).get(key)


def rows_at(table, seq, vnode=None):
    merge_rows = table.to_arrow(at=seq).to_pylist()
    found = {(row["city"], row["n"]): row["value"] for row in merge_rows}
    return found if vnode is None else {key: value for key, value in found.items() if vnode_of_key(key) == vnode}


def vnode_of_key(key):
    from strandline.model.keys import hash_keys, vnode_of

    columns = [pa.chunked_array([pa.array([key[0]])]), pa.chunked_array([pa.array([key[1]], pa.int32())])]
    return vnode_of(int(hash_keys(columns)[0].as_py()), len(VNODES))


@dataclass
class Backfill:
    """One vnode's backfill, and how a broken variant of it differs."""

    table: sl.Table
    vnode: int
    variant: str = ""
    seq: int = 0
    position: bytes = b""
    is_done: bool = False
    to: Destination = field(init=False)

    def __post_init__(self):
        self.to = Destination(self.table)

    def round(self, upto, bound):
        """Catch up with the changes of the delivered keys, then deliver the rows of the next ones."""
        after = max(0, self.seq - 1) if self.variant == "stale seq" else self.seq
        until = bound if self.variant == "new position" and not self.is_done else self.position
        changes = []
        if self.is_done:
            changes = self._feed(after, upto, None)
        elif until and not (self.variant == "done first" and bound is None):
            changes = self._feed(after, upto, KeySpan(end=until))
        if self.variant == "less":
            changes = [row for row in changes if self.is_done or self._key(row) != self.position]
        for row in changes:
            self.to.take(row, is_history=False)
        if not self.is_done:
            seq = self.seq if self.variant == "old snapshot" else upto
            for row in self._feed(seq, seq, KeySpan(self.position, bound), is_snapshot=True):
                self.to.take(row, is_history=True)
            self.is_done = bound is None
            self.position = self.position if bound is None else bound
        self.seq = upto

    def _feed(self, after, upto, span, *, is_snapshot=False):
        log = self.table.log.refresh()
        outgoing = Outgoing.of(log.definition)
        if after == upto and not is_snapshot:
            return []
        made = Feed(
            self.table,
            outgoing,
            log,
            after,
            upto,
            (self.vnode,),
            is_snapshot=is_snapshot,
            is_ordered=True,
            span=span,
        )
        with made.hold_files(), made.batches() as batches:
            return [row for batch in batches for row in batch.to_pylist()]

    def _key(self, row):
        return encode_key((row["city"], row["n"]), key_types(self.table.definition))

    def check(self):
        expected = rows_at(self.table, self.seq, self.vnode)
        kinds = key_types(self.table.definition)
        if not self.is_done:
            reached = {key for key in expected if self.position and is_at_most(encode_key(key, kinds), self.position)}
            expected = {key: value for key, value in expected.items() if key in reached}
        if self.to.rows != expected:
            raise Wrong(f"{self.to.rows} instead of {expected}")


COMMIT = st.tuples(
    st.just("commit"),
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=6, unique=True),
    st.lists(st.sampled_from(KEYS), max_size=2, unique=True),
)
ROUND = st.tuples(st.just("round"), st.floats(0, 1), st.sampled_from([*KEYS, *[(city,) for city in CITIES], None]))
CARE = st.tuples(st.sampled_from(["fold", "fold one", "pack"]), st.none(), st.none())
STEPS = st.lists(COMMIT | ROUND | ROUND | CARE, min_size=4, max_size=14)


def run(make_table, steps, variant=""):
    table = make_table(COMPOSITE, key=["city", "n"], vnodes=len(VNODES))
    kinds = key_types(table.definition)
    backfills = [Backfill(table, vnode, variant) for vnode in VNODES]
    number = 0
    for what, one, two in [*steps, ("round", 1.0, None), ("commit", KEYS[:3], []), ("round", 1.0, None)]:
        if what == "commit":
            number += 1
            gone = [key for key in two if key not in one]
            table.upsert([{"city": city, "n": n, "value": number} for city, n in one])
            if gone:
                table.delete(pa.table({"city": [c for c, _ in gone], "n": pa.array([n for _, n in gone], pa.int32())}))
        elif what == "round":
            for each in backfills:
                upto = each.seq + round((table.head - each.seq) * one)
                bound = None if two is None else encode_key(two, kinds)
                if bound is not None and each.position and is_at_most(bound, each.position):
                    continue
                each.round(upto, bound)
                each.check()
        elif what == "pack":
            files = table.log.refresh().by_seq
            if len(files) > 1:
                pack_files(table.log, [Bundle(tuple(files), 1)])
        elif table.head:
            fold_vnodes(table, VNODES if what == "fold" else VNODES[:1])
    for each in backfills:
        assert each.is_done and each.to.rows == rows_at(table, table.head, each.vnode)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_a_destination_is_the_table_up_to_its_position(make_table, steps):
    run(make_table, steps)


# Histories in which every broken variant shows.
TELLING = [
    ("commit", KEYS, []),
    ("round", 1.0, ("a", 0)),
    ("commit", [("a", 0), ("a", -2), ("b", 0), ("b", 7), ("é", 0)], [("", 0), ("é", 7)]),
    ("fold", None, None),
    ("round", 1.0, ("a\x01",)),
    ("commit", [("", -2), ("", 7), ("a\x01", 7), ("a\x01", 0), ("é", -2)], [("a\x01", -2), ("a", 0)]),
    ("round", 0.0, ("b", 0)),
    ("commit", [("a", -2), ("b", 0), ("b", -2), ("é", 0)], [("a", 7)]),
    ("round", 1.0, None),
]


@pytest.mark.parametrize("variant", ["", "old snapshot", "new position", "less", "done first", "stale seq"])
def test_each_broken_variant_is_noticed(make_table, variant):
    if not variant:
        run(make_table, TELLING)
        return
    with pytest.raises((Wrong, AssertionError)):
        run(make_table, TELLING, variant)


def test_a_round_is_the_same_on_spark(spark, make_table):
    table = make_table(COMPOSITE, key=["city", "n"], vnodes=2)
    table.spark = spark
    table.upsert([{"city": city, "n": n, "value": 1} for city, n in KEYS])
    table.compact(full=True)
    table.upsert([{"city": city, "n": n, "value": 2} for city, n in KEYS[3:9]])
    table.delete(pa.table({"city": ["a"], "n": pa.array([7], pa.int32())}))
    kinds = key_types(table.definition)
    log = table.log.refresh()
    for start, end in [(b"", ("a", 0)), (("a", 0), ("b",)), (("a\x01",), None)]:
        span = KeySpan(start and encode_key(start, kinds), end and encode_key(end, kinds))
        made = Feed(table, Outgoing.of(log.definition), log, 3, 3, (0, 1), is_snapshot=True, is_ordered=True, span=span)
        with made.hold_files(), made.batches() as batches:
            on_driver = [row for batch in batches for row in batch.to_pylist()]
        on_spark = [row.asDict() for row in made.frame(spark).collect()]
        assert sorted(map(repr, on_driver)) == sorted(map(repr, on_spark)) and on_driver
