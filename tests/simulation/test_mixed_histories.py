"""Base commits, packs, large commits laid out by vnode and uneven folds in one history, against a dict.

These rules come on top of those of `test_model`. After each step some seqs are read in every way that needs no Spark.
"""

import random

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test
from pyspark.sql import datasource as ds
from test_model import KEYS, TableModel, normal, visible_rows

import strandline as sl
from folding import fold_vnodes
from sourcing import make_source, read_all, spark_struct
from strandline.engines.lanes import files_of
from strandline.engines.log_lane import LogLane
from strandline.jobs.doctor.examine import examine
from strandline.model.change import HASH, OP, ROW
from strandline.model.keys import hash_keys, vnode_of
from strandline.spark_source import slices
from strandline.spark_source.rows import Output, read_changes
from strandline.spark_source.slices import Slice
from strandline.storage.snapshot import schema_id_of
from strandline.tables.packing import Bundle, pack_files
from support import Oracle


class MixedModel(TableModel):
    """A table whose files come from everywhere."""

    @rule(data=st.data(), handle=st.integers(0, 1), count=st.integers(1, 8), tasks=st.integers(1, 3))
    def write_large(self, data, handle, count, tasks):
        """A commit of Spark's tasks: of upserts, or with deletes among them."""
        table = self.handles[handle]
        upserts = [self.row(data) for _ in range(count)]
        if not self.key:
            self.commit_lanes(table, self.columns_of(table, upserts), "upsert", tasks, data)
            self.appended += upserts
            self.committed(table.head, "upsert", upserts)
            return
        batch = Oracle(self.oracle.key, self.oracle.version)
        batch.upsert(upserts)
        upserts = batch.copy()
        gone = []
        if data.draw(st.booleans(), label="with deletes"):
            keys = {self.oracle.key_of(key): key for key in (self.key_values(data) for _ in range(2))}
            gone = [key for name, key in keys.items() if name not in batch.rows]
            ops = [*["upsert"] * len(upserts), *["delete"] * len(gone)]
            rows = self.columns_of(table, [*upserts, *gone]).append_column(OP, pa.array(ops))
            self.commit_lanes(table, rows, None, tasks, data)
        else:
            self.commit_lanes(table, self.columns_of(table, upserts), "upsert", tasks, data)
        self.oracle.delete(gone)
        self.oracle.upsert(upserts)
        self.committed(table.head, "upsert", upserts)
        self.changes += [{**key, "_seq": self.head, "_op": "delete"} for key in gone]

    def columns_of(self, table, rows):
        schema = pa.schema([field.with_nullable(True) for field in table.schema])
        found = pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema)
        if not self.key:
            return found.append_column(ROW, pa.array(range(len(rows)), pa.int64()))
        return found.append_column(HASH, hash_keys([found.column(name) for name in self.names]))

    def commit_lanes(self, table, rows, op, tasks, data):
        """Rows in some tasks, as Spark spreads them: a vnode is in one task."""
        definition, files = table.definition, []
        budget = data.draw(st.sampled_from([1, 1 << 30]), label="budget")
        lane = LogLane(table.log.storage, table.log.folder, definition, op, False, budget)
        places = range(len(rows))
        if self.key:
            places = [vnode_of(each, definition.vnodes) for each in rows.column(HASH).to_pylist()]
        for task in range(tasks):
            mine = rows.filter(pa.array([place % tasks == task for place in places]))
            found, failure = files_of(r for b in lane(iter(mine.to_batches(2))) for r in b.to_pylist())
            assert failure is None
            files += found
        assert table.log.commit(files, operation="UPSERT").rows == len(rows)

    @precondition(lambda self: self.key and not self.version and not self.clock)
    @rule(data=st.data(), handle=st.integers(0, 1), count=st.integers(1, 3))
    def write_parts_of_rows(self, data, handle, count):
        """Rows without a column, which keep the value of the table."""
        rows = [self.row(data) for _ in range(count)]
        for row in rows:
            for name in self.droppable():
                row.pop(name, None)
        rows = list({self.oracle.key_of(row): row for row in rows}.values())
        kept = [{**self.oracle.rows.get(self.oracle.key_of(row), {}), **row} for row in rows]
        commit = self.handles[handle].upsert(rows, missing="keep")
        self.oracle.upsert(kept)
        self.committed(commit.seq, "upsert", kept)

    @rule(data=st.data(), handle=st.integers(0, 1), size=st.integers(1, 6))
    def pack_some(self, data, handle, size):
        """Packs of any neighbours, also of some files of a commit, and of packs."""
        table = self.handles[handle]
        files = table.log.refresh().by_seq
        if not files:
            return
        bundles, at = [], data.draw(st.integers(0, len(files) - 1), label="first")
        while at < len(files) and len(bundles) < 2:
            schema = schema_id_of(files[at][1])
            some = [pair for pair in files[at : at + size] if schema_id_of(pair[1]) == schema]
            some = files[at : at + len(some)] if files[at : at + len(some)] == some else files[at : at + 1]
            bundles.append(Bundle(tuple(some), 1 + max(file.pack.tier if file.pack else 0 for _, file in some)))
            at += len(some) + data.draw(st.integers(0, 2), label="gap")
        pack_files(table.log, bundles)
        self.caught_up(table)

    @rule(data=st.data(), handle=st.integers(0, 1))
    def fold_some(self, data, handle):
        table = self.handles[handle]
        count = table.definition.vnodes
        vnodes = data.draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True), label="vnodes")
        fold_vnodes(table, vnodes)

    def teardown(self):
        if hasattr(self, "folder"):
            report = examine(self.handles[0].log.storage, deep=True)
            assert [finding for finding in report.findings if finding.severity == "wrong"] == []
        super().teardown()

    # --- what is read after each step

    @invariant()
    def every_way_of_reading_says_the_same(self):
        if not hasattr(self, "oracle"):
            return
        rng = random.Random(len(self.states) * 1000 + self.handles[0].baseline.refresh().version)
        table = rng.choice([*self.handles, None]) or sl.Lake(self.folder).table("t")
        oldest = table.oldest
        seqs = {None, *(rng.randint(oldest, self.head) for _ in "1")}
        for seq in seqs:
            self.check_at(table, seq, rng)
        self.check_changes(table, rng)

    def check_at(self, table, seq, rng):
        self.check(table, seq)
        rows = visible_rows(*self.states[-1 if seq is None else seq])
        assert table.count(at=seq) == len(rows)
        wanted = normal(rows, self.columns)
        number = rng.choice([0, 1, 100])
        names = rng.sample(self.columns, 2)
        some = [row for row in rows if row["num"] is not None and row["num"] >= number]
        found = table.to_arrow(at=seq, where=f"num >= {number}", columns=names)
        assert normal(found.to_pylist(), names) == normal(some, names)
        assert table.count(f"num >= {number}", at=seq) == len(some)
        is_sliced = rng.random() < 0.3
        at = {} if seq is None else {"at": str(seq)}
        slices.TASK_BYTES = rng.choice([1, 1 << 25])
        if is_sliced:
            assert normal(self.read_source(table, (), **at), self.columns) == wanted
        for key in self.some_keys(rng):
            mine = normal([row for row in rows if all(row[n] == v for n, v in key.items())], self.columns)
            where = " AND ".join(f"{name} = {_literal(value)}" for name, value in key.items())
            assert normal(table.to_arrow(at=seq, where=where).to_pylist(), self.columns) == mine
            if not is_sliced:
                continue
            filters = [ds.EqualTo((name,), value) for name, value in key.items()]
            found = self.read_source(table, filters, **at)
            found = [row for row in found if all(row[n] == v for n, v in key.items())]
            assert normal(found, self.columns) == mine

    def some_keys(self, rng):
        if not self.key or self.key[0][0] == "a" or self.key[0][1] not in (pa.int64(), pa.string()):
            return []
        return [{name: rng.choice([v for v in values if v != "a\x00"]) for name, _, values in self.key} for _ in "12"]

    def read_source(self, table, filters, **options):
        reader = make_source(table, **options).reader(spark_struct(table))
        list(reader.pushFilters(list(filters)))
        return read_all(reader, reader.partitions()).to_pylist()

    def check_changes(self, table, rng):
        low = table.log.refresh().trimmed_to
        after = rng.randint(low, self.head)
        upto = rng.randint(after, self.head)
        wanted = [change for change in self.changes if after < change["_seq"] <= upto]
        names = ["_seq", "_op", *self.columns]
        assert normal(table.changes(after, upto).to_pylist(), names) == normal(wanted, names)
        output, count = Output(spark_struct(table, changes=True)), table.definition.vnodes
        cut = rng.randint(0, count)
        parts = [Slice(first, end, count) for first, end in ((0, cut), (cut, count)) if first < end]
        log = table.log.refresh()
        found = [row for p in parts for b in read_changes(table, log, after, upto, p, output) for row in b.to_pylist()]
        assert normal(found, names) == normal(wanted, names)


def _literal(value):
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


CASES = [
    ("int64", None, None),
    ("int64", None, "zoned"),
    ("string", None, "plain"),
    ("int64", "rev", None),
    ("bool and int16", None, "date"),
    (None, None, "plain"),
]


def machine(key, version, clock):
    return type("Mixed", (MixedModel,), {"key": KEYS.get(key, []), "version": version, "clock": clock})


@pytest.mark.parametrize(("key", "version", "clock"), CASES, ids=lambda v: v or "none")
def test_however_a_table_came_about_every_read_of_it_is_right(key, version, clock):
    run_state_machine_as_test(
        machine(key, version, clock),
        settings=settings(max_examples=4, stateful_step_count=15, print_blob=True, deadline=None),
    )


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("key", "version", "clock"), CASES, ids=lambda v: v or "none")
def test_however_a_table_came_about_every_read_of_it_is_right_for_a_long_time(key, version, clock):
    run_state_machine_as_test(
        machine(key, version, clock),
        settings=settings(max_examples=200, stateful_step_count=40, print_blob=True, deadline=None),
    )
