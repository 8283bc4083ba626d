"""What an export reads: the rows or the changes that were asked for, of one seq."""

import datetime as dt
import random

import pyarrow as pa
import pytest

import exporting
import strandline as sl
import strandline.jobs.export.export as exports
from exporting import (
    OPTIONS,
    check_clustered,
    check_equal,
    check_whole,
    contents,
    export,
    manifest_of,
    read,
)
from strandline.engines.choice import DriverLimit
from strandline.model.types import conform
from support import ITEMS, Oracle, refused, rows_of, trim

tables = exporting.tables
parts = exporting.parts
own_parts = exporting.own_parts
dest = exporting.dest
many = exporting.many


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


def test_rows_that_have_expired_do_not_leave(make_table, dest):
    table = make_table(pa.schema([*ITEMS, ("day", pa.date32())]), key=["id"], vnodes=2, time="day")
    table.upsert([{"id": n, "day": dt.date(2026, 1, n + 1)} for n in range(10)])
    table.expire(dt.date(2026, 1, 6))
    assert export(table, dest).rows == 5
    check_equal(dest, table.to_arrow())


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


def test_the_driver_takes_what_a_filter_or_few_columns_make_small(many, dest, monkeypatch):
    """What is known of the files is of all rows and columns; a look into them says how little is asked for."""
    whole = many.export(dest, dry_run=True).raw_bytes
    monkeypatch.setattr(exports, "BULK", DriverLimit(2_000_000, whole // 2))
    assert many.export(dest, dry_run=True).engine == "spark"
    for options in ({"where": "k = 3"}, {"columns": ["k"]}):
        plan = many.export(dest, dry_run=True, **options)
        assert (plan.engine, plan.rows) == ("driver", many.to_arrow(**options).num_rows)
