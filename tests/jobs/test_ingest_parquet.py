"""Parquet files to load: bad rows are named, damaged files and foreign columns are refused whole."""

from __future__ import annotations

import codecs
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bad_rows
import strandline as sl
from bad_rows import rejects_of
from support import nothing_written, refused

things = bad_rows.things


def test_bad_rows_of_parquet_are_named_and_kept_aside(things: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    rows = pa.table(
        {"id": [1, None, 3, 4], "n": pa.array([1, 2, 3, 1 << 40], pa.int64()), "doc": ["{}", "1", "{", None]}
    )
    file = tmp_path / "a.parquet"
    pq.write_table(rows, file)
    with nothing_written(things), refused(sl.Invalid, file=str(file), line=2, column="id"):
        lake.ingest("things", [str(file)])
    report = lake.ingest("things", [str(file)], rejects=True)
    assert (report.rows, report.rejects) == (1, 3)
    assert [(r["line"], r["column"]) for r in rejects_of(things)] == [(2, "id"), (3, "doc"), (4, "n")]
    assert json.loads(rejects_of(things)[0]["text"])["n"] == 2


def test_a_bad_row_of_a_new_table_from_parquet_is_not_answered_with_types_that_do_not_help(
    lake: sl.Lake, tmp_path: Path
) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1], "t": pa.array([1], pa.timestamp("ns"))}), file)
    with refused(sl.Invalid, file=str(file), line=1, column="t") as error:
        lake.ingest("new", [str(file)], key=["id"])
    assert "--skip" in error.value.hint and "--types" not in error.value.hint


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.parquet", b"not parquet"),
        ("a.jsonl.gz", b"not gzip"),
        ("a.jsonl.gz", gzip.compress(b'{"id": 1}\n' * 1000)[:-20]),
        ("a.jsonl", codecs.BOM_UTF16_LE + '{"id": 1}'.encode("utf-16-le")[:-1]),
    ],
    ids=["no parquet", "no gzip", "cut gzip", "cut utf-16"],
)
def test_a_damaged_file_is_refused_whole(
    things: sl.Table, lake: sl.Lake, tmp_path: Path, name: str, data: bytes
) -> None:
    (tmp_path / name).write_bytes(data)
    for rejects in (False, True):
        with nothing_written(things), refused(sl.Invalid, file=str(tmp_path / name)):
            lake.ingest("things", [str(tmp_path / name)], rejects=rejects)


@pytest.mark.parametrize("columns", [{"id": ["x"]}, {"id": [1], "other": [1]}])
def test_a_parquet_file_of_other_columns_is_refused_whole(
    things: sl.Table, lake: sl.Lake, tmp_path: Path, columns: dict[str, list[Any]]
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with nothing_written(things), refused(sl.Invalid, column=list(columns)[-1]):
        lake.ingest("things", [str(tmp_path / "a.parquet")], rejects=True)
