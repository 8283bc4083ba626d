"""Files whose names are not those of columns, through ingest and import."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from support import refused


@pytest.fixture
def load(lake, tmp_path):
    """Write a file and load it into the table `t`."""

    def call(name, content, **options):
        (tmp_path / name).write_text(content)
        return lake.ingest("t", [str(tmp_path / name)], **options)

    return call


def rows_of(lake):
    return sorted(lake.table("t").to_arrow().to_pylist(), key=str)


def pairs(report):
    return {name.source: name.column for name in report.names}


def test_a_csv_with_names_of_every_kind_loads_by_the_rule(lake, load):
    report = load("a.csv", "Order Date,a.b,_id,x,x,\n2024-01-31,1,2,3,4,5\n", key=["Order Date", "_id"])
    assert pairs(report) == {"Order Date": "order_date", "a.b": "a_b", "x": "x_2", "": "column_6"}
    table = lake.table("t")
    assert table.schema.names == ["order_date", "a_b", "_id", "x", "x_2", "column_6"]
    assert table.definition.key == ("order_date", "_id")
    assert report.to_dict()["names"][0] == {"source": "Order Date", "column": "order_date"}
    assert table.describe()["names"][0] == {"source": "Order Date", "column": "order_date"}
    # The same command for the next file, whose columns come in another order.
    again = load("b.csv", "x,x,_id,Order Date\n7,8,9,2024-02-01\n", key=["Order Date", "_id"])
    assert pairs(again) == {"x": "x_2", "Order Date": "order_date"}
    assert [(row["x"], row["x_2"]) for row in rows_of(lake)] == [(3, 4), (7, 8)]


def test_keep_takes_the_names_as_they_are(lake, load):
    load("a.jsonl", '{"orderId": 1, "_v": 2, "Total": 3}\n', key=["orderId"], names="keep")
    assert lake.table("t").schema.names == ["orderId", "_v", "Total"]
    # The rule stays with the table.
    assert pairs(load("b.jsonl", '{"ORDERID": 2, "total": 4}\n')) == {"ORDERID": "orderId", "total": "Total"}
    with refused(sl.Invalid, column="order_id"):
        load("c.jsonl", '{"order_id": 3}\n')


def test_new_names_for_a_column_are_remembered_with_the_rows(lake, load):
    load("a.csv", "Order Date,n\nx,1\n", key=[])
    before = lake.table("t").head
    report = load("b.csv", "ORDER-DATE,n\ny,2\n")
    assert pairs(report) == {"ORDER-DATE": "order_date"}
    assert lake.table("t").head == before + 1
    fresh = sl.Lake(lake.storage.uri).table("t").definition
    assert fresh.names.columns == {"Order Date": ("order_date",), "ORDER-DATE": ("order_date",)}
    assert fresh.names.rule == "snake"
    assert [row["order_date"] for row in rows_of(lake)] == ["x", "y"]


def test_a_declared_table_is_loaded_by_exact_names_case_and_rule(lake, load):
    lake.create_table("t", "id:int64, total:int64, order_date:string", key=["id"])
    report = load("a.csv", "ID,Order Date,total\n1,x,5\n")
    assert pairs(report) == {"ID": "id", "Order Date": "order_date"}
    assert rows_of(lake) == [{"id": 1, "total": 5, "order_date": "x"}]
    with refused(sl.Invalid, column="order_date"):
        load("b.csv", "id,Order Date,order_date\n1,x,y\n")


def test_json_names_that_come_late_are_matched_and_two_names_never_share_a_column(lake, load):
    lake.create_table("t", "id:int64, user_name:string, doc:json", key=["id"])
    good = [{"id": 1}, {"id": 2, "userName": "a", "doc": {"UserName": 1}}, {"userName": "b", "id": 3}]
    report = load("a.jsonl", "".join(json.dumps(row) + "\n" for row in good))
    assert pairs(report) == {"userName": "user_name"}
    assert [row["user_name"] for row in rows_of(lake)] == [None, "a", "b"]
    two = '{"id": 4, "userName": "c"}\n{"id": 5, "user_name": "d"}\n{"id": 6, "User Name": "e"}\n'
    report = load("b.jsonl", two, rejects=True)
    assert (report.rows, report.rejects) == (1, 2)
    bad = [(row["line"], row["column"]) for row in lake.table("t").rejects().latest(9)]
    assert bad == [(2, "user_name"), (3, "User Name")]


def test_a_bad_value_is_told_by_its_column(lake, load):
    lake.create_table("t", "id:int64, order_count:int64", key=["id"])
    for name, text in (("a.jsonl", '{"id": 1, "Order Count": "many"}\n'), ("a.csv", "id,Order Count\n1,many\n")):
        with refused(sl.Invalid, column="order_count"):
            load(name, text)


def test_types_and_the_version_column_may_be_said_by_their_names_in_the_file(lake, load):
    load("a.csv", "Zip Code,Changed At,n\n123,5,1\n", key=["Zip Code"], version="Changed At", types="Zip Code:string")
    assert lake.table("t").definition.version == "changed_at"
    assert lake.table("t").schema.field("zip_code").type == pa.string()


def test_purge_finds_refused_rows_by_their_names_in_the_file(lake, load):
    rows = [(1, 1), (3, 3), (4, 4), (2, "x"), (1, "y")]
    lines = (json.dumps({"User ID": id_, "n": n}) + "\n" for id_, n in rows)
    load("a.jsonl", "".join(lines), key=["User ID"], rejects=True, types="n:int64")
    table = lake.table("t")
    assert table.rejects().count() == 2
    assert table.purge([2]).rejects == 1
    assert table.rejects().count() == 1


def test_parquet_files_are_ingested_and_imported_by_the_same_rule(lake, tmp_path):
    file = str(tmp_path / "a.parquet")
    arrays = [pa.array([1, 2]), pa.array(["x", "y"]), pa.array([3, 4]), pa.array([{"In Side": 1}] * 2)]
    pq.write_table(pa.Table.from_arrays(arrays, names=["Order Id", "a.b", "_seq", "S"]), file)
    lake.ingest("one", [file], key=["Order Id"])
    lake.import_table("two", file, key=["Order Id"], order_by="_seq")
    for name in ("one", "two"):
        table = lake.table(name)
        assert table.schema.names == ["order_id", "a_b", "_seq_2", "s"]
        assert table.definition.key == ("order_id",)
        assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["order_id"])[0] == {
            "order_id": 1, "a_b": "x", "_seq_2": 3, "s": {"In Side": 1},
        }  # fmt: skip
        assert table.definition.names.column_of("a.b") == "a_b"
    lake.import_table("three", file, key=["order id"], cluster_by=["A.B"])
    assert lake.table("three").definition.cluster_by == ("a_b",)
