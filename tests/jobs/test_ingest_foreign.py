"""Ingest takes the types, folders and columns of other people's files as import does."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import strandline as sl
from support import refused, rows_of

ODD = pa.table(
    {
        "id": [1, 2],
        "big": pa.array([2**64 - 1, None], pa.uint64()),
        "at": pa.array([1, None], pa.time64("us")),
        "none": pa.nulls(2),
        "raw": pa.array([b"ab", None], pa.binary(2)),
        "half": pa.array([1.5, None], pa.float16()),
        "deep": pa.array([[{"t": 1}], None], pa.list_(pa.struct([("t", pa.duration("ms"))]))),
    }
)
STORED = [
    {"id": 1, "big": Decimal(2**64 - 1), "at": "00:00:00.000001", "none": None, "raw": b"ab", "half": 1.5,
     "deep": [{"t": 1000}]},
    dict.fromkeys(ODD.column_names) | {"id": 2},
]  # fmt: skip


def test_import_and_ingest_store_the_same_for_odd_types(lake: sl.Lake, tmp_path: Path) -> None:
    pq.write_table(ODD, tmp_path / "a.parquet")
    assert (
        sorted(
            lake.import_table("one", tmp_path / "a.parquet", key=["id"]).to_arrow().to_pylist(), key=lambda r: r["id"]
        )
        == STORED
    )
    lake.ingest("two", [str(tmp_path / "a.parquet")], key=["id"])
    two = lake.table("two")
    assert sorted(two.to_arrow().to_pylist(), key=lambda r: r["id"]) == STORED
    assert two.schema == lake.table("one").schema
    # The same file again, into the table as it is now.
    assert lake.ingest("two", [str(tmp_path / "a.parquet")], again=True).rows == 2


def test_a_column_that_holds_the_values_of_a_file_takes_them_as_they_are(lake: sl.Lake, tmp_path: Path) -> None:
    table = lake.create_table("t", "id:int64, uuid:binary", key=["id"])
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef"], pa.binary(16)))
    pq.write_table(pa.table({"id": pa.array([7], pa.uint64()), "uuid": uuids}), tmp_path / "a.parquet")
    lake.ingest("t", [str(tmp_path / "a.parquet")])
    assert table.to_arrow().to_pylist() == [{"id": 7, "uuid": b"0123456789abcdef"}]


def test_an_unsigned_key_is_taken_as_the_type_that_is_said(lake: sl.Lake, tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": pa.array([7, 2**63], pa.uint64())}), path)
    with refused(sl.Invalid):
        lake.ingest("t", [path], key=["id"])
    report = lake.ingest("t", [path], key=["id"], types="id:int64", rejects=True)
    assert (report.rows, report.rejects) == (1, 1)


def test_a_value_without_an_exact_form_is_a_bad_row(lake: sl.Lake, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "d": pa.array([1000, 1], pa.duration("ns"))}), tmp_path / "a.parquet")
    with refused(sl.Invalid, line=2, column="d"):
        lake.ingest("t", [str(tmp_path / "a.parquet")], key=["id"])
    report = lake.ingest("t", [str(tmp_path / "a.parquet")], key=["id"], rejects=True)
    assert (report.rows, report.rejects) == (1, 1)
    assert lake.table("t").to_arrow().to_pylist() == [{"id": 1, "d": 1}]


@pytest.mark.parametrize("how", ["import", "ingest"])
def test_columns_are_left_out_by_name(lake: sl.Lake, tmp_path: Path, how: str) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(ODD, path)

    def load(skip: list[str]) -> list[str]:
        if how == "import":
            return lake.import_table("t", path, skip=skip).schema.names
        lake.ingest("t", [str(path)], key=[], skip=skip)
        return lake.table("t").schema.names

    with refused(sl.Invalid, column="nope"):
        load(["nope"])
    assert load(["big", "deep"]) == ["id", "at", "none", "raw", "half"]


def test_a_hive_folder_gives_the_same_table_by_import_and_ingest(lake: sl.Lake, tmp_path: Path) -> None:
    rows = pa.table(
        {
            "id": range(40),
            "year": [2023 + i % 2 for i in range(40)],
            "month": [f"0{1 + i % 3}" for i in range(40)],
            "day": [dt.date(2024, 2, 28 + i % 2) for i in range(40)],
            "city": [("São Paulo", "a/b=c", None)[i % 3] for i in range(40)],
        }
    )
    folder = tmp_path / "hive"
    parts = ["year", "month", "day", "city"]
    ds.write_dataset(rows, folder, format="parquet", partitioning=parts, partitioning_flavor="hive")
    (folder / "_SUCCESS").write_text("")
    lake.import_table("one", folder, key=["id"])
    lake.ingest("two", [str(folder)], key=["id"])
    for name in ("one", "two"):
        found = lake.table(name).to_arrow()
        assert {field.name: field.type for field in found.schema} == {
            "id": pa.int64(), "year": pa.int64(), "month": pa.string(), "day": pa.date32(), "city": pa.string(),
        }  # fmt: skip
        assert rows_of(found.select(rows.column_names)) == rows_of(rows)
    assert lake.ingest("two", [str(folder)]).count("skip") == len(list(folder.rglob("*.parquet")))


@pytest.mark.parametrize("how", ["import", "ingest"])
def test_a_folder_that_contradicts_its_file_is_refused(lake: sl.Lake, tmp_path: Path, how: str) -> None:
    path = tmp_path / "data" / "p=2" / "a.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1], "p": [1]}), path)
    with refused(sl.Invalid, file=str(path), column="p"):
        if how == "import":
            lake.import_table("t", path.parents[1])
        else:
            lake.ingest("t", [str(path.parents[1])], key=[])
    assert lake.tables() == []


def test_files_of_one_call_make_a_table_that_holds_all_of_them(lake: sl.Lake, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([1], pa.int32()), "a": pa.nulls(1)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": pa.array([1 << 40]), "a": [2.5], "b": ["x"]}), tmp_path / "b.parquet")
    lake.ingest("t", [str(tmp_path)], key=["id"])
    assert rows_of(lake.table("t").to_arrow()) == rows_of(
        pa.table({"id": [1, 1 << 40], "a": [None, 2.5], "b": [None, "x"]})
    )


def test_a_delta_table_is_not_loaded_as_files(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "d" / "_delta_log").mkdir(parents=True)
    (tmp_path / "d" / "_delta_log" / f"{0:020d}.json").write_text("{}")
    pq.write_table(ODD, tmp_path / "d" / "a.parquet")
    with refused(sl.Invalid) as caught:
        lake.ingest("t", [str(tmp_path / "d")], key=[])
    assert "table import" in caught.value.hint


def test_a_hive_folder_on_an_object_store_is_loaded(s3_lake: Callable[..., sl.Lake]) -> None:
    lake = s3_lake()
    for year in (2023, 2024):
        with lake.storage.output(f"data/year={year}/a.parquet") as out:
            pq.write_table(pa.table({"id": [year]}), out)
    lake.storage.put_new("data/_SUCCESS", b"")
    uri = f"{lake.storage.uri}/data"
    lake.ingest("one", [uri], key=["id"])
    lake.import_table("two", f"{uri}/", key=["id"])
    for name in ("one", "two"):
        assert rows_of(lake.table(name).to_arrow()) == [(2023, 2023), (2024, 2024)]
    assert lake.ingest("one", [f"{uri}/"]).count("skip") == 2
    with refused(sl.NotFound):
        lake.ingest("one", [f"{uri}/nothing"])
