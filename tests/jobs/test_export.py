"""Exports by the driver: the rows of one seq, all or nothing, and never over anything else's files."""

import datetime as dt
import json
import os
import random
import signal
import socket
import threading
import time
import uuid
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
import strandline.jobs.export.export as exports
from strandline.engines.choice import DriverLimit
from strandline.jobs.export import lock as locks
from strandline.jobs.export.destination import MANIFEST, Destination
from strandline.jobs.export.lock import LOCK
from strandline.model.types import JSON, conform
from strandline.storage.open import LocalStorage
from strandline.storage.parquet import writer
from strandline.tables.pins import Pins
from support import ITEMS, Oracle, answer_of, claimed_files, files_below, python, refused, rows_of, start_python, trim

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


@pytest.mark.parametrize("shape", ["clustered", "unkeyed"])
def test_an_export_is_of_the_seq_that_is_asked_for(tables, dest, shape):
    table = tables[shape]
    for seq in range(table.head + 1):
        report = export(table, dest, at=seq, overwrite=True)
        check_equal(dest, conform(table.to_arrow(at=seq), table.schema))
        check_whole(dest, report)
        assert report.seq == seq
    when = table.history()[1].at
    assert export(table, dest, at=when.isoformat(), overwrite=True).seq == 1


@pytest.mark.parametrize("shape", OPTIONS)
@pytest.mark.parametrize(
    "options",
    [
        {"where": "is_error"},
        {"where": "session = 's3' AND part < 3"},
        {"where": "session = 's3' AND part = 2"},
        {"where": "text IS NULL OR more > 10"},
        {"where": "false"},
        {"columns": ["text", "session"]},
        {"columns": ["text", "part"]},
        {"columns": ["more"], "where": "session < 's2'", "at": 2},
    ],
    ids=str,
)
def test_columns_and_rows_may_be_chosen(tables, dest, shape, options):
    table = tables[shape]
    report = export(table, dest, **options)
    check_equal(dest, table.to_arrow(**options))
    check_whole(dest, report)
    assert manifest_of(dest)["where"] == options.get("where")
    assert manifest_of(dest)["columns"] == options.get("columns", table.schema.names)


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


def test_rows_that_have_expired_do_not_leave(make_table, dest):
    table = make_table(pa.schema([*ITEMS, ("day", pa.date32())]), key=["id"], vnodes=2, time="day")
    table.upsert([{"id": n, "day": dt.date(2026, 1, n + 1)} for n in range(10)])
    table.expire(dt.date(2026, 1, 6))
    assert export(table, dest).rows == 5
    check_equal(dest, table.to_arrow())


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


# --- changes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", OPTIONS)
def test_changes_leave_with_their_operation_and_seq(tables, dest, shape):
    table = tables[shape]
    head = table.head
    for after, upto in [(0, None), (0, head), (1, 3), (2, 2), (head, None)]:
        report = export(table, dest, changes=(after, upto), overwrite=True)
        check_equal(dest, table.changes(after, upto))
        check_whole(dest, report)
        assert (report.after, report.seq) == (after, head if upto is None else upto)
    before = contents(dest)
    with refused(sl.Invalid, seq=head + 5):
        export(table, dest, changes=(1, head + 5), overwrite=True)
    assert contents(dest) == before


def test_changes_of_one_cluster_key_lie_together_in_the_order_of_their_seqs(parts, dest):
    export(parts, dest, changes=(0, None))
    check_clustered(dest, ["session"])
    seqs = {}
    for row in read(dest).to_pylist():
        seqs.setdefault(row["session"], []).append(row["_seq"])
    assert all(each == sorted(each) for each in seqs.values())


@pytest.mark.parametrize("names", [["text"], ["text", "session"], ["part", "more"]], ids=str)
def test_changes_of_chosen_columns_always_have_their_key(parts, dest, names):
    export(parts, dest, changes=(0, None), columns=names)
    shown = ["_op", "_seq", *dict.fromkeys(["session", "part", *names])]
    check_equal(dest, parts.changes().select(shown))
    assert manifest_of(dest)["columns"] == shown[2:]


@pytest.mark.parametrize("shape", ["clustered", "keyed"])
@pytest.mark.parametrize("columns", [None, ["text"]], ids=["all", "some"])
def test_an_upsert_that_the_filter_refuses_leaves_as_a_delete_with_only_its_key(tables, dest, shape, columns):
    table = tables[shape]
    export(table, dest, changes=(0, None), where="is_error AND part < 4", columns=columns)
    shown = [
        "_op",
        "_seq",
        "session",
        "part",
        *(columns or [n for n in table.schema.names if n not in OPTIONS[shape]["key"]]),
    ]
    expected = []
    for row in table.changes().to_pylist():
        if not (row["_op"] == "upsert" and row["is_error"] and row["part"] < 4):
            row = {"_op": "delete"} | {name: row[name] for name in ("_seq", "session", "part")}
        expected.append(tuple(row.get(name) for name in shown))
    found = read(dest).select(shown).to_pylist()
    assert sorted((tuple(row.values()) for row in found), key=repr) == sorted(expected, key=repr)
    assert {row["_op"] for row in found} == {"upsert", "delete"}


def test_changes_of_a_table_without_a_key_are_just_filtered(tables, dest):
    table = tables["unkeyed"]
    export(table, dest, changes=(1, None), where="is_error")
    changes = table.changes(1)
    check_equal(dest, changes.filter(changes["is_error"]))


def follow(exported, key, version=None):
    """The copy that exported changes make of a table, applied in the order of their seqs."""
    copy = Oracle(key, version)
    for row in sorted(exported.to_pylist(), key=lambda row: row["_seq"]):
        bare = {name: value for name, value in row.items() if not name.startswith("_")}
        copy.upsert([bare]) if row["_op"] == "upsert" else copy.delete([bare])
    return sorted((tuple(row.values()) for row in copy.copy()), key=repr)


REVISED = pa.schema([("id", pa.int64()), ("name", pa.string()), ("qty", pa.int32()), ("rev", pa.int32())])


def scramble(table, seed, commits=12):
    dice = random.Random(seed)
    for _ in range(commits):
        rows = [
            {
                "id": dice.randrange(8),
                "name": dice.choice("abc"),
                "qty": dice.choice([None, 1, 2]),
                "rev": dice.randrange(5),
            }
            for _ in range(dice.randrange(1, 5))
        ]
        if dice.random() < 0.7:
            table.upsert(list({row["id"]: row for row in rows}.values()))
        else:
            table.delete([row["id"] for row in rows])


def test_a_copy_that_exported_changes_keep_is_the_filtered_table(make_table, tmp_path):
    for seed in range(4):
        table = make_table(REVISED, key=["id"], vnodes=2)
        scramble(table, seed)
        for where in (None, "qty > 1", "name = 'a' OR qty IS NULL"):
            for upto in (3, 7, table.head):
                export(table, tmp_path / "out", changes=(0, upto), where=where, overwrite=True)
                expected = rows_of(table.to_arrow(at=upto, where=where))
                assert follow(read(tmp_path / "out"), ["id"]) == expected, (seed, where, upto)


def test_a_copy_that_exported_changes_keep_is_the_table_also_with_versions(make_table, tmp_path):
    for seed in range(4):
        table = make_table(REVISED, key=["id"], vnodes=2, version="rev")
        scramble(table, seed)
        for columns in (None, ["name"]):
            for upto in (3, 7, table.head):
                export(table, tmp_path / "out", changes=(0, upto), columns=columns, overwrite=True)
                found = read(tmp_path / "out")
                expected = rows_of(table.to_arrow(at=upto, columns=[n for n in found.column_names if n[0] != "_"]))
                assert follow(found, ["id"], "rev") == expected, (seed, columns, upto)


def test_changes_of_a_table_with_versions_are_not_filtered(make_table, dest):
    """The delete that a refused row leaves as would remove a row that stands by its version."""
    table = make_table(REVISED, key=["id"], vnodes=2, version="rev")
    scramble(table, 1)
    with refused(sl.Invalid, column="rev"):
        export(table, dest, changes=(0, None), where="qty > 1")
    assert not dest.exists()


def test_changes_that_are_not_kept_are_refused(own_parts, dest):
    trim(own_parts, 2)
    with refused(sl.NotRetained, oldest=2):
        export(own_parts, dest, changes=(1, None))
    assert not dest.exists()
    export(own_parts, dest, changes=(2, None))
    check_equal(dest, own_parts.changes(2))


# --- what is refused -----------------------------------------------------------------------------------------------

WRONG = {
    "unknown column": ({"columns": ["nope"]}, {"column": "nope"}),
    "no columns": ({"columns": []}, {}),
    "columns as a text": ({"columns": "text"}, {"column": "text"}),
    "a column twice": ({"columns": ["text", "text"]}, {}),
    "filter by an unknown column": ({"where": "nope > 1"}, {}),
    "filter that is no expression": ({"where": "part >"}, {}),
    "filter by a wrong type": ({"where": "part > 'x'"}, {}),
    "two statements": ({"where": "true; DROP TABLE parts"}, {}),
    "seq beyond the head": ({"at": 99}, {"seq": 99}),
    "negative seq": ({"at": -1}, {}),
    "no time": ({"at": "soon"}, {}),
    "range beyond the head": ({"changes": (99, None)}, {"seq": 99}),
    "range backwards": ({"changes": (3, 1)}, {"seq": 3}),
    "negative range": ({"changes": (-1, None)}, {}),
    "range from nowhere": ({"changes": (None, 1)}, {}),
    "range of texts": ({"changes": ("0", None)}, {}),
    "seq and range": ({"at": 1, "changes": (0, 1)}, {"table": "parts_clustered"}),
    "filter of changes": ({"changes": (0, None), "where": "nope"}, {}),
    "columns of changes": ({"changes": (0, None), "columns": ["_op"]}, {"column": "_op"}),
    "S3 options for a folder": ({"options": {"region": "x"}}, {}),
}


@pytest.mark.parametrize(("options", "fields"), WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments_are_refused_before_anything_is_written(parts, dest, options, fields):
    for call in (export, lambda table, dest, **rest: table.export(dest, dry_run=True, **rest)):
        with refused(sl.Invalid, **fields):
            call(parts, dest, **options)
        assert not dest.parent.exists()


@pytest.mark.parametrize("changes", [5, (1,), (0, 1, 2), "0..5"], ids=str)
def test_a_range_that_is_no_pair_of_seqs_is_refused(parts, dest, changes):
    with refused(sl.Invalid):
        export(parts, dest, changes=changes)
    assert not dest.exists()


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


# --- what is there already -----------------------------------------------------------------------------------------


def contents(folder):
    return {name: (Path(folder) / name).read_bytes() for name in files_below(folder)}


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


# --- failures ------------------------------------------------------------------------------------------------------


@pytest.fixture
def many(lake):
    """A table whose rows come in several batches."""
    table = lake.create_table("many", pa.schema([("k", pa.int64()), ("x", pa.string())]), cluster_by=["k"], vnodes=1)
    table.append(pa.table({"k": [at // 10_000 for at in range(130_000)], "x": [f"x{at % 7}" for at in range(130_000)]}))
    return table


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


@pytest.fixture
def short_files(monkeypatch):
    """Files end after a group, and groups after ten thousand rows."""
    monkeypatch.setitem(writer.stage_files.__kwdefaults__, "budget", writer.Budget(group_rows=10_000, file_bytes=1))


def unfinished(dest):
    names = sorted(files_below(dest))
    return [dest / name for name in names if name.endswith(".parquet~") and name.startswith(".tmp-")]


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


def test_while_one_process_exports_another_is_refused(parts, dest, tmp_path):
    sign = str(tmp_path / "sign")
    other = start_python(EXPORT, parts.log.storage.uri, parts.name, str(dest), "{}", sign)
    wait_for(sign, other)
    held = json.loads((dest / LOCK).read_text())
    assert held["holder"] == f"{socket.gethostname()}:{other.pid}"
    before = contents(dest)
    for overwrite in (False, True):
        with refused(sl.Conflict, path=LOCK):
            export(parts, dest, overwrite=overwrite)
    assert contents(dest) == before
    assert pq.ParquetDataset(dest).files == [], "what is being written is not visible"
    Path(sign + ".go").touch()
    assert answer_of(other)["rows"] == parts.to_arrow().num_rows
    check_whole(dest)
    check_equal(dest, parts.to_arrow())


def test_a_lock_from_another_machine_is_never_taken_over(parts, dest):
    dest.mkdir(parents=True)
    (dest / LOCK).write_text(json.dumps({"id": "1" * 32, "holder": "elsewhere:1", "since": "2026-01-01T00:00:00"}))
    with refused(sl.Conflict, path=LOCK):
        export(parts, dest)
    assert files_below(dest) == {LOCK}


def test_two_threads_of_one_process_do_not_export_to_one_place(parts, dest):
    """The process is alive, so its own lock counts as well."""
    with Destination(str(dest), None, is_replaced=False).claimed(), refused(sl.Conflict, path=LOCK):
        export(parts, dest)
    assert files_below(dest) == set()


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


def die(parts, dest, point, **options):
    ended = python(EXPORT, parts.log.storage.uri, parts.name, str(dest), json.dumps(options), crash=point)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert LOCK in files_below(dest)


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


def test_of_two_that_find_the_lock_of_a_dead_process_one_gets_it(parts, dest, monkeypatch):
    """The slower one has seen the dead lock before the quicker one took it over; it must not take it from that one."""
    die(parts, dest, "export.staged")
    has_looked, has_it, over = threading.Event(), threading.Event(), threading.Event()
    is_gone = locks.is_gone
    outcome = []

    def slow(holder):
        gone = is_gone(holder)
        if threading.current_thread().name == "slower" and gone:
            has_looked.set()
            assert has_it.wait(30)
        return gone

    def late():
        try:
            export(parts, dest)
            outcome.append(None)
        except sl.StrandlineError as error:
            outcome.append(error)
        over.set()

    monkeypatch.setattr(locks, "is_gone", slow)
    thread = threading.Thread(target=late, name="slower")
    thread.start()
    assert has_looked.wait(30)
    with Destination(str(dest), None, is_replaced=False).claimed():
        has_it.set()
        over.wait(30)
    thread.join()
    assert [type(each) for each in outcome] == [sl.Conflict]


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


def test_unfinished_files_do_not_match_what_readers_look_for(parts, dest):
    export(parts, dest)
    storage = Destination(str(dest), None, is_replaced=True).storage
    with storage.stage(f"{uuid.uuid4().hex}-{uuid.uuid4().hex}.parquet") as stage:
        stage.stream.write(b"half")
        with duckdb.connect() as connection:
            found = connection.sql(f"SELECT count(*) FROM '{dest}/*.parquet'").fetchall()
    assert found == [(parts.to_arrow().num_rows,)]


def test_a_lock_whose_creation_got_no_answer_is_ours(dest):
    class Deaf(LocalStorage):
        def put_new(self, path, data):
            super().put_new(path, data)
            return False

    storage = Deaf(str(dest))
    held = locks.acquire(storage, "a" * 32)
    assert files_below(dest) == {LOCK}
    held.release()
    assert files_below(dest) == set()


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


def test_the_driver_takes_what_a_filter_or_few_columns_make_small(many, dest, monkeypatch):
    """What is known of the files is of all rows and columns; a look into them says how little is asked for."""
    whole = many.export(dest, dry_run=True).raw_bytes
    monkeypatch.setattr(exports, "BULK", DriverLimit(2_000_000, whole // 2))
    assert many.export(dest, dry_run=True).engine == "spark"
    for options in ({"where": "k = 3"}, {"columns": ["k"]}):
        plan = many.export(dest, dry_run=True, **options)
        assert (plan.engine, plan.rows) == ("driver", many.to_arrow(**options).num_rows)
