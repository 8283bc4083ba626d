"""Refused rows are loaded again once they fit: each once, also after a kill and beside another process."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import strandline as sl
from strandline.jobs.ingest.retry import TableRejects
from support import python, refused

JSON_FILE = """[{"id": 1, "v": 1},
{"id": 2, "v": 2, "more": "x"},
{"id": 3, "v": "bad"}, {"id": 4, "v": 4,
 "more": 5}]"""


def load(lake: sl.Lake, path: Path, text: str) -> None:
    path.write_text(text)
    lake.ingest("items", [str(path)], rejects=True)


@pytest.fixture
def items(lake: sl.Lake) -> sl.Table:
    return lake.create_table("items", "id:int64!, v:int64, note:string", key=["id"])


def ids(table: sl.Table) -> list[int]:
    return sorted(table.to_arrow(columns=["id"]).column("id").to_pylist())


def test_rows_that_fit_now_are_loaded_and_the_others_keep_a_new_reason(
    lake: sl.Lake, items: sl.Table, tmp_path: Path
) -> None:
    load(lake, tmp_path / "a.json", JSON_FILE)
    rejects = items.rejects()
    assert (ids(items), rejects.count()) == ([1], 3)
    assert rejects.retry().rows == 0 and items.head == 1
    items.add_column("more", "string")
    plan = rejects.plan_retry()
    assert (plan.rows, plan.kept, plan.replaces) == (2, 1, 0)
    report = rejects.retry()
    assert (report.rows, report.kept, report.seq) == (2, 1, items.head)
    assert ids(items) == [1, 2, 4]
    assert items.to_arrow(where="id = 4").to_pylist()[0]["more"] == "5"
    (row,) = rejects.latest(5)
    assert (row["line"], row["column"]) == (3, "v")
    assert items.rejects().retry().rows == 0


def test_a_retry_keeps_the_values_of_columns_that_the_file_lacks(lake: sl.Lake, tmp_path: Path) -> None:
    table = lake.create_table("items", "id:int64!, v:int8, note:string, more:string", key=["id"])
    table.upsert([{"id": at, "v": at, "note": f"n{at}", "more": f"m{at}"} for at in range(4)])
    for name, text in (("a", "id,v\n1,1000\n"), ("b", "more,id,v\nnew,2,2000\n,3,3000\n"), ("c", "v,id\n4000,9\n")):
        (tmp_path / f"{name}.csv").write_text(text)
        lake.ingest("items", [tmp_path / f"{name}.csv"], rejects=True)
    table.evolve(pa.schema([("v", pa.int64())]))
    assert table.rejects().retry().rows == 4
    rows = sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())
    assert rows == [
        (0, 0, "n0", "m0"),
        (1, 1000, "n1", "m1"),
        (2, 2000, "n2", "new"),
        (3, 3000, "n3", None),
        (9, 4000, None, None),
    ]


def test_csv_rows_are_read_in_the_dialect_of_their_file(lake: sl.Lake, tmp_path: Path) -> None:
    table = lake.create_table("items", "id:int64!, v:int8, note:string", key=["id"])
    load(lake, tmp_path / "a.csv", 'id;v;note\n10;1;fine\n11;1000;"a; ""b""\nc"\n12;x;y\n13;4\n')
    rejects = table.rejects()
    assert (ids(table), rejects.count()) == ([10], 3)
    table.evolve(pa.schema([("v", pa.int64())]))
    assert rejects.retry().rows == 1
    assert table.to_arrow(where="id = 11").to_pylist() == [{"id": 11, "v": 1000, "note": 'a; "b"\nc'}]
    assert rejects.count() == 2


def test_a_row_that_replaces_one_of_the_table_is_counted_first(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> None:
    load(lake, tmp_path / "a.jsonl", '{"id": 1, "more": 1}\n{"id": 2, "more": 2}\n')
    items.upsert([{"id": 1, "v": 100, "note": "newer"}])
    items.add_column("more", "int64")
    assert items.rejects().plan_retry().replaces == 1


def test_rows_of_one_file_can_be_retried_or_dropped(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        load(lake, tmp_path / name, f'{{"id": {ord(name[0])}, "more": 1}}\n{{"id": "x"}}\n')
    rejects = items.rejects()
    groups = rejects.list()
    assert [(Path(group.file).name, group.column, group.count) for group in groups] == [
        ("a.jsonl", "more", 1), ("a.jsonl", "id", 1), ("b.jsonl", "more", 1), ("b.jsonl", "id", 1),
    ]  # fmt: skip
    items.add_column("more", "int64")
    assert rejects.retry(file="a.jsonl").rows == 1
    assert ids(items) == [97]
    assert rejects.drop(file=str(tmp_path / "b.jsonl")) == 2
    assert rejects.count() == 1
    assert rejects.drop() == 1 and rejects.count() == 0 and rejects.list() == []


def test_rejects_go_away_when_their_file_was_loaded_well(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    load(lake, file, '{"id": 1}\n{"id": "x"}\n{"id": 2, "more": 1}\n')
    load(lake, tmp_path / "b.jsonl", '{"id": "y"}\n')
    assert items.rejects().count() == 3
    items.add_column("more", "int64")
    lake.ingest("items", [str(file)], rejects=True, again=True)
    assert [row["text"] for row in items.rejects().latest(9)] == ['{"id": "y"}', '{"id": "x"}']
    load(lake, file, '{"id": 1}\n{"id": 3}\n')
    assert [row["text"] for row in items.rejects().latest(9)] == ['{"id": "y"}']
    # Only the new part of a file: what its first part has refused stays.
    load(lake, tmp_path / "b.jsonl", '{"id": "y"}\n{"id": 4}\n')
    assert items.rejects().count() == 1


def test_bytes_that_are_not_utf8_are_not_retried(lake: sl.Lake, tmp_path: Path) -> None:
    table = lake.create_table("items", "id:int64!, note:string", key=["id"])
    (tmp_path / "a.jsonl").write_bytes(b'{"id": 1, "note": "\xff"}\n{"id": 2}\n')
    lake.ingest("items", [str(tmp_path / "a.jsonl")], rejects=True)
    assert (table.rejects().retry().kept, ids(table)) == (1, [2])


_RETRY = """
import sys, strandline as sl
sl.Lake(sys.argv[1]).table("events").rejects().retry()
"""


@pytest.mark.parametrize("point", ["retry.parted", "retry.loaded", "log.committed", "delta.before_commit:2"])
def test_a_retried_row_is_there_once_after_a_kill_at(point: str, tmp_path: Path) -> None:
    lake = sl.Lake(tmp_path / "lake")
    events = lake.create_table("events", "id:int64")
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n{"id": 2, "more": 1}\n{"id": "x"}\n{"id": 3, "more": 1}\n')
    lake.ingest("events", [str(tmp_path / "a.jsonl")], rejects=True)
    events.add_column("more", "int64")
    killed = python(_RETRY, str(tmp_path / "lake"), crash=point)
    assert killed.returncode == -9, killed.stderr
    (tmp_path / "b.jsonl").write_text('{"id": "new"}\n')
    lake.ingest("events", [str(tmp_path / "b.jsonl")], rejects=True)
    again = sl.Lake(tmp_path / "lake").table("events")
    again.rejects().retry()
    assert ids(again) == [1, 2, 3]
    assert sorted(row["text"] for row in again.rejects().latest(9)) == ['{"id": "new"}', '{"id": "x"}']


def test_two_retries_at_once_load_each_row_once(lake: sl.Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = lake.create_table("events", "id:int64")
    (tmp_path / "a.jsonl").write_text('{"id": 2, "more": 1}\n{"id": "x"}\n')
    lake.ingest("events", [str(tmp_path / "a.jsonl")], rejects=True)
    events.add_column("more", "int64")
    real = TableRejects._load

    def load_late(self, *words):
        monkeypatch.setattr(TableRejects, "_load", real)
        assert sl.Lake(tmp_path / "lake").table("events").rejects().retry().rows == 1
        return real(self, *words)

    monkeypatch.setattr(TableRejects, "_load", load_late)
    assert events.rejects().retry().rows == 0
    assert (ids(events), events.rejects().count()) == ([2], 1)


def test_a_dropped_column_of_a_csv_row_is_the_reason(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> None:
    load(lake, tmp_path / "a.csv", "id,v,note\n1,x,y\n")
    items.drop_column("note")
    items.rejects().retry()
    assert items.rejects().latest(1)[0]["column"] == "note"


def test_a_table_without_refused_rows_has_nothing_to_retry(items: sl.Table) -> None:
    assert items.rejects().retry().to_dict() == {"table": "items", "rows": 0, "kept": 0, "seq": None}
    with refused(sl.Invalid):
        items.upsert([{"id": None}])


def test_a_column_that_was_renamed_meanwhile_is_found(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> None:
    load(lake, tmp_path / "a.csv", "id,v,note\n1,x,a\n2,2.5,b\n")
    load(lake, tmp_path / "a.jsonl", '{"id": 3, "v": 2.5, "note": "c"}\n')
    items.rename_column("note", "remark")
    items.rename_column("v", "amount")
    items.add_column("unused", "int64")
    assert items.rejects().retry().rows == 0
    assert {row["column"] for row in items.rejects().latest(5)} == {"amount"}
    items.drop_column("amount")
    items.add_column("size", "float64")
    assert items.rejects().retry().rows == 0, "a dropped column is not found"


def test_rows_under_the_old_name_of_a_column_are_loaded(lake: sl.Lake, tmp_path: Path) -> None:
    table = lake.create_table("items", "id:int64!, v:int8, note:string", key=["id"])
    load(lake, tmp_path / "a.csv", "id,v,note\n1,1000,a\n")
    load(lake, tmp_path / "a.jsonl", '{"id": 3, "v": 2000, "note": "c"}\n')
    table.rename_column("v", "amount")
    table.evolve(pa.schema([("amount", pa.int64())]))
    assert table.rejects().retry().rows == 2
    assert table.to_arrow().sort_by("id").column("amount").to_pylist() == [1000, 2000]


def test_a_retry_keeps_the_values_of_names_that_a_json_object_lacks(lake: sl.Lake, tmp_path: Path) -> None:
    table = lake.create_table("items", "id:int64!, v:int8, note:string", key=["id"])
    table.upsert([{"id": at, "v": at, "note": f"n{at}"} for at in range(3)])
    load(lake, tmp_path / "a.jsonl", '{"id": 0, "v": 1000}\n{"id": 1, "v": 2000, "note": null}\n')
    load(lake, tmp_path / "b.jsonl", '{"v": 3000, "id": 2, "note": "new"}\n{"id": 9, "v": 4000}\n')
    assert table.rejects().count() == 4
    table.evolve(pa.schema([("v", pa.int64())]))
    assert table.rejects().retry().rows == 4
    rows = sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())
    assert rows == [(0, 1000, "n0"), (1, 2000, None), (2, 3000, "new"), (9, 4000, None)]


def test_two_files_may_name_one_column_differently(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> None:
    load(lake, tmp_path / "a.jsonl", '{"id": 1, "note": "a", "more": 1}\n')
    load(lake, tmp_path / "b.jsonl", '{"id": 2, "Note": "b", "more": 1}\n')
    items.add_column("more", "int64")
    assert items.rejects().retry().rows == 2
    assert sorted(items.to_arrow(columns=["note"]).column("note").to_pylist()) == ["a", "b"]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_columns_that_were_left_out_stay_left_out(name: str, lake: sl.Lake, tmp_path: Path) -> None:
    table = lake.create_table("items", "id:int64!, v:int8, note:string", key=["id"])
    text = "Left Out,id,v\nx,1,1000\ny,2,2\n"
    if name.endswith("jsonl"):
        text = '{"Left Out": "x", "id": 1, "v": 1000}\n{"Left Out": "y", "id": 2, "v": 2}\n'
    (tmp_path / name).write_text(text)
    lake.ingest("items", [tmp_path / name], rejects=True, skip=["Left Out"])
    assert ids(table) == [2]
    table.evolve(pa.schema([("v", pa.int64())]))
    assert table.rejects().plan_retry().rows == 1
    assert table.rejects().retry().rows == 1
    assert table.to_arrow(where="id = 1").to_pylist() == [{"id": 1, "v": 1000, "note": None}]
