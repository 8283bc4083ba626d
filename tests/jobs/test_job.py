"""An ingest from the names of files to its report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import pytest

import ingested
import strandline as sl
from ingested import actions, lines, rows_in
from support import ITEMS, refused

events = ingested.events
table = ingested.table
load = ingested.load


def test_a_table_whose_first_load_fails_is_not_left_behind(lake: sl.Lake, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"id": 1, "qty": 1}) + "\n" + json.dumps({"id": None, "qty": 2}) + "\n")
    with refused(sl.Invalid, line=2):
        lake.ingest("made", [str(file)], key=["id"])
    assert lake.tables() == []
    file.write_text(json.dumps({"id": "x", "size": 1.5}) + "\n")
    report = lake.ingest("made", [str(file)], key=["id"])
    assert (report.is_created, report.rows) == (True, 1)
    assert lake.table("made").schema.names == ["id", "size"]
    file.write_text('{"id": 1')
    with refused(sl.Invalid):
        lake.ingest("made", [str(file)], key=["id"])
    assert lake.tables() == ["made"], "only a table of the failed call goes"


def test_empty_files_are_fine(table: sl.Table, load: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.csv", "c.csv"):
        (tmp_path / name).write_text("id,name,qty\n" if name == "c.csv" else "")
    pq.write_table(ITEMS.empty_table(), tmp_path / "d.parquet")
    (tmp_path / "e.jsonl").write_text("\n \n\n")
    report = load(table, "*.*")
    assert report.rows == 0
    assert rows_in(table) == []
    with open(tmp_path / "c.csv", "a") as file:
        file.write("1,a,1\n")
    assert load(table, "*.*").rows == 1
    assert actions(load(table, "*.*")) == ["skip"] * 5


def test_all_formats_give_the_same_rows(lake: sl.Lake, load: Callable[..., Any], tmp_path: Path) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("text", pa.string())]
    )
    texts = ["plain", 'quo"te', "two\nlines", "", None, "comma, here", '5" pipe', "ünïcode ✓", " space ", "null"]
    rows = pa.table(
        {
            "id": list(range(10)),
            "at": pa.array([1_700_000_000_000_000 + i for i in range(10)], pa.timestamp("us", "UTC")),
            "day": pa.array(range(19_000, 19_010), pa.int32()).cast(pa.date32()),
            "text": texts,
        },
        schema=schema,
    )
    pq.write_table(rows, tmp_path / "a.parquet")
    pv.write_csv(rows, tmp_path / "a.csv")
    plain = [{**row, "at": row["at"].isoformat(), "day": row["day"].isoformat()} for row in rows.to_pylist()]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in plain))
    for kind in ("parquet", "csv", "jsonl"):
        table = lake.create_table(f"t_{kind}", schema, key=["id"])
        assert load(table, f"a.{kind}").rows == 10
        assert table.to_arrow().sort_by("id").to_pylist() == rows.to_pylist(), kind


def test_a_dry_run_writes_nothing(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1))
    report = lake.ingest("made", [str(tmp_path / "a.jsonl")], key=["id"], dry_run=True)
    assert (report.is_dry_run, actions(report), report.seqs) == (True, ["load"], ())
    assert lake.tables() == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [("*.nothing", sl.NotFound), ("none.jsonl", sl.NotFound), ("folder", sl.NotFound), ("a.xlsx", sl.Invalid)],
)
def test_files_that_cannot_be_are_refused(
    items: sl.Table, load: Callable[..., Any], tmp_path: Path, name: str, kind: type[sl.StrandlineError]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.xlsx").write_text("x")
    with refused(kind):
        load(items, name)


def test_files_are_loaded_from_and_into_an_object_store(s3_lake: Callable[..., sl.Lake], tmp_path: Path) -> None:
    lake = s3_lake()
    with lake.storage.output("inbox/a.jsonl") as out:
        out.write(lines(1, 2).encode())
    pattern = f"{lake.storage.uri}/inbox/*.jsonl"
    report = lake.ingest("events", [pattern], key=[])
    assert report.rows == 2
    assert actions(lake.ingest("events", [pattern])) == ["skip"]
    with lake.storage.output("inbox/a.jsonl") as out:
        out.write(lines(1, 2, 3).encode())
    assert actions(lake.ingest("events", [pattern])) == ["continue"]
    assert rows_in(lake.table("events")) == [1, 2, 3]
    with refused(sl.NotFound):
        lake.ingest("events", [f"{lake.storage.uri}/nothing/*.jsonl"])
