"""Files are loaded once: what is remembered, what is loaded of a file that changed, what several commits hold."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.engines.choice import DriverLimit
from strandline.jobs.ingest import load as loading
from strandline.jobs.ingest.loaded_files import Loaded
from support import ITEMS, answer_of, by_id, python, refused, start_python


def lines(*ids: int, name: str = "n") -> str:
    return "".join(json.dumps({"id": i, "name": f"{name}{i}", "qty": i % 7}) + "\n" for i in ids)


def rows_in(table: sl.Table) -> list[int]:
    return sorted(table.to_arrow(columns=["id"]).column("id").to_pylist())


def actions(report: Any) -> list[str]:
    return [file.action for file in report.files]


@pytest.fixture
def events(lake: sl.Lake) -> sl.Table:
    """An append-only table, where a row that is loaded twice shows."""
    return lake.create_table("events", ITEMS)


@pytest.fixture(params=["events", "items"])
def table(request: pytest.FixtureRequest) -> sl.Table:
    return request.getfixturevalue(request.param)


@pytest.fixture
def load(lake: sl.Lake, tmp_path: Path) -> Callable[..., Any]:
    def call(table: sl.Table, *files: str, **options: Any) -> Any:
        return lake.ingest(table.name, [str(tmp_path / file) for file in files], **options)

    return call


def test_an_unchanged_file_is_skipped_without_being_read(
    table: sl.Table, load: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(lines(1, 2))
    assert load(table, "a.jsonl").rows == 2
    stat = file.stat()
    file.write_text(lines(3, 4))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    # Same size and time: nothing says that it changed, and it is not read to find out.
    report = load(table, "a.jsonl")
    assert (actions(report), report.rows, report.seqs) == (["skip"], 0, ())
    assert rows_in(table) == [1, 2]
    assert table.head == 1


def test_a_touched_file_is_not_loaded_twice_and_read_only_once_more(
    table: sl.Table, load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(lines(1, 2))
    load(table, "a.jsonl")
    os.utime(file, ns=(1, 1))
    assert actions(load(table, "a.jsonl")) == ["skip"]
    monkeypatch.setattr("strandline.jobs.ingest.plan.digest_of", lambda source: pytest.fail("the file was read"))
    assert actions(load(table, "a.jsonl")) == ["skip"]
    assert rows_in(table) == [1, 2]


def test_a_moved_file_is_not_loaded_twice(table: sl.Table, load: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1, 2))
    load(table, "a.jsonl")
    (tmp_path / "done").mkdir()
    (tmp_path / "a.jsonl").rename(tmp_path / "done" / "b.jsonl")
    assert actions(load(table, "done/*.jsonl")) == ["skip"]
    assert rows_in(table) == [1, 2]


def test_a_copy_is_not_appended_twice(events: sl.Table, load: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1, 2))
    (tmp_path / "b.jsonl").write_text(lines(1, 2))
    assert actions(load(events, "*.jsonl")) == ["load", "skip"]
    (tmp_path / "c.jsonl").write_text(lines(1, 2))
    assert actions(load(events, "*.jsonl")) == ["skip", "skip", "skip"]
    assert rows_in(events) == [1, 2]
    assert actions(load(events, "c.jsonl", again=True)) == ["load"]
    assert rows_in(events) == [1, 1, 2, 2]


def test_a_later_file_with_an_old_content_sets_keyed_rows_back(
    items: sl.Table, load: Callable[..., Any], tmp_path: Path
) -> None:
    for number, name in enumerate(["open", "closed", "open"]):
        (tmp_path / f"{number}.jsonl").write_text(lines(1, name=name))
        load(items, f"{number}.jsonl")
    assert by_id(items) == {1: "open1"}
    # The same at one place: a file that is written back to what it was.
    (tmp_path / "2.jsonl").write_text(lines(1, name="other"))
    load(items, "2.jsonl")
    (tmp_path / "2.jsonl").write_text(lines(1, name="open"))
    assert actions(load(items, "2.jsonl")) == ["load"]
    assert by_id(items) == {1: "open1"}


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "jsonl.gz", "csv.gz"])
def test_of_a_grown_file_only_the_rest_is_loaded(
    events: sl.Table, load: Callable[..., Any], tmp_path: Path, suffix: str
) -> None:
    file = tmp_path / f"a.{suffix}"
    write = gzip.open if suffix.endswith("gz") else open

    def append(*ids: int) -> None:
        with write(file, "at") as out:
            if "csv" in suffix:
                out.write("" if ids[0] > 1 else "id,name,qty\n")
                out.writelines(f"{i},n{i},{i}\n" for i in ids)
            else:
                out.write(lines(*ids))

    append(1, 2)
    load(events, file.name)
    append(3)
    report = load(events, file.name)
    assert (actions(report), report.rows) == (["continue"], 1)
    append(4, 5)
    assert load(events, file.name).rows == 2
    assert actions(load(events, file.name)) == ["skip"]
    assert rows_in(events) == [1, 2, 3, 4, 5]


def test_growing_leaves_one_memory_of_the_file(events: sl.Table, load: Callable[..., Any], tmp_path: Path) -> None:
    for number in range(1, 6):
        with open(tmp_path / "a.jsonl", "a") as file:
            file.write(lines(number))
        load(events, "a.jsonl")
    events.log.delta.checkpoint()
    fresh = sl.Lake(events.log.storage.uri).table("events")
    kept = [app for app in fresh.log.refresh().snapshot.txns if app.startswith("ingest/")]
    assert len(kept) == 1
    assert Loaded.parse(kept[0], 0).lines == 5
    assert actions(load(fresh, "a.jsonl")) == ["skip"]


def test_the_memory_does_not_expire(events: sl.Table, load: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1))
    load(events, "a.jsonl")
    txns = [a["txn"] for a in events.log.delta.actions(1) if "txn" in a]
    assert [set(txn) for txn in txns] == [{"appId", "version"}], "a lastUpdated would let it expire"


def test_a_last_line_without_end_is_loaded_by_key_and_may_be_continued_by_a_new_line_only(
    items: sl.Table, load: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("id,name,qty\n1,a,1\n2,b,2")
    assert load(items, "a.csv").rows == 2
    file.write_text("id,name,qty\n1,a,1\n2,b,2\n3,c,3")
    assert actions(load(items, "a.csv")) == ["continue"]
    assert rows_in(items) == [1, 2, 3]
    file.write_text("id,name,qty\n1,a,1\n2,b,2\n3,c,34\n")
    report = load(items, "a.csv")
    assert (actions(report), report.files[0].why, report.rows) == (["load"], "rewritten", 3)
    assert rows_in(items) == [1, 2, 3]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_without_a_key_an_unfinished_last_line_waits_for_its_end(
    lake: sl.Lake, load: Callable[..., Any], tmp_path: Path, suffix: str
) -> None:
    texts = {"csv": "id,name,qty\n1,aaa,1\n2,bbbb,2\n3,c,3\n", "jsonl": lines(1, 2, 3)}
    text, file = texts[suffix], tmp_path / f"a.{suffix}"
    first, second = [place for place, sign in enumerate(text) if sign == "\n"][-3:-1]
    file.write_text(text[: second - 3])
    report = lake.ingest("made", [str(file)], key=[])
    assert (report.rows, report.files[0].unfinished_bytes) == (1, second - 3 - first - 1)
    made = lake.table("made")
    # Asked again, also once touched or under another name, there is nothing to load: no row twice, no empty commit.
    assert actions(load(made, file.name)) == ["skip"]
    assert made.head == 1
    (tmp_path / f"b.{suffix}").write_text(file.read_text())
    assert actions(load(made, f"*.{suffix}")) == ["skip", "skip"]
    file.write_text(text[:-1])
    report = load(made, file.name)
    assert (actions(report), report.rows) == (["continue"], 1)
    file.write_text(text)
    assert load(made, file.name).rows == 1
    assert rows_in(made) == [1, 2, 3]
    assert actions(load(made, file.name, again=True)) == ["load"]


def test_without_a_key_a_file_of_one_unfinished_line_makes_no_table(lake: sl.Lake, tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.csv"):
        (tmp_path / name).write_text('{"id":1}' if name == "a.jsonl" else "id,na")
        with refused(sl.Invalid, file=str(tmp_path / name)):
            lake.ingest("made", [str(tmp_path / name)], key=[])
    assert lake.tables() == []
    assert lake.ingest("made", [str(tmp_path / "a.jsonl")], key=["id"]).rows == 1


def test_an_unfinished_only_line_is_loaded_when_it_ends(
    events: sl.Table, load: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(lines(1)[:-1])
    assert load(events, "a.jsonl").rows == 0
    assert actions(load(events, "a.jsonl")) == ["skip"]
    file.write_text(lines(1, 2))
    assert load(events, "a.jsonl").rows == 2
    assert rows_in(events) == [1, 2]


def test_without_a_key_a_compressed_file_that_was_written_anew_is_refused(
    events: sl.Table, items: sl.Table, load: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "a.jsonl.gz"
    for table in (events, items):
        file.write_bytes(gzip.compress(lines(1, 2).encode(), 1))
        assert load(table, file.name).rows == 2
    file.write_bytes(gzip.compress(lines(1, 2, 3).encode(), 9))
    with refused(sl.Invalid, file=str(file)):
        load(events, file.name)
    assert rows_in(events) == [1, 2]
    assert load(items, file.name).rows == 3
    assert load(events, file.name, again=True).rows == 3
    # A new file under a name whose old file is here under another one is new.
    file.rename(tmp_path / "b.jsonl.gz")
    file.write_bytes(gzip.compress(lines(9).encode()))
    assert sorted(actions(load(events, "*.gz"))) == ["load", "skip"]


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


def test_a_rewritten_file_is_loaded_anew(items: sl.Table, load: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1, 2))
    load(items, "a.jsonl")
    (tmp_path / "a.jsonl").write_text(lines(2, 3, 4, name="new"))
    assert actions(load(items, "a.jsonl")) == ["load"]
    assert by_id(items) == {1: "n1", 2: "new2", 3: "new3", 4: "new4"}


def test_a_log_that_was_rotated_loses_and_doubles_nothing(
    events: sl.Table, load: Callable[..., Any], tmp_path: Path
) -> None:
    log = tmp_path / "app.jsonl"
    log.write_text(lines(1, 2))
    load(events, "app*.jsonl")
    with log.open("a") as file:
        file.write(lines(3))
    log.rename(tmp_path / "app.1.jsonl")
    log.write_text(lines(4))
    assert sorted(actions(load(events, "app*.jsonl"))) == ["continue", "load"]
    assert rows_in(events) == [1, 2, 3, 4]
    assert actions(load(events, "app*.jsonl")) == ["skip", "skip"]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_file_with_two_names_is_loaded_once(
    events: sl.Table, load: Callable[..., Any], tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1))
    link(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert actions(load(events, "*.jsonl")) == ["load", "skip"]
    with open(tmp_path / "b.jsonl", "a") as file:
        file.write(lines(2))
    assert actions(load(events, "*.jsonl")) == ["continue", "skip"]
    assert actions(load(events, "*.jsonl")) == ["skip", "skip"]
    assert rows_in(events) == [1, 2]


def test_small_files_share_a_commit_and_large_ones_have_their_own(
    events: sl.Table, load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "GROUP_BYTES", 1000)
    for number in range(6):
        count = 100 if number == 3 else 2
        (tmp_path / f"{number}.jsonl").write_text(lines(*range(number * 1000, number * 1000 + count)))
    report = load(events, "*.jsonl")
    assert [file.seq for file in report.files] == [1, 1, 1, 2, 3, 3]
    assert len(rows_in(events)) == report.rows == 110


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


def test_a_missing_table_is_created_from_the_first_file(lake: sl.Lake, tmp_path: Path) -> None:
    row = {
        "id": 1, "zip": "00501", "price": 1.5, "at": "2024-01-31T12:00:00Z", "day": "2024-01-31", "ok": True,
        "doc": {"a": [1, 2]}, "note": None,
    }  # fmt: skip
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**row, "id": 2, "price": 2}) + "\n")
    with refused(sl.NotFound, table="made"):
        lake.ingest("made", [str(tmp_path / "a.jsonl")])
    report = lake.ingest("made", [str(tmp_path / "a.jsonl")], key=["id"])
    assert report.is_created and report.rows == 2
    made = lake.table("made")
    assert made.definition.key == ("id",)
    assert [str(field.type) for field in made.schema] == [
        "int64", "string", "double", "timestamp[us, tz=UTC]", "date32[day]", "bool", "extension<arrow.json>", "string",
    ]  # fmt: skip
    assert made.to_arrow(where="id = 1").to_pylist()[0]["doc"] == '{"a": [1, 2]}'
    # The same command again: the table is there and is the one asked for.
    assert actions(lake.ingest("made", [str(tmp_path / "a.jsonl")], key=["id"])) == ["skip"]
    with refused(sl.Invalid, table="made"):
        lake.ingest("made", [str(tmp_path / "a.jsonl")], key=["zip"])


def test_csv_columns_get_a_type_only_if_every_value_has_it(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,zip,mixed,day,f,e\n1,00501,1,2024-01-31,1.5,\n2,10001,x,2024-02-01,2,\n")
    lake.ingest("made", [str(tmp_path / "a.csv")], key=[])
    types = [str(field.type) for field in lake.table("made").schema]
    assert types == ["int64", "string", "string", "date32[day]", "double", "string"]
    assert lake.table("made").to_arrow(columns=["zip"]).column("zip").to_pylist() == ["00501", "10001"]


def test_a_dry_run_writes_nothing(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1))
    report = lake.ingest("made", [str(tmp_path / "a.jsonl")], key=["id"], dry_run=True)
    assert (report.is_dry, actions(report), report.seqs) == (True, ["load"], ())
    assert lake.tables() == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [("*.nothing", sl.NotFound), ("none.jsonl", sl.NotFound), ("folder", sl.Invalid), ("a.xlsx", sl.Invalid)],
)
def test_files_that_cannot_be_are_refused(
    items: sl.Table, load: Callable[..., Any], tmp_path: Path, name: str, kind: type[sl.StrandlineError]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.xlsx").write_text("x")
    with refused(kind):
        load(items, name)


def test_two_processes_load_the_same_files_once(events: sl.Table, tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.jsonl").write_text(lines(*range(number * 100, number * 100 + 100)))
    code = """
import sys, json, strandline as sl
from strandline.jobs.ingest import load
load.GROUP_BYTES = 5000
print(json.dumps(sl.Lake(sys.argv[1]).ingest("events", [sys.argv[2]]).rows))
"""
    started = [start_python(code, events.log.storage.uri, str(tmp_path / "*.jsonl")) for _ in range(3)]
    assert sum(answer_of(process) for process in started) == 800
    assert rows_in(events) == list(range(800))


def test_two_threads_load_a_growing_file_once(events: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(lines(0))
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            mine = sl.Lake(lake.storage.uri)
            while len(rows_in(mine.table("events"))) < 30:
                mine.ingest("events", [str(file)])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=follow) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 30):
        with file.open("a") as out:
            out.write(lines(number))
    for thread in threads:
        thread.join()
    assert not failures
    assert rows_in(events) == list(range(30))


def test_a_file_too_large_for_the_driver_goes_through_spark_whole_and_once(
    events: sl.Table, load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: object
) -> None:
    monkeypatch.setitem(loading.write.__kwdefaults__, "limit", DriverLimit(0, 1000))
    (tmp_path / "a.jsonl").write_text(lines(*range(500)) + "bad\n" + lines(*range(500, 1000)))
    with refused(sl.Invalid, line=501):
        load(events, "a.jsonl")
    report = load(events, "a.jsonl", rejects=True)
    assert (report.rows, report.rejects) == (1000, 1)
    assert actions(load(events, "a.jsonl")) == ["skip"]
    assert rows_in(events) == list(range(1000))


_LOAD = """
import sys, strandline as sl
sl.Lake(sys.argv[1]).ingest("events", [sys.argv[2]], key=[], rejects=True)
"""


@pytest.mark.parametrize(
    "point",
    [
        "ingest.created", "ingest.file_read", "ingest.file_read:3", "log.file_written", "rejects.before_commit",
        "rejects.committed", "ingest.before_commit", "ingest.before_commit:2", "delta.before_commit",
        "delta.before_commit:2", "delta.committed:2", "log.committed", "log.committed:3", "ingest.committed",
        "ingest.committed:2",
    ],
)  # fmt: skip
def test_rows_and_rejects_are_there_once_after_a_kill_at(point: str, tmp_path: Path) -> None:
    for number in range(4):
        good = lines(*range(number * 10, number * 10 + 10))
        (tmp_path / f"{number}.jsonl").write_text(good + '{"id": "bad"}\n')
    uri, files = str(tmp_path / "lake"), str(tmp_path / "*.jsonl")
    code = "from strandline.jobs.ingest import load; load.GROUP_FILES = 2\n" + _LOAD
    killed = python(code, uri, files, crash=point)
    assert killed.returncode == -9, killed.stderr
    again = python(code, uri, files)
    assert again.returncode == 0, again.stderr
    lake = sl.Lake(uri)
    assert rows_in(lake.table("events")) == list(range(40))
    assert lake.status().tables[0].rejects == 4
    report = lake.ingest("events", [files])
    assert actions(report) == ["skip"] * 4


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
