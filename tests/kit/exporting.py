"""Tables of every shape to export, and exports to look at.

A test module takes the fixtures that it needs by assignment, as in `tables = exporting.tables`."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.jobs.export.destination import MANIFEST
from strandline.jobs.export.lock import LOCK
from strandline.model.types import JSON, conform
from strandline.storage.parquet import writer
from support import files_below, python, rows_of

PARTS = pa.schema(
    [
        ("session", pa.string()),
        ("part", pa.int32()),
        ("tools", JSON),
        ("text", pa.string()),
        ("is_error", pa.bool_()),
        ("tags", pa.list_(pa.string())),
    ]
)


OPTIONS = {
    "clustered": {"key": ["session", "part"], "cluster_by": ["session"], "vnodes": 4},
    "keyed": {"key": ["session", "part"], "vnodes": 2},
    "unkeyed": {"cluster_by": ["session", "is_error"], "vnodes": 2},
}


def part(session, number, rev=0):
    return {
        "session": f"s{session}",
        "part": number,
        "tools": json.dumps({"tools": f"{session % 3}" * 500}),
        "text": None if number % 5 == 0 else f"text {session}-{number}-{rev}",
        "is_error": [None, True, False][(session + number + rev) % 3],
        "tags": ["a", None, str(rev)][: number % 4],
    }


def build(lake, shape="clustered", name="parts"):
    """A table with a baseline, a log after it, deletes and a later column."""
    table = lake.create_table(name, PARTS, **OPTIONS[shape])
    write = table.upsert if table.definition.is_keyed else table.append
    write([part(session, number) for session in range(40) for number in range(5)])
    table.compact(full=True)
    write([part(session, number, 1) for session in range(30, 45) for number in range(6)])
    if table.definition.is_keyed:
        table.delete([{"session": "s3", "part": 1}, {"session": "s44", "part": 0}, {"session": "none", "part": 1}])
    table.evolve(pa.schema([("more", pa.int64())]))
    write([{**part(session, 2, 2), "more": session} for session in range(0, 40, 4)])
    return table


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A table of each shape, to be read only."""
    lake = sl.Lake(tmp_path_factory.mktemp("tables") / "lake")
    return {shape: build(lake, shape, f"parts_{shape}") for shape in OPTIONS}


@pytest.fixture
def parts(tables):
    return tables["clustered"]


@pytest.fixture
def own_parts(lake):
    """One that a test may change."""
    return build(lake)


@pytest.fixture
def dest(tmp_path):
    """A place that nobody has made yet."""
    return tmp_path / "exports" / "here"


def export(table, dest, **options):
    return table.export(str(dest), **options)


def read(dest):
    """What another program finds there: every visible Parquet file."""
    return pq.read_table(dest)


def check_equal(dest, expected):
    assert rows_of(conform(read(dest), expected.schema)) == rows_of(expected)
    assert read(dest).schema.names == expected.schema.names


def manifest_of(dest):
    return json.loads((Path(dest) / MANIFEST).read_text())


def check_whole(dest, report=None):
    """The folder holds one export: the files of its manifest, and no lock, temporary or other thing."""
    manifest = manifest_of(dest)
    files = {file["path"]: file for file in manifest["files"]}
    assert files_below(dest) == {MANIFEST, *files}
    for path, file in files.items():
        assert path.startswith(manifest["id"])
        assert file["size"] == (Path(dest) / path).stat().st_size
        assert file["rows"] == pq.read_metadata(Path(dest) / path).num_rows
    assert manifest["rows"] == sum(file["rows"] for file in files.values())
    if report is not None:
        assert report.uri == str(dest)
        assert (report.rows, report.files) == (manifest["rows"], len(files))
        assert report.bytes == sum(file["size"] for file in files.values())
        assert (report.table, report.after, report.seq) == (manifest["table"], manifest["after"], manifest["seq"])
        assert report.seconds >= 0


def check_clustered(dest, names, most=16):
    """Rows of one cluster key lie together, over all files of the driver; a group holds few of them."""
    seen, last = set(), None
    for file in manifest_of(dest)["files"]:
        opened = pq.ParquetFile(Path(dest) / file["path"])
        for group in range(opened.num_row_groups):
            rows = opened.read_row_group(group, columns=names).to_pylist()
            assert len({tuple(row.values()) for row in rows}) <= most
            for key in (tuple(row.values()) for row in rows):
                assert key == last or key not in seen, f"{key} comes back"
                seen.add(key)
                last = key


def contents(folder):
    return {name: (Path(folder) / name).read_bytes() for name in files_below(folder)}


@pytest.fixture
def many(lake):
    """A table whose rows come in several batches."""
    table = lake.create_table("many", pa.schema([("k", pa.int64()), ("x", pa.string())]), cluster_by=["k"], vnodes=1)
    table.append(pa.table({"k": [at // 10_000 for at in range(130_000)], "x": [f"x{at % 7}" for at in range(130_000)]}))
    return table


@pytest.fixture
def short_files(monkeypatch):
    """Files end after a group, and groups after ten thousand rows."""
    monkeypatch.setitem(writer.stage_files.__kwdefaults__, "budget", writer.Budget(group_rows=10_000, file_bytes=1))


def unfinished(dest):
    names = sorted(files_below(dest))
    return [dest / name for name in names if name.endswith(".parquet~") and name.startswith(".tmp-")]


EXPORT = """
import json, os, sys, time
import strandline as sl
folder, table, dest, options = sys.argv[1:5]
def progress(done, whole, what):
    if len(sys.argv) > 5 and done:
        open(sys.argv[5], "w").close()
        while not os.path.exists(sys.argv[5] + ".go"):
            time.sleep(0.02)
report = sl.Lake(folder).table(table).export(dest, progress=progress, **json.loads(options))
print(json.dumps(report.to_dict()))
"""


def wait_for(path, process=None, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not os.path.exists(path):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"{path} never comes"
        time.sleep(0.02)


def die(parts, dest, point, **options):
    ended = python(EXPORT, parts.log.storage.uri, parts.name, str(dest), json.dumps(options), crash=point)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert LOCK in files_below(dest)
