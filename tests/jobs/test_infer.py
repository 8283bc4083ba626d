"""The schema of a table that is made from files."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from ingested import actions
from strandline.jobs.ingest.infer import infer
from strandline.jobs.ingest.source import find
from strandline.jobs.ingest.text_options import TextOptions
from support import refused


def test_a_file_of_one_unfinished_line_makes_no_table_when_it_waits(lake: sl.Lake, tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.csv"):
        (tmp_path / name).write_text('{"id":1' if name == "a.jsonl" else "id,na")
        with refused(sl.Invalid, file=str(tmp_path / name)):
            lake.ingest("made", [str(tmp_path / name)], key=[], last_line="wait")
    assert lake.tables() == []
    (tmp_path / "a.jsonl").write_text('{"id":1}')
    assert lake.ingest("made", [str(tmp_path / "a.jsonl")], key=[]).rows == 1


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


@pytest.fixture
def types(tmp_path):
    """The types of the columns of a file, by name."""

    def told(name, content, *, is_tolerant=False):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        (source,) = find([str(tmp_path / name)], None)
        return {field.name: str(field.type) for field in infer(source, TextOptions(), is_tolerant=is_tolerant)[0]}

    return told


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1234567890123456789", "int64"),
        ("-9223372036854775808", "int64"),
        ("9223372036854775808", "decimal128(19, 0)"),
        ("9" * 5000, "string"),
        ("00712", "string"),
        ("-0", "int64"),
        ("1.50", "double"),
        ("1e3", "double"),
        ("nan", "string"),
        ("12:30:00", "string"),
        ("2024-01-31", "date32[day]"),
        ("2024-02-31", "string"),
        ("31.01.2024", "string"),
        ("2024-01-31 12:00:00", "timestamp[us]"),
        ("2024-01-31T12:00:00.5+01:00", "timestamp[us, tz=UTC]"),
        ("TRUE", "bool"),
        ("yes", "string"),
        ("", "string"),
    ],
)
def test_a_type_keeps_every_value_as_it_is_written(types, text, kind):
    assert types("a.csv", f"id,v\n1,{text}\n") == {"id": "int64", "v": kind}
    assert types("b.csv", f'id,v\n1,"{text}"\n') == {"id": "int64", "v": kind}


def test_long_identifiers_are_loaded_exactly(lake, tmp_path):
    (tmp_path / "a.csv").write_text("id,big\n1234567890123456789,12345678901234567890\n")
    lake.ingest("made", [str(tmp_path / "a.csv")], key=["id"])
    assert lake.table("made").to_arrow().to_pylist() == [
        {"id": 1234567890123456789, "big": Decimal("12345678901234567890")}
    ]


def test_bad_rows_say_nothing_about_types(types):
    rows = b'id,v\n1,1.5\n2\nx,y,z\n3,\xff\n4,"a ""b""\nc"\n'
    assert types("a.csv", rows) == {"id": "int64", "v": "string"}
    assert types("a.csv", rows.rpartition(b"4,")[0]) == {"id": "int64", "v": "double"}
    assert types("a.csv.gz", gzip.compress(rows)) == {"id": "int64", "v": "string"}
    assert types("a.csv", "id,v\n") == {"id": "string", "v": "string"}


def test_a_line_of_json_that_is_wrong_is_named_by_its_number_in_the_file(types):
    for wrong in ('{"id":', "[1]"):
        with refused(sl.Invalid, line=4):
            types("a.jsonl", f'\n{{"id": 1}}\n\n{wrong}\n')
        assert types("a.jsonl", f'\n{{"id": 1}}\n\n{wrong}\n', is_tolerant=True) == {"id": "int64"}


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_file_without_columns_is_refused(types, name):
    with refused(sl.Invalid):
        types(name, "")


def test_a_json_key_of_several_types_is_refused_with_the_type_to_give(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id":1}\n{"id":"x"}\n')
    with refused(sl.Invalid, column="id") as caught:
        lake.ingest("made", [str(tmp_path / "a.jsonl")], key=["id"])
    assert "--types id:string" in (caught.value.hint or "")
    assert lake.tables() == []
    assert lake.ingest("made", [str(tmp_path / "a.jsonl")], key=["id"], types="id:string").rows == 2
    assert sorted(lake.table("made").to_arrow()["id"].to_pylist()) == ["1", "x"]


def test_a_key_of_long_numbers_is_text_in_every_format(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n12345678901234567890\n1\n")
    (tmp_path / "a.jsonl").write_text('{"id":12345678901234567890}\n{"id":1}\n')
    for name in ("a.csv", "a.jsonl"):
        lake.ingest(name[2:], [str(tmp_path / name)], key=["id"])
        keys = lake.table(name[2:]).to_arrow().column("id").to_pylist()
        assert sorted(keys) == ["1", "12345678901234567890"]


def test_a_key_that_cannot_be_one_says_which_type_helps(lake: sl.Lake, tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"my id": pa.array([7], pa.uint64())}), path)
    with refused(sl.Invalid, file=path, column="my id") as caught:
        lake.ingest("t", [path], key=["my id"], names="keep")
    assert "--types 'my id:int64'" in str(caught.value.hint)
    assert lake.ingest("t", [path], key=["my id"], names="keep", types="my id:int64").rows == 1


def test_a_file_without_a_good_row_is_not_told_to_keep_bad_rows_aside(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1, 2]")
    with refused(sl.Invalid, line=1) as caught:
        lake.ingest("t", [str(tmp_path / "a.json")], key=[], rejects=True)
    assert "no good row" in str(caught.value.hint) and "--rejects" not in str(caught.value.hint)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (("5", "6.5"), "double"),
        (("5", ""), "int64"),
        (("", "5"), "int64"),
        (("", ""), "string"),
        (("5", "abc"), "string"),
        (("2024-01-01", "5"), "string"),
        (("true", "", "false"), "bool"),
        (("5", "1234567890123456789012"), "decimal128(22, 0)"),
        (("0.5", "9007199254740993"), "decimal128(17, 1)"),
    ],
)
def test_the_types_of_a_new_table_hold_the_values_of_all_its_csv_files(
    lake: sl.Lake, tmp_path: Path, values: tuple[str, ...], kind: str
) -> None:
    for at, value in enumerate(values):
        (tmp_path / f"{at}.csv").write_text(f"id,v\n{at},{value}\n")
    assert lake.ingest("t", [tmp_path / "*.csv"], key=["id"], dry_run=True).rejects == 0
    assert lake.ingest("t", [tmp_path / "*.csv"], key=["id"]).rows == len(values)
    assert str(lake.table("t").schema.field("v").type) == kind


def test_the_names_and_types_of_a_new_table_hold_the_objects_of_all_its_json_files(
    lake: sl.Lake, tmp_path: Path
) -> None:
    for at, text in enumerate(('"v": 5', '"v": 6.5, "Day": "2024-01-01"', '"V": 7, "day": "x", "w": [1]', '"w": 1')):
        (tmp_path / f"{at}.json").write_text(f'{{"id": {at}, {text}}}')
    (tmp_path / "9.json").write_text('{"id": 9, "v": }')
    assert lake.ingest("t", [tmp_path / "*.json"], key=["id"], rejects=True).rows == 4
    table = lake.table("t")
    assert [str(field.type) for field in table.schema][:3] == ["int64", "double", "string"]
    assert sorted(tuple(row.values()) for row in table.to_arrow().to_pylist()) == [
        (0, 5.0, None, None),
        (1, 6.5, "2024-01-01", None),
        (2, 7.0, "x", "[1]"),
        (3, None, None, "1"),
    ]


def test_a_csv_file_with_other_columns_is_refused_by_its_name(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,v\n1,5\n")
    (tmp_path / "b.csv").write_text("id,other\n2,5\n")
    with refused(sl.Invalid, file=str(tmp_path / "b.csv"), column="other"):
        lake.ingest("t", [tmp_path / "*.csv"], key=["id"])
