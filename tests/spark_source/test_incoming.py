"""The columns of a DataFrame are checked before a task runs, and its rows become changes of the log."""

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import strandline as sl
from strandline.model.change import HASH, OP, ROW
from strandline.model.definition import TableDef
from strandline.spark_source.incoming import Incoming
from support import ITEMS, refused

KEYED = TableDef.declare(ITEMS, key=["id"], vnodes=4)
VERSIONED = TableDef.declare(ITEMS, key=["id"], vnodes=4, version="qty")
UNKEYED = TableDef.declare(ITEMS)


TYPES = {
    "long": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "double": pa.float64(),
    "struct": pa.struct([("a", pa.int32())]),
    "array": pa.list_(pa.float64()),
    "map": pa.map_(pa.string(), pa.int32()),
}


def incoming(columns, definition=KEYED, **options):
    fields = [(name, TYPES[kind]) for name, kind in map(str.split, columns.split(", "))]
    return Incoming.of(definition, "t", from_arrow_schema(pa.schema(fields)), options)


def test_lacking_columns_are_nulls_and_every_row_gets_the_hash_of_its_key():
    given = incoming("id long, name string")
    assert (given.lacking, given.operation) == (("qty",), "UPSERT")
    (batch,) = given.changes(iter([pa.record_batch({"id": pa.array([1, 2]), "name": ["a", None]})]), 0)
    assert set(batch.schema.names) == {"id", "name", "qty", HASH}
    assert batch.column("qty").to_pylist() == [None, None] and batch.column(HASH).null_count == 0


def test_an_order_column_of_the_dataframe_alone_is_not_written():
    given = incoming("id long, at double", orderBy="at")
    batch = pa.record_batch({"id": pa.array([1, 1, 1]), "at": [float("nan"), None, 2.0]})
    found = list(given.changes(iter([batch]), 0))
    assert sum(each.num_rows for each in found) == 3
    assert all("at" not in each.schema.names for each in found)


def test_rows_without_a_key_are_numbered_by_their_task():
    given = incoming("id long, name string, qty int", UNKEYED)
    batch = pa.record_batch({"id": pa.array([1, 1]), "name": ["a", "a"], "qty": pa.array([1, 1], pa.int32())})
    for task in (0, 3):
        (found,) = given.changes(iter([batch]), task)
        assert found.column(ROW).to_pylist() == [(task << 33), (task << 33) + 1]


def test_a_delete_keeps_its_key_alone():
    given = incoming("id long, name string, qty int, _op string")
    columns = {
        "id": pa.array([1, 2]),
        "name": ["a", "b"],
        "qty": pa.array([1, 2], pa.int32()),
        OP: ["delete", "upsert"],
    }
    rows = [row for batch in given.changes(iter([pa.record_batch(columns)]), 0) for row in batch.to_pylist()]
    assert {row["id"]: (row["name"], row["qty"], row[OP]) for row in rows} == {
        1: (None, None, "delete"),
        2: ("b", 2, "upsert"),
    }
    assert given.operation == "WRITE"


REFUSED = [
    ("id string", KEYED, {}, "id"),
    ("name string", KEYED, {}, "id"),
    ("id long, colour string", KEYED, {}, "colour"),
    ("id long, _seq long", KEYED, {}, "_seq"),
    ("id long", KEYED, {"orderBy": "nope"}, "nope"),
    ("id long, at struct", KEYED, {"orderBy": "at"}, "at"),
    ("id long, at array", KEYED, {"orderBy": "at"}, "at"),
    ("id long, at map", KEYED, {"orderBy": "at"}, "at"),
]


@pytest.mark.parametrize("columns, definition, options, column", REFUSED)
def test_a_wrong_column_is_refused_by_its_name(columns, definition, options, column):
    with refused(sl.Invalid, column=column):
        incoming(columns, definition, **options)


def test_options_that_do_not_fit_the_table_are_refused():
    with refused(sl.Invalid, table="t"):
        incoming("id long, _op string", UNKEYED)
    with refused(sl.Invalid, table="t"):
        incoming("id long", UNKEYED, orderBy="id")
    with refused(sl.Invalid, table="t"):
        incoming("id long, qty int, _op string", VERSIONED, orderBy="qty")
    with refused(sl.Invalid, table="t"):
        incoming("id long", missing="keep")
