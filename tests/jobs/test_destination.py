"""Where an export goes: files of others are never touched, an earlier export is replaced as a whole."""

import json
import uuid

import duckdb
import pytest

import exporting
import strandline as sl
from exporting import (
    check_equal,
    check_whole,
    contents,
    die,
    export,
    manifest_of,
    unfinished,
)
from strandline.jobs.export.destination import MANIFEST, Destination
from strandline.jobs.export.lock import LOCK
from support import files_below, refused

tables = exporting.tables
parts = exporting.parts
own_parts = exporting.own_parts
dest = exporting.dest
many = exporting.many
short_files = exporting.short_files


@pytest.mark.parametrize("address", ["", "ftp://host/x", "a*b", "{a}", "s3://"])
def test_an_address_that_is_none_is_refused(parts, tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    before = files_below(tmp_path)
    with refused(sl.Invalid):
        export(parts, address)
    assert files_below(tmp_path) == before


def test_a_file_is_no_destination(parts, tmp_path):
    (tmp_path / "file").write_text("mine")
    with refused(sl.Invalid):
        export(parts, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("where", ["lake", "lake/new", "lake/{folder}", "lake/{folder}/log/new", "lake/../lake"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_place_inside_the_lake_is_refused(own_parts, tmp_path, where, overwrite):
    before = files_below(tmp_path)
    with refused(sl.Invalid):
        export(own_parts, tmp_path / where.format(folder=own_parts.entry.folder), overwrite=overwrite)
    assert files_below(tmp_path) == before


def test_a_place_inside_the_lake_is_refused_by_whatever_way_it_is_reached(own_parts, tmp_path):
    (tmp_path / "way").symlink_to(tmp_path / "lake")
    before = files_below(tmp_path)
    with refused(sl.Invalid):
        export(own_parts, tmp_path / "way" / "new")
    assert files_below(tmp_path) == before


def test_an_earlier_export_is_refused_and_stays_as_it_is(own_parts, dest):
    export(own_parts, dest)
    before = contents(dest)
    own_parts.delete(own_parts.to_arrow(columns=["session", "part"]))
    for call in (export, lambda table, dest: table.export(dest, dry_run=True)):
        with refused(sl.Invalid, path=MANIFEST):
            call(own_parts, dest)
        assert contents(dest) == before


def test_overwriting_replaces_the_earlier_export(parts, dest):
    first = export(parts, dest)
    names = files_below(dest)
    report = export(parts, dest, where="is_error", overwrite=True)
    assert 0 < report.rows < first.rows
    check_whole(dest, report)
    check_equal(dest, parts.to_arrow(where="is_error"))
    assert files_below(dest) & names == {MANIFEST}


def test_overwriting_a_place_where_nothing_is_is_no_error(parts, dest):
    check_whole(dest, export(parts, dest, overwrite=True))
    dest.with_name("empty").mkdir()
    check_whole(dest.with_name("empty"), export(parts, dest.with_name("empty")))


@pytest.mark.parametrize("name", ["notes.txt", "sub/mine.parquet", "_SUCCESS", "part-0.parquet", "_delta_log/0.json"])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("is_beside_an_export", [False, True])
def test_files_of_others_are_never_touched(parts, dest, name, overwrite, is_beside_an_export):
    if is_beside_an_export:
        export(parts, dest)
    (dest / name).parent.mkdir(parents=True, exist_ok=True)
    (dest / name).write_text("mine")
    before = contents(dest)
    with refused(sl.Invalid, path=name):
        export(parts, dest, overwrite=overwrite)
    assert contents(dest) == before


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"files": [1]}', '{"files": null}'])
@pytest.mark.parametrize("name", [MANIFEST, LOCK])
def test_a_manifest_or_a_lock_that_cannot_be_read_is_corrupt_and_stays(parts, dest, name, text):
    export(parts, dest)
    (dest / name).write_text(text)
    before = contents(dest)
    with refused(sl.Corrupt, path=name):
        export(parts, dest, overwrite=True)
    assert contents(dest) == before


def test_a_manifest_cannot_make_an_export_delete_other_files(parts, dest, tmp_path):
    """It is a file that anyone may edit."""
    export(parts, dest)
    (tmp_path / "precious").write_text("mine")
    manifest = manifest_of(dest)
    manifest["files"] += [{"path": "../../precious"}, {"path": str(tmp_path / "precious")}]
    (dest / MANIFEST).write_text(json.dumps(manifest))
    try:
        export(parts, dest, overwrite=True)
    except sl.StrandlineError as error:
        assert isinstance(error, sl.Corrupt | sl.Invalid)
    assert (tmp_path / "precious").read_text() == "mine"


def lose_one(dest):
    """Takes away a file that is written and waits to be published, as a careless cleaner would."""

    def progress(done, whole, what):
        if done == whole:
            unfinished(dest)[5].unlink()

    return progress


def test_when_not_all_files_can_be_published_none_stays_visible(many, dest, short_files):
    with refused(sl.Conflict):
        export(many, dest, progress=lose_one(dest))
    assert files_below(dest) == set()


def test_when_not_all_files_can_be_published_the_earlier_export_is_still_there(many, parts, dest, short_files):
    export(parts, dest)
    before = contents(dest)
    with refused(sl.Conflict):
        export(many, dest, overwrite=True, progress=lose_one(dest))
    assert contents(dest) == before


def test_an_export_that_is_refused_after_a_crash_leaves_the_old_one(parts, dest):
    """The leftovers go, the export that was there stays."""
    export(parts, dest, where="is_error")
    before = contents(dest)
    die(parts, dest, "export.staged", overwrite=True)
    with refused(sl.Invalid, path=MANIFEST):
        export(parts, dest)
    assert contents(dest) == before


def test_an_export_that_was_whole_when_its_process_died_stays(parts, dest):
    """All but the lock was done, so it is an earlier export like another: refused, or replaced when asked for."""
    die(parts, dest, "export.described")
    before = contents(dest)
    with refused(sl.Invalid, path=MANIFEST):
        export(parts, dest)
    assert contents(dest) == {name: data for name, data in before.items() if name != LOCK}
    check_whole(dest)
    check_equal(dest, parts.to_arrow())


def test_unfinished_files_do_not_match_what_readers_look_for(parts, dest):
    export(parts, dest)
    storage = Destination(str(dest), None, may_replace=True).storage
    with storage.stage(f"{uuid.uuid4().hex}-{uuid.uuid4().hex}.parquet") as stage:
        stage.stream.write(b"half")
        with duckdb.connect() as connection:
            found = connection.sql(f"SELECT count(*) FROM '{dest}/*.parquet'").fetchall()
    assert found == [(parts.to_arrow().num_rows,)]


@pytest.mark.parametrize(
    "manifest",
    ['{"id": "a", "files": [1], "replaces": []}', '{"id": "a", "files": [{}], "replaces": []}', "[]", "{", "null"],
)
def test_a_manifest_that_is_none_is_corrupt_and_nothing_is_touched(parts, dest, manifest):
    dest.mkdir(parents=True)
    (dest / MANIFEST).write_text(manifest)
    with refused(sl.Corrupt, path=MANIFEST):
        export(parts, dest, overwrite=True)
    assert contents(dest) == {MANIFEST: manifest.encode()}


@pytest.mark.parametrize("address", ["", None, 5, "s3://b/../x", "file://host/x", "s3:///x"], ids=str)
def test_an_address_that_names_no_place_is_refused(parts, address):
    with refused(sl.Invalid):
        parts.export(address)


def test_a_place_below_a_file_is_refused(parts, tmp_path):
    (tmp_path / "file").write_text("x")
    with refused(sl.Invalid):
        parts.export(tmp_path / "file" / "below")
