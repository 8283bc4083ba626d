"""Good rows are sorted from bad ones, whatever lies beside them."""

from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.jobs.ingest.bad_rows import UNFIT, BadRow, keep_row, refuse_row, sift
from support import refused


@given(st.lists(st.booleans(), min_size=1, max_size=70))
def test_each_row_is_found_good_or_bad_by_itself_and_in_order(bad):
    asked = []

    def convert(start, stop):
        asked.append((start, stop))
        if any(bad[start:stop]):
            raise ValueError("a bad row")
        return pa.table({"n": list(range(start, stop))})

    found = []
    for each in sift(len(bad), convert):
        found += [(each, True)] if isinstance(each, int) else [(n, False) for n in each["n"].to_pylist()]
    assert found == list(enumerate(bad))
    assert len(asked) == 1 or any(bad), "rows that are all good are converted at once"


@pytest.mark.parametrize("kind", UNFIT)
def test_what_a_conversion_raises_for_a_bad_row_is_known(kind):
    def convert(start, stop):
        raise kind("no")

    assert list(sift(2, convert)) == [0, 1]


def test_another_fault_is_not_taken_for_a_bad_row():
    def convert(start, stop):
        raise sl.Unavailable("the store is away")

    with pytest.raises(sl.Unavailable):
        list(sift(2, convert))


def source(kind):
    return SimpleNamespace(uri=f"/in/a.{kind}", kind=kind, is_text=kind != "parquet")


def test_a_refused_row_is_named_by_file_line_and_column():
    fault = BadRow(7, "qty", "is no number", "1,x", ["id", "qty"], "comma")
    for kind, word in (("csv", "line 7"), ("parquet", "row 7")):
        error = refuse_row(source(kind), fault, "items")
        assert error.fields == {"table": "items", "file": f"/in/a.{kind}", "line": 7, "column": "qty"}
        assert f"{word}, column 'qty': is no number" in str(error)
        assert ("--skip" in str(error)) == (kind == "parquet")
    first = refuse_row(source("jsonl"), BadRow(1, None, "is no object", "[1]"), "items")
    assert "Expected objects" in str(first)


def test_a_kept_row_holds_all_that_a_retry_needs_and_can_be_printed():
    kept = keep_row(source("csv"), BadRow(7, "qty", "\ud800 is no number", "1,x", ["id", "qty"], "comma"))
    assert (kept.file, kept.line, kept.column, kept.text) == ("/in/a.csv", 7, "qty", "1,x")
    assert (kept.names, kept.dialect) == (["id", "qty"], "comma")
    assert kept.reason == "\\ud800 is no number"


def test_an_unknown_name_in_json_can_be_left_out_or_made_a_column(lake: sl.Lake, tmp_path: Path) -> None:
    table = lake.create_table("things", "id:int64!", key=["id"])
    (tmp_path / "a.jsonl").write_text('{"id": 1, "More Things": 5}\n')
    with refused(sl.Invalid, line=1, column="More Things") as caught:
        lake.ingest("things", [tmp_path / "a.jsonl"])
    assert "--skip 'More Things'" in str(caught.value.hint)
    assert "table add-column TABLE more_things:TYPE" in str(caught.value.hint)
    assert lake.ingest("things", [tmp_path / "a.jsonl"], skip=["More Things"]).rows == 1
    table.add_column("more_things", "int64")
    assert lake.ingest("things", [tmp_path / "a.jsonl"], again=True).rows == 1
    assert table.to_arrow().to_pylist() == [{"id": 1, "more_things": 5}]
