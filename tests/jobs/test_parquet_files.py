"""Parquet files of others: old times keep their values, damage is `Invalid`, odd names can be read."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.jobs.parquet_files import open_parquet
from strandline.storage.open import LocalStorage
from support import refused

FAR = [dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1, 1, 1), dt.datetime(2024, 1, 1, 1, 2, 3, 4), None]


def _read(path: Path, names: list[str] | None = None) -> pa.Table:
    with open_parquet(LocalStorage(str(path.parent)), path.name) as file:
        return pa.Table.from_batches(list(file.batches(names or file.schema.names)))


def _write_int96(path: Path, **columns: pa.Array) -> None:
    pq.write_table(pa.table(columns), path, use_deprecated_int96_timestamps=True)


def test_old_times_far_away_keep_their_values(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    nested = pa.array([[{"t": value}] for value in FAR], pa.list_(pa.struct([("t", pa.timestamp("us"))])))
    _write_int96(path, t=pa.array(FAR, pa.timestamp("us")), s=nested)
    rows = _read(path)
    assert rows.column("t").to_pylist() == FAR
    assert rows.column("s").to_pylist() == [[{"t": value}] for value in FAR]
    assert [row[0] for row in duckdb.sql(f"SELECT t FROM '{path}'").fetchall()] == FAR


def test_old_times_with_nanoseconds_are_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    nanos = [1_700_000_000_000_000_123, -1, None]
    _write_int96(path, t=pa.array(nanos, pa.timestamp("ns")))
    assert _read(path).column("t").cast(pa.int64()).to_pylist() == nanos


def test_old_times_that_no_unit_holds_are_refused_by_name(tmp_path: Path, lake: sl.Lake) -> None:
    path = tmp_path / "a.parquet"
    _write_int96(
        path, far=pa.array(FAR[:1], pa.timestamp("us")), fine=pa.array([1], pa.timestamp("ns")), id=pa.array([1])
    )
    with refused(sl.Invalid, file=str(path), column="far"):
        _read(path)
    assert lake.import_table("t", path, skip=["fine"]).to_arrow().column("far").to_pylist() == FAR[:1]


@pytest.mark.parametrize("place", ["header", "footer", "page", "cut", "empty"])
def test_a_damaged_file_is_invalid_for_import_and_ingest(tmp_path: Path, lake: sl.Lake, place: str) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"id": range(5_000)}), path, compression="none", write_page_checksum=True, use_dictionary=False
    )
    data = bytearray(path.read_bytes())
    if place in ("cut", "empty"):
        data = data[:100] if place == "cut" else bytearray()
    else:
        at = {"header": 5, "footer": len(data) - 60, "page": 2_000}[place]
        data[at : at + 20] = b"\xff" * 20
    path.write_bytes(data)
    with refused(sl.Invalid, file=str(path)):
        lake.import_table("t", path)
    with refused(sl.Invalid, file=str(path)):
        lake.ingest("t", [str(path)], key=[])
    assert lake.tables() == []


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with refused(sl.NotFound):
        _read(tmp_path / "a.parquet")


def test_columns_with_dots_and_repeated_names_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    fields = [pa.array([1]), pa.array([{"b": 2}]), pa.array([3]), pa.array([4])]
    pq.write_table(pa.Table.from_arrays(fields, names=["a.b", "a", "c", "c"]), path)
    assert _read(path).to_pylist() == [{"a.b": 1, "a": {"b": 2}, "c": 3, "c_2": 4}]
    assert _read(path, ["c_2", "a"]).to_pylist() == [{"c_2": 4, "a": {"b": 2}}]
