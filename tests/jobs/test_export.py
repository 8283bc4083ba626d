"""Exports by the driver: the rows of one seq, all or nothing, and never over anything else's files."""

import json
import os
import signal
import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import exporting
import strandline as sl
from exporting import (
    EXPORT,
    OPTIONS,
    PARTS,
    check_clustered,
    check_equal,
    check_whole,
    contents,
    die,
    export,
    manifest_of,
    read,
    unfinished,
    wait_for,
)
from strandline.jobs.export.destination import MANIFEST
from strandline.jobs.export.lock import LOCK
from strandline.model.types import conform
from strandline.tables.pins import Pins
from support import ITEMS, claimed_files, files_below, python, refused, start_python

tables = exporting.tables
parts = exporting.parts
own_parts = exporting.own_parts
dest = exporting.dest
many = exporting.many
short_files = exporting.short_files


# --- rows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", OPTIONS)
def test_an_export_holds_the_rows_of_the_table(tables, dest, shape):
    table = tables[shape]
    report = export(table, dest)
    check_equal(dest, table.to_arrow())
    check_whole(dest, report)
    if table.definition.cluster_by:
        check_clustered(dest, list(table.definition.cluster_by))
    assert (report.engine, report.after, report.seq) == ("driver", None, table.head)
    assert report.raw_bytes > 100_000
    manifest = manifest_of(dest)
    assert manifest["format"] == 1
    assert manifest["generation"] == table.entry.generation
    assert (manifest["columns"], manifest["where"]) == (table.schema.names, None)


def test_rows_are_laid_by_cluster_key_and_then_by_key(parts, dest):
    export(parts, dest)
    (file,) = manifest_of(dest)["files"]
    found = pq.read_table(dest / file["path"], columns=["session", "part"]).to_pylist()
    keys = [(row["session"], row["part"]) for row in found]
    assert keys == sorted(keys)
    assert pq.read_metadata(dest / file["path"]).num_row_groups == -(-45 // 16)


def test_without_a_cluster_column_groups_end_by_rows_alone_and_rows_still_lie_together(parts, dest):
    export(parts, dest, columns=["part", "tools"])
    (file,) = manifest_of(dest)["files"]
    assert pq.read_metadata(dest / file["path"]).num_row_groups == 1
    expected = parts.to_arrow(columns=["session", "part"]).sort_by([("session", "ascending"), ("part", "ascending")])
    assert pq.read_table(dest / file["path"])["part"].to_pylist() == expected["part"].to_pylist()


def test_a_table_without_rows_makes_a_file_with_columns_and_no_rows(lake, dest):
    table = lake.create_table("parts", PARTS, **OPTIONS["clustered"])
    report = export(table, dest)
    assert (report.rows, report.files, report.seq) == (0, 1, 0)
    check_whole(dest, report)
    assert conform(read(dest), table.schema).equals(table.to_arrow())
    schema = pq.ParquetFile(dest / manifest_of(dest)["files"][0]["path"]).schema
    assert str(schema.column(2).logical_type) == "JSON"


@pytest.mark.parametrize("is_folded", [False, True])
def test_a_table_whose_rows_are_all_deleted_makes_one_too(own_parts, dest, is_folded):
    own_parts.delete(own_parts.to_arrow(columns=["session", "part"]))
    if is_folded:
        own_parts.compact(full=True)
    report = export(own_parts, dest)
    assert report.rows == 0 and read(dest).num_rows == 0
    check_whole(dest, report)


def test_json_leaves_as_json_and_wide_columns_leave_once(lake, dest):
    table = lake.create_table("parts", PARTS, **OPTIONS["clustered"])
    tools = [json.dumps({"tools": f"{number:02d}" * 10_000}) for number in range(3)]
    table.upsert([{"session": f"s{n // 40}", "part": n, "tools": tools[n // 40 % 3]} for n in range(400)])
    table.compact(full=True)
    report = export(table, dest)
    (file,) = manifest_of(dest)["files"]
    opened = pq.ParquetFile(dest / file["path"])
    assert str(opened.schema.column(2).logical_type) == "JSON"
    chunk = opened.metadata.row_group(0).column(2)
    assert chunk.total_uncompressed_size < 1.2 * sum(map(len, tools)) + 2000
    assert report.bytes < report.raw_bytes / 100
    check_equal(dest, table.to_arrow())


# --- failures ------------------------------------------------------------------------------------------------------


def test_progress_is_told_in_rising_numbers(many, dest):
    told = []
    report = export(many, dest, progress=lambda *each: told.append(each))
    assert {what for _, _, what in told} == {"many"}
    assert told[0] == (0, 130_000, "many")
    assert [done for done, _, _ in told] == sorted({done for done, _, _ in told})
    assert all(done <= whole == 130_000 for done, whole, _ in told)
    assert told[-1][0] == report.rows == 130_000 and len(told) >= 4


@pytest.mark.parametrize(
    "kind",
    [sl.Unavailable, KeyboardInterrupt, ZeroDivisionError],
)
@pytest.mark.parametrize("is_replacing", [False, True])
def test_a_failure_on_the_way_leaves_the_destination_as_it_was(many, parts, dest, kind, is_replacing):
    if is_replacing:
        export(parts, dest)
    before = contents(dest) if is_replacing else {}
    seen = []

    def fail(done, whole, what):
        if done > 60_000:
            seen.append(files_below(dest))
            raise kind("on the way")

    with pytest.raises(kind):
        export(many, dest, overwrite=is_replacing, progress=fail)
    assert LOCK in seen[0], "it was at work"
    assert contents(dest) == before
    report = export(many, dest, overwrite=is_replacing)
    check_whole(dest, report)
    check_equal(dest, many.to_arrow())


def test_a_failure_after_whole_files_leaves_none_of_them(many, dest, short_files):
    seen = []

    def fail(done, whole, what):
        seen[:] = unfinished(dest)
        if done > 60_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(many, dest, progress=fail)
    assert len(seen) > 3
    assert files_below(dest) == set()
    report = export(many, dest)
    assert report.files == 13
    check_whole(dest, report)
    check_equal(dest, many.to_arrow())


@pytest.mark.parametrize("damage", ["missing", "cut", "page"])
def test_a_damaged_file_of_the_table_is_corrupt_and_leaves_the_destination_as_it_was(parts, many, dest, damage):
    export(parts, dest)
    before = contents(dest)
    (name,) = claimed_files(many)
    path = Path(many.log.storage.uri) / many.entry.folder / name
    if damage == "missing":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        if damage == "page":
            data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
        path.write_bytes(data if damage == "page" else data[: len(data) // 2])
    for options in ({}, {"changes": (0, None)}):
        with refused(sl.Corrupt):
            export(many, dest, overwrite=True, **options)
        assert contents(dest) == before


def test_a_destination_that_cannot_be_written_to_is_refused_and_nothing_is_left(parts, tmp_path):
    if os.geteuid() == 0:
        place = "/proc/strandline-export"
    else:
        place = str(tmp_path / "closed" / "out")
        (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises((sl.StrandlineError, OSError)):
        export(parts, place)
    assert not os.path.exists(place)


# --- two at once, and one that dies --------------------------------------------------------------------------------


def test_a_process_that_is_killed_on_the_way_leaves_nothing_visible_and_the_next_export_cleans_up(
    parts, dest, tmp_path
):
    sign = str(tmp_path / "sign")
    other = start_python(EXPORT, parts.log.storage.uri, parts.name, str(dest), "{}", sign)
    wait_for(sign, other)
    other.kill()
    other.communicate()
    assert LOCK in files_below(dest)
    assert pq.ParquetDataset(dest).files == []
    report = export(parts, dest)
    check_whole(dest, report)
    check_equal(dest, parts.to_arrow())


POINTS = ["export.staged", "export.published", "export.described", "export.cleared"]


def visible(dest):
    return {os.path.basename(path) for path in pq.ParquetDataset(dest).files}


@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_at_a_point_leaves_nothing_partial_and_the_next_export_only_its_own(parts, dest, point):
    die(parts, dest, point)
    is_described = point in ("export.described", "export.cleared")
    if point == "export.staged":
        assert visible(dest) == set()
    else:
        # One file was to be published, so the moment of publishing leaves it whole.
        check_equal(dest, parts.to_arrow())
    assert (dest / MANIFEST).exists() == is_described
    report = export(parts, dest, where="is_error", overwrite=is_described)
    check_whole(dest, report)
    check_equal(dest, parts.to_arrow(where="is_error"))


@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_while_it_replaces_an_export_leaves_the_old_one_until_the_moment_of_publishing(
    parts, dest, point
):
    export(parts, dest, where="is_error")
    before = contents(dest)
    die(parts, dest, point, overwrite=True)
    old = before.keys() - {MANIFEST}
    assert (visible(dest) == old) == (point == "export.staged")
    assert (old <= visible(dest)) == (point != "export.cleared")
    # Until it says what it wrote, the old one counts; from then on the new one, also when its process is gone.
    with refused(sl.Invalid, path=MANIFEST):
        export(parts, dest)
    check_whole(dest)
    is_new = point in ("export.described", "export.cleared")
    check_equal(dest, parts.to_arrow(where=None if is_new else "is_error"))
    report = export(parts, dest, columns=["part"], overwrite=True)
    check_whole(dest, report)
    check_equal(dest, parts.to_arrow(columns=["part"]))


DESCRIBE = """
import os, signal, sys
import strandline as sl
from strandline.storage.open import LocalStorage
publish = LocalStorage.publish
def stop(self, staged):
    staged = list(staged)
    if staged[0].path == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)
    publish(self, staged)
LocalStorage.publish = stop
sl.Lake(sys.argv[1]).table(sys.argv[4]).export(sys.argv[2])
"""


def test_a_process_killed_while_it_writes_the_manifest_leaves_no_temporary_for_ever(parts, dest):
    ended = python(DESCRIBE, parts.log.storage.uri, str(dest), MANIFEST, parts.name)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    check_whole(dest, export(parts, dest))


@pytest.mark.parametrize("grace", [None, 0], ids=["short", "long"])
@pytest.mark.parametrize("what", ["rows", "changes"])
def test_an_export_is_of_one_seq_whatever_is_written_compacted_and_cleaned_meanwhile(
    many, dest, monkeypatch, grace, what
):
    """A short one is safe by the grace time; a long one, which this one is taken for at once, by its pin."""
    if grace is not None:
        monkeypatch.setitem(Pins.held.__wrapped__.__kwdefaults__, "quiet_s", 0)
    expected = many.to_arrow() if what == "rows" else many.changes()
    more = iter(range(1000))

    def disturb(done, whole, name):
        many.append([{"k": -1, "x": str(next(more))}])
        many.compact(full=True)
        many.vacuum(grace=grace, keep=0)

    report = export(many, dest, progress=disturb, **({} if what == "rows" else {"changes": (0, None)}))
    assert report.seq == 1 and many.head > 3
    check_equal(dest, expected)
    assert many.pins.all() == []


def test_a_plan_says_what_an_export_would_do_and_writes_nothing(parts, dest):
    plan = parts.export(dest, where="is_error", dry_run=True)
    assert not dest.parent.exists()
    report = export(parts, dest, where="is_error")
    assert (plan.table, plan.uri, plan.after, plan.seq, plan.engine) == (
        (report.table, report.uri, report.after, report.seq, report.engine)
    )
    assert plan.rows >= report.rows and plan.raw_bytes >= report.raw_bytes
    assert report.to_dict() == {**report.to_dict()}


def test_an_empty_export_of_a_plain_table(make_table, tmp_path):
    table = make_table(ITEMS, key=["id"])
    check_whole(tmp_path / "out", export(table, tmp_path / "out", changes=(0, None)))
    assert read(tmp_path / "out").schema.names == ["_op", "_seq", *ITEMS.names]


def test_what_a_task_left_that_went_on_after_its_job_goes_with_the_next_export(parts, dest):
    """Its export released the lock long ago, so nobody knows its id any more."""
    dest.mkdir(parents=True)
    left = dest / f".tmp-0-{uuid.uuid4().hex}-{uuid.uuid4().hex}.parquet~"
    left.write_bytes(b"half")
    check_whole(dest, export(parts, dest))
