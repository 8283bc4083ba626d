"""The schema of a table that is made from its first file."""

from __future__ import annotations

import json
from pathlib import Path

import strandline as sl
from ingested import actions
from support import refused


def test_without_a_key_a_file_of_one_unfinished_line_makes_no_table(lake: sl.Lake, tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.csv"):
        (tmp_path / name).write_text('{"id":1}' if name == "a.jsonl" else "id,na")
        with refused(sl.Invalid, file=str(tmp_path / name)):
            lake.ingest("made", [str(tmp_path / name)], key=[])
    assert lake.tables() == []
    assert lake.ingest("made", [str(tmp_path / "a.jsonl")], key=["id"]).rows == 1


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
