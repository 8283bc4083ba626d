"""Spark tasks load files as the driver does: the same rows, bad rows, memory and errors, in one commit."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shapes
import strandline as sl
from ingested import actions, lines, rows_in
from strandline.engines import choice
from strandline.engines.choice import DriverLimit
from strandline.jobs.ingest import in_tasks, parts
from strandline.tables.rejects import Rejects
from support import ITEMS, files_below, python, refused, rows_of

REJECT = ["file", "line", "column", "reason", "text", "names", "dialect"]


@pytest.fixture
def tiny_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are cut into many parts although they are small."""
    monkeypatch.setattr(parts, "LEAST_BYTES", 500)
    monkeypatch.setattr(parts, "_CHUNK_BYTES", 300)


def make_files(folder: Path) -> str:
    """Files of every kind; each has the key 7, and the last file has its last row."""
    folder.mkdir()
    (folder / "a.jsonl").write_text(lines(*range(60), 7, name="a") + '{"id": "bad"}\n' + lines(*range(60, 120)))
    (folder / "b.csv").write_text('Id;NAME;qty\n7;"b\n7";1\n200;b;x\n201;b\n202;b;2\n')
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(lines(7, *range(300, 340), name="c").encode()))
    (folder / "d.json").write_text(json.dumps([{"id": 7, "name": "d7"}, {"id": 400, "extra": 1}], indent=1))
    pq.write_table(
        pa.table({"id": [500, 7], "name": ["e", "e7"], "qty": pa.array([1, 2], pa.int32())}), folder / "e.parquet"
    )
    return str(folder / "*")


def contents(lake: sl.Lake) -> dict[str, Any]:
    """What a load leaves, without what differs from one commit to the next."""
    table = lake.table("items")
    rejects = Rejects(table.log.storage, table.entry)
    bad = [row for kept in rejects.kept() for row in kept.rows.select(REJECT).to_pylist()]
    return {
        "rows": rows_of(table.to_arrow()),
        "bad": sorted(map(repr, bad)),
        "files": sorted(app for app in table.log.refresh().snapshot.txns if app.startswith("ingest/")),
        "names": table.definition.names,
    }


def told(report: Any) -> list[tuple[Any, ...]]:
    return [(each.file, each.action, each.rows, each.rejects, each.dialect) for each in report.files]


@pytest.mark.usefixtures("spark", "tiny_parts")
@pytest.mark.parametrize("key", [["id"], []], ids=["keyed", "unkeyed"])
def test_tasks_load_what_the_driver_loads(tmp_path: Path, key: list[str]) -> None:
    files = make_files(tmp_path / "in")
    lakes = {engine: sl.Lake(tmp_path / engine) for engine in ("driver", "spark")}
    reports = {}
    for engine, lake in lakes.items():
        lake.create_table("items", ITEMS, key=key)
        reports[engine] = lake.ingest("items", files, rejects=True, missing="null", engine=engine)
    assert reports["spark"].seqs == (1,)
    assert told(reports["spark"]) == told(reports["driver"])
    assert reports["spark"].rejects == 4
    assert contents(lakes["spark"]) == contents(lakes["driver"])
    if key:
        (row,) = lakes["spark"].table("items").to_arrow(where="id = 7").to_pylist()
        assert row["name"] == "e7"
    # Only data files and commits are left.
    names = {Path(name).name for name in files_below(tmp_path / "spark") if "/log/" in name}
    assert not any(name.startswith("spool") for name in names)
    with open(tmp_path / "in" / "a.jsonl", "a") as file:
        file.write(lines(*range(900, 960)) + "{}}\n")
    for engine, lake in lakes.items():
        reports[engine] = lake.ingest("items", files, rejects=True, missing="null", engine=engine)
    assert actions(reports["spark"]) == ["continue", *["skip"] * 4]
    assert told(reports["spark"]) == told(reports["driver"])
    assert contents(lakes["spark"]) == contents(lakes["driver"])


@pytest.mark.usefixtures("spark", "tiny_parts")
@pytest.mark.parametrize("shape", shapes.OPTIONS)
def test_text_of_every_type_is_read_as_on_the_driver(tmp_path: Path, shape: str) -> None:
    """Values as people write them, some of which do not fit their column."""
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [shapes.row(n) | {"raw": "00ff", "doc": {"n": n}} for n in range(60)]
    for at, row in enumerate(rows):
        name = shapes.SCHEMA.names[at % len(shapes.SCHEMA)]
        rows[at] = row | ({name: "odd"} if at % 3 == 0 else {})
    half = [json.dumps(row, default=str) + "\n" for row in rows[:40]]
    (folder / "a.jsonl").write_text("".join(half[:30]))
    (folder / "b.json").write_text("[" + ",".join(half[30:]) + "]")
    plain = [name for name in shapes.SCHEMA.names if name not in ("tags", "point")]
    with open(folder / "c.csv", "w", newline="") as file:
        table = csv.DictWriter(file, plain, extrasaction="ignore")
        table.writeheader()
        for row in rows[20:]:
            table.writerow(row | {"doc": json.dumps(row["doc"])})
    found = {}
    for engine in ("driver", "spark"):
        lake = sl.Lake(tmp_path / engine)
        lake.create_table("items", shapes.SCHEMA, **shapes.OPTIONS[shape])
        report = lake.ingest("items", folder, rejects=True, missing="null", engine=engine)
        assert 10 < report.rejects < report.rows + report.rejects
        found[engine] = told(report), contents(lake), shapes.plain(lake.table("items").to_arrow())
    assert found["driver"] == found["spark"]


@pytest.mark.usefixtures("spark", "tiny_parts")
def test_a_bad_row_fails_the_load_and_nothing_lands(tmp_path: Path) -> None:
    lake = sl.Lake(tmp_path / "lake")
    (tmp_path / "a.jsonl").write_text(lines(*range(100)))
    (tmp_path / "b.jsonl").write_text(lines(*range(60)) + "bad\n" + lines(*range(100, 130)) + "worse\n")
    (tmp_path / "c.jsonl").write_text("worst\n")
    errors = []
    for engine in ("spark", "driver"):
        with refused(sl.Invalid, file=str(tmp_path / "b.jsonl"), line=61) as caught:
            lake.ingest("items", str(tmp_path / "*.jsonl"), key=["id"], engine=engine)
        errors.append((caught.value.message, caught.value.fields))
        assert lake.tables() == []
    assert errors[0][0] == errors[1][0]
    assert errors[0][1] == errors[1][1]


@pytest.mark.usefixtures("spark")
def test_files_that_must_be_read_in_order_are_read_by_the_driver(tmp_path: Path) -> None:
    lake = sl.Lake(tmp_path / "lake")
    table = lake.create_table("items", "id:int64, c:string, name:string", key=["id"])
    (tmp_path / "a.jsonl").write_text('{"id": 1, "C++": "a"}\n')
    (tmp_path / "b.jsonl").write_text('{"id": 2, "C#": "b"}\n')
    # In the order of the files, the second name is not that of the column any more.
    report = lake.ingest("items", str(tmp_path / "*.jsonl"), rejects=True, engine="spark")
    assert (report.rows, report.rejects) == (1, 1)
    (tmp_path / "a.csv").write_text("id,name\n1,a\n")
    with refused(sl.Invalid, column="c"):
        lake.ingest("items", str(tmp_path / "a.csv"), engine="spark")
    (tmp_path / "a.csv").write_text("id,c\n1,a\n3,c\n")
    assert lake.ingest("items", str(tmp_path / "a.csv"), engine="spark").rows == 2
    assert sorted(row["c"] for row in table.to_arrow().to_pylist()) == ["a", "c"]


@pytest.mark.usefixtures("spark")
def test_many_files_are_loaded_once_each_by_spark_and_few_by_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_tasks, "INGEST", DriverLimit(choice.INGEST.rows, 10_000, 20))
    calls = []
    load = in_tasks.load_in_tasks
    monkeypatch.setattr("strandline.jobs.ingest.job.load_in_tasks", lambda *each: calls.append(each) or load(*each))
    lake = sl.Lake(tmp_path / "lake")
    table = lake.create_table("items", ITEMS)
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(50):
        (folder / f"{number}.jsonl").write_text(lines(number))
        (folder / f"empty-{number}.jsonl").write_text("\n" * (number + 1))
    report = lake.ingest("items", folder)
    assert (report.rows, report.seqs, len(calls)) == (50, (1,), 1)
    assert rows_in(table) == list(range(50))
    assert set(actions(lake.ingest("items", folder))) == {"skip"}
    (folder / "new.jsonl").write_text(lines(100))
    assert lake.ingest("items", folder).rows == 1
    assert len(calls) == 1
    (folder / "large.jsonl").write_text(lines(*range(1000, 1500)))
    assert lake.ingest("items", folder).rows == 500
    assert len(calls) == 2
    for number in range(30):
        (folder / f"blank-{number}.jsonl").write_text(" " * (number + 1))
    assert lake.ingest("items", folder).rows == 0
    assert set(actions(lake.ingest("items", folder))) == {"skip"}
    assert len(calls) == 3


@pytest.mark.soak
@pytest.mark.usefixtures("spark")
def test_a_folder_of_ten_thousand_files_is_loaded_once_per_file(tmp_path: Path) -> None:
    lake = sl.Lake(tmp_path / "lake")
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(10_000):
        (folder / f"{number:05}.jsonl").write_text(lines(number))
    report = lake.ingest("items", folder, key=["id"])
    assert (report.rows, report.seqs, report.count("load")) == (10_000, (1,), 10_000)
    assert rows_in(lake.table("items")) == list(range(10_000))
    (folder / "00007.jsonl").write_text(lines(7, 70_000))
    (folder / "new.jsonl").write_text(lines(80_000))
    again = lake.ingest("items", folder)
    assert (again.rows, again.count("skip")) == (2, 9_999)
    assert rows_in(lake.table("items")) == [*range(10_000), 70_000, 80_000]
    assert lake.ingest("items", folder).count("skip") == 10_001


@pytest.mark.usefixtures("spark", "tiny_parts")
def test_tasks_read_objects_and_write_a_lake_in_a_store(s3_lake: Callable[..., sl.Lake]) -> None:
    lake = s3_lake()
    lake.create_table("items", ITEMS, key=["id"], vnodes=2)
    texts = {"a.jsonl": lines(*range(40)) + "bad\n", "b.csv": "id,name,qty\n7,seven,7\n99,x,1\n"}
    for name, text in texts.items():
        with lake.storage.output(f"inbox/{name}") as stream:
            stream.write(text.encode())
    report = lake.ingest("items", lake.storage.url("inbox"), rejects=True, engine="spark")
    assert (report.rows, report.rejects, report.seqs) == (42, 1, (1,))
    found = {row["id"]: row["name"] for row in lake.table("items").to_arrow().to_pylist()}
    assert len(found) == 41 and found[7] == "seven"
    assert actions(lake.ingest("items", lake.storage.url("inbox"))) == ["skip", "skip"]


_LOAD = """
import sys, strandline as sl
sl.Lake(sys.argv[1]).ingest("events", [sys.argv[2]], key=[], rejects=True, engine=sys.argv[3])
"""


@pytest.mark.parametrize("point", ["log.lanes_written", "rejects.committed", "ingest.before_commit", "log.committed"])
def test_rows_and_bad_rows_are_there_once_after_a_kill_at(point: str, tmp_path: Path) -> None:
    for number in range(4):
        good = lines(*range(number * 10, number * 10 + 10))
        (tmp_path / f"{number}.jsonl").write_text(good + '{"id": bad}\n')
    uri, files = str(tmp_path / "lake"), str(tmp_path / "*.jsonl")
    killed = python(_LOAD, uri, files, "spark", crash=point, timeout_s=240)
    assert killed.returncode == -9, killed.stderr
    again = python(_LOAD, uri, files, "driver")
    assert again.returncode == 0, again.stderr
    lake = sl.Lake(uri)
    assert rows_in(lake.table("events")) == list(range(40))
    assert lake.status().tables[0].rejects == 4
    assert actions(lake.ingest("events", [files])) == ["skip"] * 4
