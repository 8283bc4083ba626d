"""A dry run reads the files and says what would be loaded and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import bad_rows
import strandline as sl
from strandline.errors import Invalid
from support import nothing_written

flat = bad_rows.flat


def test_a_dry_run_shows_columns_first_rows_and_bad_rows(lake: sl.Lake, tmp_path: Path) -> None:
    rows = "".join(f"{at};{at}.5;\n" for at in range(10))
    (tmp_path / "a.csv").write_text(f"id;price;note\n{rows}99;x\n")
    report = lake.ingest("made", [str(tmp_path / "a.csv")], key=["id"], dry_run=True)
    assert lake.tables() == []
    assert (report.is_dry_run, report.rows, report.rejects) == (True, 10, 1)
    found = report.preview
    assert found is not None
    assert [(each.column, each.type, each.example, each.nulls) for each in found.columns] == [
        ("id", "int64", 0, 0),
        ("price", "float64", 0.5, 0),
        ("note", "string", None, 10),
    ]
    assert [row["id"] for row in found.first_rows] == [0, 1, 2, 3, 4]
    assert [(each.line, each.text) for each in found.bad_rows] == [(12, "99;x")]
    assert report.files[0].dialect is not None and report.files[0].dialect["delimiter"] == ";"
    assert lake.ingest("made", [str(tmp_path / "a.csv")], key=["id"], rejects=True).rows == 10


def test_a_dry_run_into_a_table_looks_only_at_what_is_new(flat: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n\n1,2\n")
    lake.ingest("flat", [str(tmp_path / "a.csv")])
    (tmp_path / "a.csv").write_text("id,n\n1,2\n2,x\n3,4\n")
    (tmp_path / "b.csv").write_text("id,nope\n1,2\n")
    (tmp_path / "c.jsonl").write_text('{"id": 7}\n')
    with nothing_written(flat):
        report = lake.ingest("flat", [str(tmp_path / "*.*")], dry_run=True)
    assert [(file.action, file.rows, file.rejects) for file in report.files] == [
        ("continue", 1, 1),
        ("load", 0, 0),
        ("load", 1, 0),
    ]
    assert report.preview is not None
    assert [each.line for each in report.preview.bad_rows] == [3]
    errors = [each.error for each in report.preview.files.values()]
    assert errors[0] is errors[2] is None and "nope" in str(errors[1])


def test_a_dry_run_of_a_new_table_from_json_shows_all_bad_rows(lake: sl.Lake, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a":\n{"a": 3}\n[]\n')
    report = lake.ingest("made", [str(path)], key=["a"], dry_run=True)
    assert report.preview is not None
    assert (report.rows, [each.line for each in report.preview.bad_rows]) == (2, [2, 4])
    with pytest.raises(Invalid) as caught:
        lake.ingest("made", [str(path)], key=["a"])
    assert caught.value.fields["line"] == 2
    path.write_text('{"a":\n')
    for how in ({"dry_run": True}, {"rejects": True}):
        with pytest.raises(Invalid) as caught:
            lake.ingest("made", [str(path)], key=["a"], **how)
        assert caught.value.fields["line"] == 1, "a file without one good row is not empty"
