"""The files of all tasks are checked together: one change a key, and no value is lost unasked."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

import strandline as sl
from sourcing import make_source, run_task
from strandline.spark_source.written import check_files
from support import refused


def write(table, *tasks, **options):
    """The work of a write and the files of its tasks, without a commit."""
    work = make_source(table, **options).writer(from_arrow_schema(tasks[0].schema), False)
    return work.work.incoming, [file for task in tasks for file in run_task(work, task).files]


def rows(ids, **columns):
    return pa.table({"id": pa.array(list(ids), pa.int64()), **columns})


@given(st.lists(st.sets(st.integers(0, 40), min_size=1, max_size=8), min_size=1, max_size=4))
def test_a_key_in_two_files_is_refused_with_its_values(make_table, tasks):
    table = make_table(key=["id"], vnodes=4)
    incoming, files = write(table, *map(rows, tasks))
    if sum(map(len, tasks)) == len(set().union(*tasks)):
        check_files(table, incoming, files)
    else:
        with refused(sl.Invalid, column="id", table=table.name) as caught:
            check_files(table, incoming, files)
        twins = {n for task in tasks for n in task if sum(n in other for other in tasks) > 1}
        assert any(f"{{'id': {n}}}" in str(caught.value) for n in twins)


@pytest.mark.parametrize("column, is_lost", [("name", False), ("qty", True)])
def test_a_column_that_the_rows_lack_is_refused_where_the_table_has_values(items, column, is_lost):
    items.upsert([{"id": 1, "qty": 5}, {"id": 2, "name": "other"}])
    columns = {"name": ["x"], "qty": pa.array([1], pa.int32())}
    columns.pop(column)
    incoming, files = write(items, rows([1], **columns))
    if is_lost:
        with refused(sl.Invalid, column=column):
            check_files(items, incoming, files)
    else:
        check_files(items, incoming, files)
    may_lose, files = write(items, rows([1], **columns), missing="null")
    check_files(items, may_lose, files)


def test_rows_without_a_key_need_no_check(make_table):
    table = make_table()
    columns = {"name": ["a", "a"], "qty": pa.array([1, 1], pa.int32())}
    incoming, files = write(table, rows([1, 1], **columns), rows([1, 1], **columns))
    check_files(table, incoming, files)
