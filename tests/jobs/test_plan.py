"""What is to be loaded of a file: all of it, what came since, or nothing."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ingested
import strandline as sl
from ingested import actions, lines, rows_in
from support import by_id, refused

events = ingested.events
table = ingested.table
load = ingested.load


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


@pytest.mark.parametrize("suffix", ["csv"])
def test_an_unfinished_last_line_waits_for_its_end_when_told_to(
    lake: sl.Lake, load: Callable[..., Any], tmp_path: Path, suffix: str
) -> None:
    texts = {"csv": "id,name,qty\n1,aaa,1\n2,bbbb,2\n3,c,3\n"}
    text, file = texts[suffix], tmp_path / f"a.{suffix}"
    first, second = [place for place, sign in enumerate(text) if sign == "\n"][-3:-1]
    file.write_text(text[: second - 3])
    report = lake.ingest("made", [str(file)], key=[], last_line="wait")
    assert (report.rows, report.files[0].unfinished_bytes) == (1, second - 3 - first - 1)
    made = lake.table("made")
    # Asked again, also once touched or under another name, there is nothing to load: no row twice, no empty commit.
    assert actions(load(made, file.name, last_line="wait")) == ["skip"]
    assert made.head == 1
    (tmp_path / f"b.{suffix}").write_text(file.read_text())
    assert actions(load(made, f"*.{suffix}", last_line="wait")) == ["skip", "skip"]
    file.write_text(text[:-1])
    report = load(made, file.name, last_line="wait")
    assert (actions(report), report.rows) == (["continue"], 1)
    file.write_text(text)
    assert load(made, file.name).rows == 1
    assert rows_in(made) == [1, 2, 3]
    assert actions(load(made, file.name, again=True)) == ["load"]


def test_an_unfinished_only_line_is_loaded_when_it_ends(
    events: sl.Table, load: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(lines(1)[:-2])
    assert load(events, "a.jsonl", last_line="wait").rows == 0
    assert actions(load(events, "a.jsonl", last_line="wait")) == ["skip"]
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


@pytest.mark.parametrize("key", [["sku"], ["sku", "day"], []])
def test_equal_files_below_other_folders_are_other_rows(lake: sl.Lake, tmp_path: Path, key: list[str]) -> None:
    for day in ("2024-01-01", "2024-01-02"):
        (tmp_path / "h" / f"day={day}").mkdir(parents=True)
        path = tmp_path / "h" / f"day={day}" / "x.csv"
        path.write_text("sku,qty\nA,1\n")
        os.utime(path, ns=(10**18, 10**18))
    report = lake.ingest("s", [str(tmp_path / "h")], key=key)
    assert [file.action for file in report.files] == ["load", "load"]
    found = lake.table("s").to_arrow().to_pylist()
    assert sorted(str(row["day"]) for row in found) == (
        ["2024-01-02"] if key == ["sku"] else ["2024-01-01", "2024-01-02"]
    )
    assert [file.action for file in lake.ingest("s", [str(tmp_path / "h")]).files] == ["skip", "skip"]
    (tmp_path / "h" / "day=2024-01-03").mkdir()
    path.rename(tmp_path / "h" / "day=2024-01-03" / "x.csv")
    assert lake.ingest("s", [str(tmp_path / "h")]).rows == 1, "in another folder the rows have another value"


def test_a_rewritten_file_is_refused_without_a_key(events: sl.Table, load: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1, 2))
    load(events, "a.jsonl")
    (tmp_path / "a.jsonl").write_text(lines(2, 1, 3))
    with pytest.raises(sl.Invalid, match=r"a\.jsonl was loaded at seq 1 and has changed") as caught:
        load(events, "a.jsonl")
    assert "--again" in str(caught.value.hint)
    assert rows_in(events) == [1, 2]
    assert load(events, "a.jsonl", again=True).rows == 3
