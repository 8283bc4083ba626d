"""A table against a plain dict: random writes, folds, evolutions and reopenings, read back at any seq.

Two handles work on one lake, as two processes would. A failure prints the seed that replays it.
"""

import datetime as dt
import shutil
import tempfile
from typing import ClassVar

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import strandline as sl
from support import Oracle, refused

UTC = dt.UTC
WIDTHS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
INTS = [-(2**63), -7, -1, 0, 1, 2**31, 2**63 - 1]
TEXTS = ["", "a", "A", "ä", "a\x00", "日本", " ", "it's", "x" * 70, '"', "1"]
DAYS = [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2026, 2, 28), dt.date(9999, 12, 31)]
TIMES = [
    dt.datetime(1, 1, 1),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    dt.datetime(2021, 3, 14, 2, 30),
    dt.datetime(2026, 1, 1, 0, 0, 0, 1),
    dt.datetime(9999, 12, 31, 23, 59, 59),
]

# The key's columns with the values that each may take.
KEYS = {
    "int64": [("k", pa.int64(), INTS)],
    "string": [("k", pa.string(), TEXTS)],
    "string and int32": [("a", pa.string(), ["", "a", "a1", "1"]), ("b", pa.int32(), [-1, 0, 1, 11])],
    "date": [("k", pa.date32(), DAYS)],
    "timestamp with zone": [("k", pa.timestamp("us", tz="UTC"), [t.replace(tzinfo=UTC) for t in TIMES])],
    "timestamp without zone": [("k", pa.timestamp("us"), TIMES)],
    "binary": [("k", pa.binary(), [b"", b"\x00", b"\x00\x00", b"a", b"\xff\xfe", b"A"])],
    "bool and int16": [("a", pa.bool_(), [True, False]), ("b", pa.int16(), [-32768, -1, 0, 1])],
}


class TableModel(RuleBasedStateMachine):
    """`key` and `version` come from a subclass; without a key rows are only appended."""

    key: ClassVar[list] = []
    version: str | None = None

    @initialize(vnodes=st.sampled_from([1, 2, 8]))
    def open(self, vnodes):
        self.folder = tempfile.mkdtemp(prefix="strandline-model-")
        columns = [(name, kind) for name, kind, _ in self.key]
        columns += [("rev", pa.int8())] if self.version else []
        columns += [("num", WIDTHS[0]), ("text", pa.string())]
        lake = sl.Lake(self.folder)
        names = [name for name, _, _ in self.key]
        lake.create_table("t", pa.schema(columns), key=names, version=self.version, vnodes=vnodes)
        self.handles = [lake.table("t"), sl.Lake(self.folder).table("t")]
        self.names = names
        self.columns = [name for name, _ in columns]
        self.width = 0
        self.oracle = Oracle(names, self.version)
        self.appended = []
        self.states = [[]]
        self.changes = []
        self.tokens = {}

    def teardown(self):
        if hasattr(self, "folder"):
            fresh = sl.Lake(self.folder).table("t")
            for seq in range(len(self.states)):
                self.check(fresh, seq)
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- what may happen

    @rule(data=st.data(), handle=st.integers(0, 1), count=st.integers(1, 5))
    def write(self, data, handle, count):
        rows = [self.row(data) for _ in range(count)]
        table = self.handles[handle]
        if self.key:
            commit = table.upsert(rows)
            self.oracle.upsert(rows)
            # What a batch leaves in an empty table is what it writes: of one key, the last of the highest version.
            batch = Oracle(self.oracle.key, self.oracle.version)
            batch.upsert(rows)
            written = batch.copy()
        else:
            commit = table.append(rows)
            self.appended += rows
            written = rows
        assert (commit.rows, commit.is_replay) == (len(written), False)
        self.committed(commit.seq, "upsert", written)

    @precondition(lambda self: self.key)
    @rule(data=st.data(), handle=st.integers(0, 1), count=st.integers(1, 3))
    def delete(self, data, handle, count):
        keys = [self.key_values(data) for _ in range(count)]
        commit = self.handles[handle].delete(keys)
        self.oracle.delete(keys)
        self.committed(commit.seq, "delete", {self.oracle.key_of(key): key for key in keys}.values())

    @rule(data=st.data(), handle=st.integers(0, 1), token=st.sampled_from("xyz"))
    def write_with_token(self, data, handle, token):
        row = self.row(data)
        table = self.handles[handle]
        commit = (table.upsert if self.key else table.append)([row], token=token)
        if token in self.tokens:
            assert commit == sl.Commit(self.tokens[token], 1, is_replay=True)
            return
        assert not commit.is_replay
        self.tokens[token] = commit.seq
        if self.key:
            self.oracle.upsert([row])
        else:
            self.appended.append(row)
        self.committed(commit.seq, "upsert", [row])

    @rule(handle=st.integers(0, 1))
    def fold(self, handle):
        assert self.handles[handle].compact(full=True).upto == self.head

    @rule(handle=st.integers(0, 1))
    def reopen(self, handle):
        self.handles[handle] = sl.Lake(self.folder).table("t")

    @precondition(lambda self: len(self.columns) < 7)
    @rule(handle=st.integers(0, 1))
    def add_column(self, handle):
        name = f"extra{len(self.columns)}"
        self.handles[handle].evolve(pa.schema([(name, pa.string())]))
        self.columns.append(name)
        self.committed(self.head + 1, "evolve", [])

    @precondition(lambda self: self.width < 3)
    @rule(handle=st.integers(0, 1))
    def widen(self, handle):
        self.width += 1
        self.handles[handle].evolve(pa.schema([("num", WIDTHS[self.width])]))
        self.committed(self.head + 1, "evolve", [])

    @rule(data=st.data(), handle=st.integers(0, 1))
    def write_nonsense(self, data, handle):
        rows = [self.row(data), {**self.row(data), "num": "nonsense"}]
        with refused(sl.Invalid, row=1, column="num"):
            (self.handles[handle].upsert if self.key else self.handles[handle].append)(rows)

    @rule(handle=st.integers(0, 1), data=st.data())
    def read(self, handle, data):
        seq = data.draw(st.integers(0, self.head), label="seq")
        self.check(self.handles[handle], seq)

    @rule(handle=st.integers(0, 1))
    def read_head(self, handle):
        assert self.handles[handle].head == self.head
        self.check(self.handles[handle], None)

    @rule(handle=st.integers(0, 1), data=st.data())
    def read_some_columns(self, handle, data):
        names = data.draw(st.lists(st.sampled_from(self.columns), min_size=1, unique=True), label="columns")
        found = self.handles[handle].to_arrow(columns=names)
        assert found.column_names == names
        assert normal(found.to_pylist(), names) == normal(self.states[-1], names)

    @rule(handle=st.integers(0, 1), data=st.data())
    def read_changes(self, handle, data):
        after = data.draw(st.integers(0, self.head), label="after")
        upto = data.draw(st.integers(after, self.head), label="upto")
        found = self.handles[handle].changes(after, upto).to_pylist()
        assert [row["_seq"] for row in found] == sorted(row["_seq"] for row in found)
        wanted = [change for change in self.changes if after < change["_seq"] <= upto]
        names = ["_seq", "_op", *self.columns]
        assert normal(found, names) == normal(wanted, names)

    # --- what must hold

    @property
    def head(self):
        return len(self.states) - 1

    def committed(self, seq, op, rows):
        assert seq == self.head + 1
        self.states.append(self.oracle.copy() if self.key else list(self.appended))
        self.changes += [{**row, "_seq": seq, "_op": op} for row in rows]

    def check(self, table, seq):
        found = table.to_arrow(at=seq)
        assert found.schema.names == self.columns
        assert normal(found.to_pylist(), self.columns) == normal(self.states[-1 if seq is None else seq], self.columns)

    # --- what is drawn

    def key_values(self, data):
        return {name: data.draw(st.sampled_from(values), label=name) for name, _, values in self.key}

    def row(self, data):
        row = self.key_values(data)
        if self.version:
            row["rev"] = data.draw(st.integers(-1, 2), label="rev")
        bound = 2 ** (8 * 2**self.width - 1)
        row["num"] = data.draw(st.one_of(st.none(), st.integers(-bound, bound - 1)), label="num")
        row["text"] = data.draw(st.one_of(st.none(), st.text(max_size=4)), label="text")
        for name in self.columns:
            if name.startswith("extra") and data.draw(st.booleans(), label=f"with {name}"):
                row[name] = data.draw(st.text(max_size=2), label=name)
        return row


def normal(rows, names):
    """Rows in an order and a form of their own; a column that a row lacks is null."""
    return sorted((tuple(_plain(row.get(name)) for name in names) for row in rows), key=repr)


def _plain(value):
    return value.isoformat() if isinstance(value, dt.datetime) else value


CASES = [
    *((name, None) for name in KEYS),
    ("int64", "rev"),
    ("string and int32", "rev"),
    ("timestamp without zone", "rev"),
    (None, None),
]


@pytest.mark.parametrize(("key", "version"), CASES, ids=lambda v: v or "none")
def test_a_table_is_what_a_dict_would_be_at_every_seq(key, version):
    machine = type("Model", (TableModel,), {"key": KEYS.get(key, []), "version": version})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=18, stateful_step_count=20, print_blob=True, deadline=None)
    )


@pytest.mark.soak
@pytest.mark.parametrize(("key", "version"), CASES, ids=lambda v: v or "none")
def test_a_table_is_what_a_dict_would_be_for_a_long_time(key, version):
    machine = type("Model", (TableModel,), {"key": KEYS.get(key, []), "version": version})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=300, stateful_step_count=60, print_blob=True, deadline=None)
    )
