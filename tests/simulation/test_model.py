"""A table against a plain dict: random writes, folds, packs, evolutions, expiries, restores, purges, vacuums and pins,
read back at any seq.

Two handles work on one lake, as two processes would. A failure prints the seed that replays it.
"""

import datetime as dt
import shutil
import tempfile
from functools import partial
from typing import ClassVar

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import strandline as sl
from support import Oracle, claimed_files, data_files, refused

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

# The time column's type, with what it may hold, and the moments before which rows may expire.
CLOCK = [dt.datetime(1, 1, 1), *(dt.datetime(2026, 1, day, hour) for day in (1, 2, 3) for hour in (0, 23))]
CLOCKS = {
    "date": (pa.date32(), sorted({moment.date() for moment in CLOCK})),
    "zoned": (pa.timestamp("us", tz="UTC"), [moment.replace(tzinfo=UTC) for moment in CLOCK]),
    "plain": (pa.timestamp("us"), CLOCK),
}
HORIZONS = [
    dt.datetime(1, 1, 1),
    dt.datetime(2026, 1, 1, 23),
    dt.datetime(2026, 1, 2, 0, 0, 0, 1),
    dt.datetime(2026, 1, 2, 12, tzinfo=dt.timezone(dt.timedelta(hours=13))),
    dt.date(2026, 1, 3),
    dt.datetime(2026, 2, 1),
]
SETTINGS = [
    {"compact_ratio": 0},
    {"compact_ratio": 5.0, "compact_files": 2},
    {"compact_ratio": 1e9, "compact_files": 1},
    {"compact_ratio": 0.2, "compact_files": 200},
]


class TableModel(RuleBasedStateMachine):
    """`key`, `version` and `clock` come from a subclass; without a key rows are only appended."""

    key: ClassVar[list] = []
    version: str | None = None
    clock: str | None = None

    @initialize(vnodes=st.sampled_from([1, 2, 8]))
    def open(self, vnodes):
        self.folder = tempfile.mkdtemp(prefix="strandline-model-")
        columns = [(name, kind) for name, kind, _ in self.key]
        columns += [("rev", pa.int8())] if self.version else []
        columns += [("at", CLOCKS[self.clock][0])] if self.clock else []
        columns += [("num", WIDTHS[0]), ("text", pa.string())]
        lake = sl.Lake(self.folder)
        names = [name for name, _, _ in self.key]
        time = "at" if self.clock else None
        lake.create_table("t", pa.schema(columns), key=names, version=self.version, vnodes=vnodes, time=time)
        self.handles = [lake.table("t"), sl.Lake(self.folder).table("t")]
        self.names = names
        self.columns = [name for name, _ in columns]
        self.width = 0
        self.added = 0
        self.oracle = Oracle(names, self.version)
        self.appended = []
        # For each seq the rows, expired ones as well, and the horizon before which they are.
        self.states = [([], None)]
        self.changes = []
        self.tokens = {}
        self.pins = {}
        # Every seq from here on has to be readable.
        self.lowest = 0

    def teardown(self):
        if hasattr(self, "folder"):
            for table in self.handles:
                self.check(table, None)
            fresh = sl.Lake(self.folder).table("t")
            for seq in range(len(self.states)):
                self.check(fresh, seq)
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- what may happen: writes

    @rule(data=st.data(), handle=st.integers(0, 1), count=st.integers(1, 5))
    def write(self, data, handle, count):
        rows = [self.row(data) for _ in range(count)]
        table = self.handles[handle]
        if self.key:
            commit = table.upsert(rows, missing="null")
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
        write = partial(table.upsert, missing="null") if self.key else table.append
        commit = write([row], token=token)
        if token in self.tokens:
            # The row may be trimmed or purged by now; the token is not forgotten.
            assert commit in (sl.Commit(self.tokens[token], rows, is_replay=True) for rows in (0, 1))
            return
        assert not commit.is_replay
        self.tokens[token] = commit.seq
        if self.key:
            self.oracle.upsert([row])
        else:
            self.appended.append(row)
        self.committed(commit.seq, "upsert", [row])

    @rule(data=st.data(), handle=st.integers(0, 1))
    def write_nonsense(self, data, handle):
        rows = [self.row(data), {**self.row(data), "num": "nonsense"}]
        with refused(sl.Invalid, row=1, column="num"):
            (self.handles[handle].upsert if self.key else self.handles[handle].append)(rows)

    # --- what may happen: the table's shape

    @rule(handle=st.integers(0, 1))
    def reopen(self, handle):
        self.handles[handle] = sl.Lake(self.folder).table("t")

    @precondition(lambda self: self.added < 3)
    @rule(handle=st.integers(0, 1))
    def add_column(self, handle):
        name = f"extra{self.added}"
        self.added += 1
        self.handles[handle].evolve(pa.schema([(name, pa.string())]))
        self.columns.append(name)
        self.committed(self.head + 1, "evolve", [])

    @precondition(lambda self: self.droppable())
    @rule(data=st.data(), handle=st.integers(0, 1))
    def drop_column(self, data, handle):
        name = data.draw(st.sampled_from(self.droppable()), label="column")
        table = self.handles[handle]
        self.columns.remove(name)
        assert table.drop_column(name).names == self.columns
        self.committed(self.head + 1, "drop", [])
        with refused(sl.Invalid, column=name):
            table.evolve(pa.schema([(name, pa.string())]))

    @precondition(lambda self: self.droppable() and self.added < 6)
    @rule(data=st.data(), handle=st.integers(0, 1))
    def rename_column(self, data, handle):
        old = data.draw(st.sampled_from(self.droppable()), label="column")
        new = f"{old.split('_')[0]}_{self.added}"
        self.added += 1
        self.columns[self.columns.index(old)] = new
        table = self.handles[handle]
        assert table.rename_column(old, new).names == self.columns
        lists = [self.oracle.rows.values(), self.appended, self.changes, *(rows for rows, _ in self.states)]
        for row in (row for rows in lists for row in rows if old in row):
            row[new] = row.pop(old)
        self.committed(self.head + 1, "rename", [])
        with refused(sl.Invalid, column=old):
            table.evolve(pa.schema([(old, pa.string())]))

    def droppable(self):
        return [name for name in self.columns if name.startswith(("extra", "text"))]

    @precondition(lambda self: self.width < 3)
    @rule(handle=st.integers(0, 1))
    def widen(self, handle):
        self.width += 1
        self.handles[handle].evolve(pa.schema([("num", WIDTHS[self.width])]))
        self.committed(self.head + 1, "evolve", [])

    @rule(handle=st.integers(0, 1), chosen=st.sampled_from(SETTINGS))
    def configure(self, handle, chosen):
        table = self.handles[handle]
        before = table.definition.settings
        assert table.configure(**chosen) == before.changed(chosen)
        if table.definition.settings != before:
            self.committed(self.head + 1, "configure", [])

    # --- what may happen: care

    @rule(handle=st.integers(0, 1))
    def fold(self, handle):
        table = self.handles[handle]
        assert table.compact(full=True).upto == table.head
        self.caught_up(table)
        assert table.plan_compaction(full=True).due == ()
        assert table.plan_compaction(full=True).packs == ()
        assert table.compact(full=True).vnodes == 0
        assert table.compact().vnodes == 0
        assert table.head == self.head

    @rule(handle=st.integers(0, 1))
    def fold_what_is_due(self, handle):
        table = self.handles[handle]
        plan = table.plan_compaction()
        report = table.compact()
        # After packing, the statistics say more or less of some vnodes.
        assert plan.packs or report.vnodes == len(plan.due)
        assert report.packed_files >= plan.packed_files
        self.caught_up(table)
        plan = table.plan_compaction()
        assert (plan.due, plan.packs) == ((), ())

    @rule(
        handle=st.integers(0, 1),
        keep=st.sampled_from([0, 0, "1h", None]),
        grace=st.sampled_from([0, 0, "1h", None]),
        dry_run=st.sampled_from([False, False, False, True]),
    )
    def vacuum(self, handle, keep, grace, dry_run):
        table = self.handles[handle]
        before = data_files(table)
        report = table.vacuum(keep=keep, grace=grace, dry_run=dry_run)
        assert all(report.held_by.seq <= seq for seq in self.pins.values())
        if dry_run:
            assert data_files(table) == before
            return
        assert claimed_files(table) <= data_files(table)
        if keep == 0:
            self.lowest = max(self.lowest, min([self.head, *self.pins.values()]))
        if grace is not None and grace != 0:
            assert data_files(table) == before, "nothing has been unneeded for as long as that"
        self.caught_up(table)
        self.check(table, self.lowest)
        # A second one has nothing to do; had it, it would commit for ever.
        version = table.baseline.refresh().version
        assert table.vacuum(keep=keep, grace=grace).deleted_files == 0
        assert (table.head, table.baseline.refresh().version) == (self.head, version)

    @rule(data=st.data(), handle=st.integers(0, 1), name=st.sampled_from(["one", "two"]))
    def pin(self, data, handle, name):
        seq = data.draw(st.integers(0, self.head), label="seq")
        try:
            held = self.handles[handle].pin(seq, name=name)
        except sl.NotRetained:
            assert seq < self.lowest
            return
        assert held.seq == seq
        self.pins[name] = seq
        self.lowest = min(self.lowest, seq)

    @rule(handle=st.integers(0, 1), name=st.sampled_from(["one", "two"]))
    def unpin(self, handle, name):
        self.handles[handle].pins.release(name)
        self.pins.pop(name, None)

    @rule(handle=st.integers(0, 1), before=st.sampled_from(HORIZONS))
    def expire(self, handle, before):
        table = self.handles[handle]
        if not self.clock or self.version:
            with refused():
                table.expire(before)
            return
        horizon, current = _micros(before), self.states[-1][1]
        seq = table.expire(before)
        if current is not None and horizon <= current:
            assert seq is None
            return
        self.committed(seq, "expire", [], horizon)

    @rule(data=st.data(), handle=st.integers(0, 1))
    def restore(self, data, handle):
        table = self.handles[handle]
        seq = data.draw(st.integers(0, self.head), label="at")
        if not self.key or self.version:
            with refused() if seq >= self.lowest else pytest.raises(sl.StrandlineError):
                table.restore(seq)
            return
        try:
            commit = table.restore(seq)
        except sl.NotRetained:
            assert seq < self.lowest
            return
        key_of = self.oracle.key_of
        changed = {key_of(change): change for change in self.changes if change["_seq"] > seq}
        if not changed:
            assert commit == sl.Commit(self.head, 0)
            return
        then = {key_of(row): row for row in visible_rows(*self.states[seq])}
        upserts = [then[key] for key in changed if key in then]
        deletes = [{name: change[name] for name in self.names} for k, change in changed.items() if k not in then]
        self.oracle.delete(deletes)
        self.oracle.upsert(upserts)
        self.committed(commit.seq, "upsert", upserts)
        self.changes += [{**key, "_seq": commit.seq, "_op": "delete"} for key in deletes]
        visible = visible_rows(self.states[seq][0], self.states[-1][1])
        assert normal(visible_rows(*self.states[-1]), self.columns) == normal(visible, self.columns)

    @precondition(lambda self: self.key)
    @rule(data=st.data(), handle=st.integers(0, 1), count=st.integers(1, 2))
    def purge(self, data, handle, count):
        keys = [self.key_values(data) for _ in range(count)]
        table = self.handles[handle]
        report = table.purge(keys)
        gone = {self.oracle.key_of(key): key for key in keys}
        assert report.seq == self.head + 1
        assert report.is_delete_kept == bool(self.pins)
        self.oracle.delete(keys)
        self.changes = [change for change in self.changes if self.oracle.key_of(change) not in gone]
        self.states = [
            ([row for row in rows if self.oracle.key_of(row) not in gone], horizon) for rows, horizon in self.states
        ]
        self.committed(report.seq, "delete", gone.values() if report.is_delete_kept else [])
        # What the baseline held before is given up, pinned or not.
        self.lowest = max(self.lowest, *table.baseline.refresh().marks)
        self.caught_up(table)

    # --- what may be read

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
        assert normal(found.to_pylist(), names) == normal(visible_rows(*self.states[-1]), names)

    @rule(handle=st.integers(0, 1), data=st.data())
    def read_changes(self, handle, data):
        after = data.draw(st.integers(0, self.head), label="after")
        upto = data.draw(st.integers(after, self.head), label="upto")
        table = self.handles[handle]
        try:
            found = table.changes(after, upto).to_pylist()
        except sl.NotRetained as error:
            assert after < min(self.lowest, error.fields["oldest"])
            table.changes(error.fields["oldest"])
            return
        assert [row["_seq"] for row in found] == sorted(row["_seq"] for row in found)
        wanted = [change for change in self.changes if after < change["_seq"] <= upto]
        names = ["_seq", "_op", *self.columns]
        assert normal(found, names) == normal(wanted, names)

    # --- what must hold

    @property
    def head(self):
        return len(self.states) - 1

    def committed(self, seq, op, rows, horizon=None):
        assert seq == self.head + 1
        horizon = self.states[-1][1] if horizon is None else horizon
        self.states.append((self.oracle.copy() if self.key else list(self.appended), horizon))
        self.changes += [{**row, "_seq": seq, "_op": op} for row in rows]

    def caught_up(self, table):
        """Commits that change no row have taken the numbers up to the table's head."""
        assert table.head >= self.head
        self.states += [self.states[-1]] * (table.head - self.head)

    def check(self, table, seq):
        try:
            found = table.to_arrow(at=seq)
        except sl.NotRetained as error:
            oldest = error.fields["oldest"]
            assert seq is not None
            assert seq < min(oldest, self.lowest, table.oldest)
            assert oldest == table.oldest
            self.check_rows(table.to_arrow(at=oldest), oldest)
            return
        assert seq is None or seq >= table.oldest
        self.check_rows(found, -1 if seq is None else seq)

    def check_rows(self, found, seq):
        assert found.schema.names == self.columns
        assert normal(found.to_pylist(), self.columns) == normal(visible_rows(*self.states[seq]), self.columns)

    # --- what is drawn

    def key_values(self, data):
        return {name: data.draw(st.sampled_from(values), label=name) for name, _, values in self.key}

    def row(self, data):
        row = self.key_values(data)
        if self.version:
            row["rev"] = data.draw(st.integers(-1, 2), label="rev")
        if self.clock:
            row["at"] = data.draw(st.sampled_from([None, *CLOCKS[self.clock][1]]), label="at")
        bound = 2 ** (8 * 2**self.width - 1)
        row["num"] = data.draw(st.one_of(st.none(), st.integers(-bound, bound - 1)), label="num")
        for name in self.droppable():
            if name == "text" or data.draw(st.booleans(), label=f"with {name}"):
                row[name] = data.draw(st.one_of(st.none(), st.text(max_size=3)), label=name)
        return row


def visible_rows(rows, horizon):
    """The rows that are not expired; those without a time never are."""
    return [row for row in rows if horizon is None or row["at"] is None or _micros(row["at"]) >= horizon]


def _micros(moment):
    if not isinstance(moment, dt.datetime):
        moment = dt.datetime(moment.year, moment.month, moment.day)
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)


def normal(rows, names):
    """Rows in an order and a form of their own; a column that a row lacks is null."""
    return sorted((tuple(_plain(row.get(name)) for name in names) for row in rows), key=repr)


def _plain(value):
    return value.isoformat() if isinstance(value, dt.datetime) else value


# The key, the version column, the type of the time column.
CASES = [
    ("int64", None, "zoned"),
    ("string", None, "plain"),
    ("string and int32", None, "date"),
    ("date", None, "date"),
    ("timestamp with zone", None, "zoned"),
    ("timestamp without zone", None, "plain"),
    ("binary", None, None),
    ("bool and int16", None, "date"),
    ("int64", "rev", None),
    ("string and int32", "rev", "zoned"),
    ("timestamp without zone", "rev", None),
    (None, None, "plain"),
]


def machine(key, version, clock):
    return type("Model", (TableModel,), {"key": KEYS.get(key, []), "version": version, "clock": clock})


@pytest.mark.parametrize(("key", "version", "clock"), CASES, ids=lambda v: v or "none")
def test_a_table_is_what_a_dict_would_be_at_every_seq(key, version, clock):
    run_state_machine_as_test(
        machine(key, version, clock),
        settings=settings(max_examples=14, stateful_step_count=20, print_blob=True, deadline=None),
    )


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("key", "version", "clock"), CASES, ids=lambda v: v or "none")
def test_a_table_is_what_a_dict_would_be_for_a_long_time(key, version, clock):
    run_state_machine_as_test(
        machine(key, version, clock),
        settings=settings(max_examples=300, stateful_step_count=60, print_blob=True, deadline=None),
    )
