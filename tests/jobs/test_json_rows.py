"""Rows from JSON objects: a bad one is named by line and column, JSON columns keep the text of every value."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import bad_rows
import strandline as sl
from bad_rows import GOOD, SCHEMA, rejects_of
from support import nothing_written, python, refused

things = bad_rows.things


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ('{"id": "x"}', "id"),
        ('{"id": null}', "id"),
        ('{"text": "no key"}', "id"),
        ('{"id": 1.5}', "id"),
        ('{"id": true}', "id"),
        ('{"id": 99999999999999999999}', "id"),
        ('{"id": 1, "n": 3000000000}', "n"),
        ('{"id": 1, "n": "5"}', "n"),
        ('{"id": 1, "f": "x"}', "f"),
        ('{"id": 1, "ok": "true"}', "ok"),
        ('{"id": 1, "text": {"a": 1}}', "text"),
        ('{"id": 1, "text": "\\ud800"}', "text"),
        ('{"id": 1, "at": "yesterday"}', "at"),
        ('{"id": 1, "at": "2024-01-31T12:00:00"}', "at"),
        ('{"id": 1, "at": "2024-01-31T12:00:00.123456789Z"}', "at"),
        ('{"id": 1, "at": 1700000000}', "at"),
        ('{"id": 1, "local": "2024-01-31T12:00:00Z"}', "local"),
        ('{"id": 1, "day": "2024-02-30"}', "day"),
        ('{"id": 1, "day": 19000}', "day"),
        ('{"id": 1, "price": "1.005"}', "price"),
        ('{"id": 1, "text": [1]}', "text"),
        ('{"id": 1, "doc": tru}', "doc"),
        ('{"id": 1, "doc": "\\ud800"}', "doc"),
        ('{"id": 1, "f": 1e999}', "f"),
        ('{"id": 1, "doc":}', "doc"),
        ('{"id": 1, "doc"}', None),
        ('{"id": 1 "n": 2}', None),
        ('{"id": 1,}', None),
        ('{"id"}', None),
        ('{"id": 1, "tags": ["a"}', None),
        ('{"id": 1, n: 2}', None),
        ('{"id": 1, "text": "open}', None),
        ('{"id": 1]', None),
        ('{"id": 1, "doc": ' + "[" * 10_000 + "]" * 10_000 + "}", None),
        ('{"id": 1, "tags": "x"}', "tags"),
        ('{"id": 1, "tags": [1]}', "tags"),
        ('{"id": 1, "other": 2}', "other"),
        ('{"id": 1, "id": 2}', "id"),
        ('{"id": 1', None),
        ('{"id": 1} null', None),
        ("null", None),
        ("[1, 2]", None),
        ("5", None),
        ("garbage", None),
    ],
)
def test_a_bad_line_of_json_is_named_and_nothing_is_loaded(
    things: sl.Table, lake: sl.Lake, tmp_path: Path, line: str, column: str | None
) -> None:
    file = tmp_path / "a.jsonl"
    for before, after in ((3, 4), (0, 0)):
        file.write_text(
            "".join(GOOD % i for i in range(before)) + line + "\n" + "".join(GOOD % i for i in range(after))
        )
        fields = {"file": str(file), "line": before + 1, "table": "things"}
        with nothing_written(things), refused(sl.Invalid, **fields) as caught:
            lake.ingest("things", [str(file)])
        assert caught.value.fields.get("column") == column
    report = lake.ingest("things", [str(file)], rejects=True)
    assert (report.rows, report.rejects) == (0, 1)
    (reject,) = rejects_of(things)
    assert (reject["line"], reject["column"], reject["text"], reject["file"]) == (1, column, line, str(file))
    assert reject["reason"]


def test_bytes_that_are_not_utf8_are_a_bad_line(things: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id": 1}\n{"id": 2, "text": "\xff\xfe"}\n{"id": 3}\n')
    with nothing_written(things), refused(sl.Invalid, line=2):
        lake.ingest("things", [str(tmp_path / "a.jsonl")])
    assert lake.ingest("things", [str(tmp_path / "a.jsonl")], rejects=True).rows == 2
    assert "\\xff" in rejects_of(things)[0]["text"]


def test_json_columns_take_objects_and_keep_their_text(things: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    docs = [
        '{"b": 1.10, "a":[1,  2]}',
        "[]",
        "5",
        "true",
        "null",
        '"5"',
        '"null"',
        '"hello"',
        '"{\\"x\\": 1}"',
        '{"n": 9.50}',
    ]
    (tmp_path / "a.jsonl").write_text("".join(f'{{"id": {i}, "doc": {doc}}}\n' for i, doc in enumerate(docs)))
    assert lake.ingest("things", [str(tmp_path / "a.jsonl")]).rows == 10
    kept = things.to_arrow(columns=["id", "doc"]).sort_by("id").column("doc").to_pylist()
    assert kept == [*docs[:4], None, *docs[5:]]


def test_maps_are_read_from_json_lines(lake: sl.Lake, tmp_path: Path) -> None:
    table = lake.create_table(
        "maps", pa.schema([("id", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))]), key=["id"]
    )
    (tmp_path / "a.jsonl").write_text('{"id": 1, "m": {"a": 1, "b": 2}}\n{"id": 2}\n{"id": 3, "m": {"a": "x"}}\n')
    assert lake.ingest("maps", [str(tmp_path / "a.jsonl")], rejects=True).rejects == 1
    assert table.to_arrow(where="id = 1").to_pylist()[0]["m"] == [("a", 1), ("b", 2)]


def test_texts_that_look_like_the_end_of_an_object_are_good(things: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    texts = ["} null", "}n", "a } \t nothing\n null", "{", "}", "\nnull"]
    rows = "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts))
    (tmp_path / "a.jsonl").write_text(
        "  \n" + rows.replace('{"id": 4', '  {"id": 4') + rows.replace('"id": ', '"id": 1')
    )
    assert lake.ingest("things", [str(tmp_path / "a.jsonl")]).rows == 12
    assert things.to_arrow(where="id < 6").sort_by("id").column("text").to_pylist() == texts


def test_a_null_line_never_reaches_arrows_parser(tmp_path: Path) -> None:
    """Arrow's parser ends the process on it, so this is tried in another one."""
    (tmp_path / "a.jsonl").write_text("null\n")
    code = "import sys, strandline as sl; print(sl.Lake(sys.argv[1]).ingest('t', [sys.argv[2]], rejects=True).rejects)"
    sl.Lake(tmp_path / "lake").create_table("t", SCHEMA, key=["id"])
    done = python(code, str(tmp_path / "lake"), str(tmp_path / "a.jsonl"))
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr
