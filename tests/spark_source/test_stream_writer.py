"""A stream into a table: each change once, whatever is killed, folded, trimmed or evolved in between."""

import pickle
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

import strandline as sl
from sourcing import Stream, make_source, run_task
from strandline.spark_source import batch_writer as writers
from support import claimed_files, data_files, refused, rows_of


class Task:
    """What a task of a streaming query knows of itself."""

    query = "the-query"

    @staticmethod
    def get():
        return Task()

    def getLocalProperty(self, name):
        return self.query if name == "sql.streaming.queryId" else None

    def partitionId(self):
        return 0


class Query:
    """The changes of one table into another, by the batches of a checkpoint. It may die in each batch."""

    def __init__(self, source, copy, **options):
        self.stream = Stream(source, start="0", **options)
        self.copy = copy
        self.landed = set()
        self.stream.plan()

    def run_batch(self, death=None):
        """Run the next batch; False when there is none. After a death, the next run repeats it."""
        if not self.stream.plan():
            return False
        number = len(self.stream.offsets) - 1
        rows, options = self.stream.run(), {"orderBy": "_seq"}
        if not self.copy.definition.is_keyed:
            rows, options = rows.drop_columns("_op").rename_columns({"_seq": "seq"}), {}
        writer = make_source(self.copy, **options).streamWriter(from_arrow_schema(rows.schema), False)
        side = pc.bit_wise_and(rows.column("id"), 1)
        tasks = [rows.filter(pc.equal(side, each)) for each in (0, 1)]
        messages = [run_task(writer, each) for each in tasks[: 1 if death == "in a task" else 2]]
        if death not in ("in a task", "before the commit"):
            pickle.loads(pickle.dumps(writer)).commit(messages, number)
            self.landed |= {number} if rows.num_rows else set()
        if death:
            self.stream.done.pop()
            self.stream.restart()
        return True


DEATHS = ["in a task", "before the commit", "after the commit"]
CARE = ["compact", "vacuum", "compact copy", "vacuum copy", "configure", "evolve"]
STEPS = st.sampled_from(["upsert", "upsert", "delete", "run", *DEATHS, *CARE])


@settings(max_examples=40)
@given(st.lists(STEPS, max_size=25), st.booleans(), st.sampled_from([1, 4, None]))
def test_a_copy_has_every_change_once(make_table, steps, is_keyed, most):
    source = make_table(key=["id"], vnodes=4)
    columns = source.schema if is_keyed else pa.schema([("seq", pa.int64()), *source.schema])
    copy = make_table(columns, key=["id"] if is_keyed else [], vnodes=2)
    with mock.patch.object(writers, "TaskContext", Task):
        query = Query(source, copy, **({} if most is None else {"maxRowsPerTrigger": str(most)}))
        every = follow(source, copy, query, steps)
        while query.run_batch():
            pass
    writes = [each for each in copy.history() if each.operation in ("WRITE", "UPSERT")]
    assert len(writes) == len(query.landed), "each batch is one commit"
    if is_keyed:
        assert rows_of(copy.to_arrow()) == rows_of(source.to_arrow())
    else:
        names = ["seq", "id", "name"]
        changes = pa.concat_tables([each.select(["_seq", "id", "name"]) for each in every])
        assert rows_of(copy.to_arrow(columns=names)) == rows_of(changes)
    copy.vacuum(grace=0)
    assert claimed_files(copy) == data_files(copy)


def follow(source, copy, query, steps):
    """Do the steps; returns all changes of the source."""
    every, head = [source.changes(after=0)], 0
    for number, step in enumerate(steps):
        if step == "upsert":
            rows = [{"id": (number * k) % 9, "name": f"{number}"} for k in range(1, 4)]
            source.upsert(rows, missing="null")
        elif step == "delete":
            source.delete([number % 9])
        elif step.startswith("compact"):
            (copy if step.endswith("copy") else source).compact(full=True)
        elif step.startswith("vacuum"):
            (copy if step.endswith("copy") else source).vacuum(grace=0, keep=0)
        elif step == "configure":
            # From so many files on, a compaction packs the log.
            for table in (copy, source):
                table.configure(compact_files=1 + number % 4)
        elif step == "evolve":
            for table in (copy, source):
                table.add_column(f"c{number}", "int64")
            query.stream.restart()
        else:
            query.run_batch(None if step == "run" else step)
        if source.head > head:
            every.append(source.changes(after=head))
            head = source.head
    return every


def test_a_batch_with_a_task_that_has_not_ended_is_refused(items, monkeypatch):
    monkeypatch.setattr(writers, "TaskContext", Task)
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]})
    writer = make_source(items).streamWriter(from_arrow_schema(rows.schema), False)
    with refused(sl.Internal):
        writer.commit([run_task(writer, rows), None], 0)
    assert items.head == 0


@pytest.mark.parametrize("batch", [0, 7])
def test_a_batch_that_fails_leaves_no_file_and_may_be_repeated(items, monkeypatch, batch):
    monkeypatch.setattr(writers, "TaskContext", Task)
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]})
    twins = pa.concat_tables([rows, rows])
    writer = make_source(items).streamWriter(from_arrow_schema(rows.schema), False)
    with refused(sl.Invalid):
        writer.commit([run_task(writer, rows), run_task(writer, twins)], batch)
    assert not data_files(items)
    writer.commit([run_task(writer, rows)], batch)
    writer.commit([run_task(writer, rows)], batch)
    assert (items.head, items.count()) == (1, 2)
