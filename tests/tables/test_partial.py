"""Rows that lack columns: refused when a value would be lost, set to null, or completed with the table's values."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.tables import partial
from support import refused

SCHEMA = "id:int64, name:string, qty:int64, tags:list<string>, note:json"


@pytest.fixture
def table(lake: sl.Lake) -> sl.Table:
    """Two rows with all values, one folded and one in the log."""
    made = lake.create_table("stock", SCHEMA, key=["id"], vnodes=2)
    made.upsert([{"id": 1, "name": "a", "qty": 10, "tags": ["x"], "note": {"n": 1}}])
    made.compact(full=True)
    made.upsert([{"id": 2, "name": "b", "qty": 20, "tags": [], "note": [2]}])
    return made


def rows(table: sl.Table) -> dict[int, dict[str, Any]]:
    return {row.pop("id"): row for row in table.to_arrow().to_pylist()}


SHORT = [{"id": 1, "name": "A"}, {"id": 3, "name": "C"}]


@pytest.mark.parametrize(
    "make", [lambda: SHORT, lambda: pa.Table.from_pylist(SHORT), lambda: iter(pa.Table.from_pylist(SHORT).to_batches())]
)
def test_a_call_that_would_lose_values_is_refused_with_the_columns_and_the_ways_out(table: sl.Table, make: Any) -> None:
    before = rows(table)
    with pytest.raises(sl.Invalid) as caught:
        table.upsert(make())
    assert caught.value.fields["columns"] == ["qty", "tags", "note"]
    assert caught.value.fields["table"] == "stock"
    assert all(word in str(caught.value.hint) for word in ("keep", "null", "--missing"))
    assert rows(table) == before and table.head == 2


def test_keep_keeps_the_values_of_the_table_and_new_rows_get_null(table: sl.Table) -> None:
    table.upsert([*SHORT, {"id": 2, "name": "B"}], missing="keep")
    now = rows(table)
    assert now[1] == {"name": "A", "qty": 10, "tags": ["x"], "note": '{"n": 1}'}
    assert now[2] == {"name": "B", "qty": 20, "tags": [], "note": "[2]"}
    assert now[3] == {"name": "C", "qty": None, "tags": None, "note": None}


@pytest.mark.parametrize("version", [None, "qty"])
def test_the_values_of_a_first_load_are_kept_after_later_commits(lake: sl.Lake, version: str | None) -> None:
    table = lake.create_table("loaded", "id:int64, qty:int64, name:string", key=["id"], vnodes=2, version=version)
    table.upsert([{"id": n, "qty": 1, "name": f"n{n}"} for n in range(6)])
    table.upsert([{"id": 2, "qty": 2, "name": "later"}])
    with refused(sl.Invalid, columns=["name"]):
        table.upsert([{"id": 1, "qty": 3}])
    table.upsert([{"id": 1, "qty": 3}, {"id": 2, "qty": 3}, {"id": 9, "qty": 3}], missing="keep")
    names = {number: row["name"] for number, row in rows(table).items()}
    assert names == {0: "n0", 1: "n1", 2: "later", 3: "n3", 4: "n4", 5: "n5", 9: None}


def test_null_replaces_the_values(table: sl.Table) -> None:
    table.upsert(SHORT, missing="null")
    assert rows(table)[1] == {"name": "A", "qty": None, "tags": None, "note": None}


def test_new_rows_may_lack_columns_and_so_may_rows_without_values_there(table: sl.Table) -> None:
    table.upsert([{"id": 3, "name": "c"}])
    table.upsert([{"id": 3, "name": "C"}])
    table.evolve(pa.schema([("colour", pa.string())]))
    table.upsert([{"id": 1, "name": "A", "qty": 1, "tags": [], "note": 1}])
    assert rows(table)[1]["colour"] is None and rows(table)[3]["name"] == "C"
    table.delete([1])
    table.upsert([{"id": 1, "name": "again"}])
    assert rows(table)[1]["qty"] is None, "a deleted row has no values to lose"


def test_each_row_lacks_what_it_does_not_give(table: sl.Table) -> None:
    """One dict of the call has all columns: the other one still lacks its own."""
    calls = [{"id": 1, "name": "A", "qty": 11, "tags": [], "note": None}, {"id": 2, "name": "B"}]
    with refused(sl.Invalid, columns=["qty", "tags", "note"]):
        table.upsert(calls)
    assert table.head == 2
    table.upsert(calls, missing="keep")
    assert rows(table)[1] == {"name": "A", "qty": 11, "tags": [], "note": None}
    assert rows(table)[2] == {"name": "B", "qty": 20, "tags": [], "note": "[2]"}
    table.upsert(calls, missing="null")
    assert rows(table)[2] == {"name": "B", "qty": None, "tags": None, "note": None}


def test_rows_of_one_call_with_the_same_key_count_one_after_another(table: sl.Table) -> None:
    calls = [{"id": 1, "qty": 11}, {"id": 9, "name": "new"}, {"id": 1, "name": "A"}, {"id": 9, "qty": 9}]
    with refused(sl.Invalid):
        table.upsert([{"id": 9, "name": "new"}, {"id": 9, "qty": 9}])
    table.upsert(calls, missing="keep")
    assert rows(table)[1] == {"name": "A", "qty": 11, "tags": ["x"], "note": '{"n": 1}'}
    assert rows(table)[9] == {"name": "new", "qty": 9, "tags": None, "note": None}


def test_null_is_a_value_that_a_row_gives(table: sl.Table) -> None:
    table.upsert([{"id": 1, "qty": None}, {"id": 2, "name": None}], missing="keep")
    assert (rows(table)[1]["qty"], rows(table)[1]["name"]) == (None, "a")
    assert (rows(table)[2]["qty"], rows(table)[2]["name"]) == (20, None)


def test_a_partial_row_need_not_repeat_a_required_value(lake: sl.Lake, tmp_path: Path) -> None:
    table = lake.create_table("strict", "id:int64, name:string!, qty:int64", key=["id"])
    table.upsert([{"id": 1, "name": "a", "qty": 1}])
    table.upsert([{"id": 1, "qty": 2}], missing="keep")
    (tmp_path / "a.csv").write_text("id,qty\n1,3\n")
    lake.ingest("strict", [str(tmp_path / "a.csv")], missing="keep")
    assert rows(table)[1] == {"name": "a", "qty": 3}
    with refused(sl.Invalid, column="name"):
        table.upsert([{"id": 2, "qty": 2}], missing="keep")


CELL = st.one_of(st.none(), st.integers(0, 3))
PARTIAL = st.fixed_dictionaries({"id": st.integers(0, 2)}, optional={"a": CELL, "b": CELL})


@given(calls=st.lists(st.lists(PARTIAL, min_size=1, max_size=5), min_size=1, max_size=4), missing=st.data())
@settings(max_examples=30, deadline=None)
def test_partial_rows_equal_a_dict_that_is_updated(calls: list[list[dict[str, Any]]], missing: st.DataObject) -> None:
    """What a call does depends on each of its rows alone, one after another."""
    with tempfile.TemporaryDirectory() as folder:
        table = sl.Lake(f"{folder}/lake").create_table("t", "id:int64, a:int64, b:int64", key=["id"], vnodes=2)
        model: dict[int, dict[str, Any]] = {}
        for call in calls:
            way = missing.draw(st.sampled_from(["refuse", "keep", "null"]))
            after, is_loss = dict(model), False
            for row in call:
                had = after.get(row["id"], {"a": None, "b": None})
                lost = [name for name in ("a", "b") if name not in row and had[name] is not None]
                is_loss |= bool(lost)
                kept = {name: had[name] if way == "keep" else None for name in ("a", "b")}
                after[row["id"]] = {**kept, **{name: row[name] for name in ("a", "b") if name in row}}
            if way == "refuse" and is_loss:
                with refused(sl.Invalid):
                    table.upsert(call)
            else:
                table.upsert(call, missing=way)
                model = after
            assert rows(table) == model


def test_whole_rows_cost_no_read(table: sl.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "find_filled", lambda *words: pytest.fail("it looked at the table"))
    table.upsert([{"id": 1, "name": "A", "qty": 1, "tags": [], "note": 1}])


def test_a_repeated_call_is_not_refused(table: sl.Table) -> None:
    first = table.upsert([{"id": 3, "name": "c"}], token="t")
    table.upsert([{"id": 3, "name": "c", "qty": 3, "tags": [], "note": 3}])
    for missing in ("refuse", "keep", "null"):
        again = table.upsert([{"id": 3, "name": "c"}], token="t", missing=missing)
        assert (again.seq, again.is_replay) == (first.seq, True)
    assert rows(table)[3]["qty"] == 3


def test_other_words_are_refused(table: sl.Table, tmp_path: Path) -> None:
    with refused(sl.Invalid):
        table.upsert(SHORT, missing="drop")  # type: ignore[arg-type]
    assert table.upsert([], missing="keep").rows == 0


def test_a_change_between_read_and_commit_is_not_undone(
    lake: sl.Lake, table: sl.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process changes the row after its values were read: the newer values stay."""
    other = sl.Lake(lake.storage.uri).table("stock")
    plain, reads = partial._complete_rows, []

    def complete(*words: Any) -> pa.Table:
        done = plain(*words)
        reads.append(1)
        if len(reads) == 1:
            other.upsert([{"id": 1, "name": "z", "qty": 99, "tags": [], "note": 9}])
        elif len(reads) == 2:
            other.upsert([{"id": 7, "name": "z", "qty": 7, "tags": [], "note": 7}])
        return done

    monkeypatch.setattr(partial, "_complete_rows", complete)
    table.upsert([{"id": 1, "name": "A"}], missing="keep")
    assert rows(table)[1] == {"name": "A", "qty": 99, "tags": [], "note": "9"}
    assert len(reads) == 2, "a change of another key makes nobody read again"
    other.delete([1])
    reads[:] = [1, 1]
    table.upsert([{"id": 1, "name": "B"}], missing="keep")
    assert rows(table)[1]["qty"] is None


def test_a_purge_between_read_and_commit_is_not_undone(table: sl.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, reads = partial._complete_rows, []

    def complete(*words: Any) -> pa.Table:
        done = plain(*words)
        reads.append(1)
        if len(reads) == 1:
            table.purge([1])
        return done

    monkeypatch.setattr(partial, "_complete_rows", complete)
    table.upsert([{"id": 1, "name": "A"}], missing="keep")
    assert rows(table)[1] == {"name": "A", "qty": None, "tags": None, "note": None}


def test_a_partial_upsert_of_a_table_with_versions_loses_to_a_newer_row(lake: sl.Lake) -> None:
    table = lake.create_table("v", "id:int64, at:int64, name:string, qty:int64", key=["id"], version="at")
    table.upsert([{"id": 1, "at": 5, "name": "a", "qty": 1}])
    table.upsert([{"id": 1, "at": 4, "name": "old"}], missing="keep")
    table.upsert([{"id": 2, "at": 1, "name": "new"}], missing="keep")
    assert rows(table)[1] == {"at": 5, "name": "a", "qty": 1}
    table.upsert([{"id": 1, "at": 6, "name": "b"}], missing="keep")
    assert rows(table)[1] == {"at": 6, "name": "b", "qty": 1}


def test_a_table_without_a_key_takes_rows_without_columns(lake: sl.Lake) -> None:
    table = lake.create_table("log", "id:int64, name:string")
    table.append([{"id": 1, "name": "a"}])
    table.append([{"id": 2}])
    assert table.count() == 2


def test_a_dataframe_is_refused_or_completed(table: sl.Table, spark: Any) -> None:
    frame = spark.createDataFrame([(1, "A"), (3, "C")], "id long, name string")
    with pytest.raises(sl.Invalid) as caught:
        table.upsert(frame)
    assert caught.value.fields["columns"] == ["qty", "tags", "note"]
    table.upsert(frame, missing="keep")
    now = rows(table)
    assert now[1] == {"name": "A", "qty": 10, "tags": ["x"], "note": '{"n": 1}'}
    assert now[3] == {"name": "C", "qty": None, "tags": None, "note": None}
    table.upsert(spark.createDataFrame([(4, "D")], "id long, name string"))
    table.upsert(frame, missing="null")
    assert rows(table)[1]["qty"] is None


# --- files ------------------------------------------------------------------------------------------------------


@pytest.fixture
def plain(lake: sl.Lake) -> sl.Table:
    table = lake.create_table("plain", "id:int64, name:string, qty:int64", key=["id"])
    table.upsert([{"id": 1, "name": "a", "qty": 10}, {"id": 2, "name": "b", "qty": 20}])
    return table


def test_a_csv_or_parquet_file_that_would_lose_values_is_refused(
    lake: sl.Lake, plain: sl.Table, tmp_path: Path
) -> None:
    short, other = tmp_path / "short.csv", tmp_path / "short.parquet"
    short.write_text("id,name\n1,A\n3,C\n")
    pq.write_table(pa.table({"id": [2], "name": ["B"]}), other)
    for file in (short, other):
        with pytest.raises(sl.Invalid) as caught:
            lake.ingest("plain", [str(file)])
        assert caught.value.fields["columns"] == ["qty"] and file.name in caught.value.message
    assert rows(plain)[1] == {"name": "a", "qty": 10} and plain.head == 1
    report = lake.ingest("plain", [str(short), str(other)], missing="keep")
    assert report.rows == 3
    assert rows(plain) == {
        1: {"name": "A", "qty": 10},
        2: {"name": "B", "qty": 20},
        3: {"name": "C", "qty": None},
    }
    lake.ingest("plain", [str(short)], missing="null", again=True)
    assert rows(plain)[1] == {"name": "A", "qty": None}


def test_files_of_one_call_do_not_lose_each_others_values(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("id,name,qty\n1,a,10\n")
    (tmp_path / "2.csv").write_text("id,name\n1,A\n")
    with refused(sl.Invalid, column="qty"):
        lake.ingest("plain", [str(tmp_path / "*.csv")], key=["id"])
    assert rows(lake.table("plain")) == {1: {"name": "a", "qty": 10}}
    report = lake.ingest("plain", [str(tmp_path / "*.csv")], missing="keep")
    assert [file.action for file in report.files] == ["skip", "load"]
    assert rows(lake.table("plain")) == {1: {"name": "A", "qty": 10}}


def test_whole_files_still_share_a_commit(lake: sl.Lake, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text(f"id,name,qty\n{number},a,10\n")
    (tmp_path / "3.jsonl").write_text('{"id": 9, "name": "z"}\n')
    assert len(lake.ingest("plain", [str(tmp_path / "*")], key=["id"]).seqs) == 1


def test_a_name_that_json_leaves_out_is_null_unless_asked_otherwise(
    lake: sl.Lake, plain: sl.Table, tmp_path: Path
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"id": 1, "name": "A"}) + "\n")
    with refused(sl.Invalid, column="qty"):
        lake.ingest("plain", [str(file)], missing="refuse")
    report = lake.ingest("plain", [str(file)], missing="keep")
    assert rows(plain)[1] == {"name": "A", "qty": 10} and not report.emptied
    report = lake.ingest("plain", [str(file)], again=True)
    assert report.emptied == {"qty": 1}, "what was lost is told"
    assert rows(plain)[1] == {"name": "A", "qty": None}


def test_each_object_of_a_json_file_lacks_its_own_names(lake: sl.Lake, plain: sl.Table, tmp_path: Path) -> None:
    """One object lacks `qty`, the next one `name`, the last one gives null."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"id": 1, "name": "A"}\n{"id": 2, "qty": 21}\n{"id": 3, "name": "c", "qty": 3}\n')
    with refused(sl.Invalid, columns=["name", "qty"]):
        lake.ingest("plain", [str(file)], missing="refuse")
    lake.ingest("plain", [str(file)], missing="keep")
    assert rows(plain) == {1: {"name": "A", "qty": 10}, 2: {"name": "b", "qty": 21}, 3: {"name": "c", "qty": 3}}
    file.write_text('{"id": 1, "qty": null}\n{"id": 2, "qty": null, "name": "B"}\n{"id": 1, "name": "z"}\n')
    lake.ingest("plain", [str(file)], missing="keep")
    assert rows(plain)[1] == {"name": "z", "qty": None} and rows(plain)[2] == {"name": "B", "qty": None}
