"""The types of the columns of a JSON file: each holds every value as it is written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import strandline as sl
from strandline.jobs.ingest import json_types
from strandline.jobs.ingest.source import find
from support import refused


@pytest.fixture
def types(tmp_path):
    """The types of the columns of a file, by name."""

    def told(content, *, is_tolerant=False):
        (tmp_path / "a.json").write_text(content)
        (source,) = find([str(tmp_path / "a.json")], None)
        guesses = json_types.guess_json_columns(source, is_tolerant=is_tolerant)
        return {name: str(guess.type) for name, guess in guesses}

    return told


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ("1 -2 null", "int64"),
        ("9223372036854775807 -9223372036854775808", "int64"),
        ("9223372036854775808 1", "decimal128(38, 0)"),
        ("1" * 38, "decimal128(38, 0)"),
        ("1" * 39, "extension<arrow.json>"),
        ("1 1.5", "double"),
        ("9007199254740993 1.5", "extension<arrow.json>"),
        ("0.30000000000000004 1.5", "double"),
        ("0.1234567890123456789 1.5", "extension<arrow.json>"),
        ("1234567890123456789.25", "extension<arrow.json>"),
        ("1e3 NaN", "double"),
        ("true false", "bool"),
        ("true 1", "extension<arrow.json>"),
        ('"a" 1', "extension<arrow.json>"),
        ('"a" "2024-01-31"', "string"),
        ('"2024-01-31" "2024-02-29"', "date32[day]"),
        ('"2024-01-31" "2024-02-31"', "string"),
        ('"2024-01-31T12:00:00Z" "2024-01-31 12:00:00+01:00"', "timestamp[us, tz=UTC]"),
        ('"2024-01-31T12:00:00Z" "2024-01-31"', "string"),
        ('"00501"', "string"),
        ('{"a":1} [1]', "extension<arrow.json>"),
        ('{"a":1} null', "extension<arrow.json>"),
        ('[1] "a"', "extension<arrow.json>"),
        ("null", "string"),
    ],
)
def test_a_type_keeps_every_value_of_a_column(types, lake, tmp_path, values, kind):
    texts = re.split(r" (?!\d\d:)", values)
    content = "[" + ", ".join(f'{{"v": {text}}}' for text in texts) + "]"
    assert types(content) == {"v": kind}
    lake.ingest("made", [str(tmp_path / "a.json")], key=[])
    kept = lake.table("made").to_arrow().column("v").to_pylist()
    if kind == "extension<arrow.json>":
        assert kept == [None if text == "null" else text for text in texts]
    if kind.startswith(("int", "decimal")):
        assert kept == [None if text == "null" else int(text) for text in texts]


def test_a_type_that_is_said_wins(lake, tmp_path):
    (tmp_path / "a.json").write_text('[{"id": 1, "v": 1}, {"id": 2, "v": "00501"}, {"id": 3, "v": true}]')
    lake.ingest("texts", [str(tmp_path / "a.json")], key=["id"], types={"v": "string"})
    assert lake.table("texts").to_arrow().sort_by("id").column("v").to_pylist() == ["1", "00501", "true"]
    with refused(sl.Invalid, column="v", line=1):
        lake.ingest("numbers", [str(tmp_path / "a.json")], key=["id"], types={"v": "int64"})
    report = lake.ingest("numbers", [str(tmp_path / "a.json")], key=["id"], types={"v": "int64"}, rejects=True)
    assert (report.rows, report.rejects) == (1, 2)


def test_a_bad_row_is_named_or_passed_over(types):
    for wrong in ('{"id":', "5", '{"id": tru}'):
        with refused(sl.Invalid, line=4):
            types(f'\n{{"id": 1}}\n\n{wrong}\n')
        assert types(f'\n{{"id": 1}}\n\n{wrong}\n', is_tolerant=True) == {"id": "int64"}


@pytest.mark.parametrize(
    ("text", "word"), [("[1, 2]", "a number"), ("[\n[1],\n[2]]", "an array"), ('"x"', "a text"), ("null", "null")]
)
def test_what_was_found_in_place_of_objects_is_said(types, text, word):
    with pytest.raises(sl.Invalid, match=f"found {word}|found an array"):
        types(text)


def test_deep_nesting_is_refused_with_its_line(lake, tmp_path):
    deep = "[" * 100_000 + "]" * 100_000
    (tmp_path / "a.json").write_text(f'{{"id": 1}}\n{{"id": 2, "v": {deep}}}\n')
    with refused(sl.Invalid, line=2):
        lake.ingest("made", [str(tmp_path / "a.json")], key=["id"])
    assert lake.ingest("made", [str(tmp_path / "a.json")], key=["id"], rejects=True).rejects == 1
    (tmp_path / "b.json").write_text(f'{{"id": 1, "v": {"[" * 800 + "]" * 800}}}\n')
    assert lake.ingest("fine", [str(tmp_path / "b.json")], key=["id"]).rows == 1


def test_an_object_of_very_many_names_is_refused_at_once(types):
    with refused(sl.Invalid):
        types(json.dumps({f"name {number}": number for number in range(80_000)}))


def test_values_after_the_first_block_count_too(types, monkeypatch):
    monkeypatch.setattr(json_types, "_BLOCK_BYTES", 100)
    assert types("".join(f'{{"v": {number}}}\n' for number in range(50)) + '{"v": "x"}\n') == {
        "v": "extension<arrow.json>"
    }


def test_a_file_with_too_many_names_says_what_to_type(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({f"k{at}": at for at in range(2_001)}))
    with refused(sl.Invalid, file=str(tmp_path / "a.json")) as caught:
        lake.ingest("t", [tmp_path / "a.json"], key=[])
    assert "jq -c" in str(caught.value.hint)
