"""The forms of a JSON file: the same objects, whichever form they have and however the file is cut into blocks."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

import strandline as sl
from ingested import actions, rows_in
from strandline.jobs.ingest import json_stream
from strandline.jobs.ingest.blocks import Reading
from strandline.jobs.ingest.json_stream import Form, find_form, read_records
from strandline.jobs.ingest.source import find
from support import refused

ROWS = [
    {"id": 1, "name": 'a "quoted", [text] \\ {', "doc": {"x": [1, {"y": "}"}]}},
    {"id": 2, "name": "ünïcödé\n", "doc": []},
    {"id": 3, "name": None, "doc": {}},
]
FORMS = {
    "lines": "".join(json.dumps(row) + "\n" for row in ROWS),
    "lines without an end": "\n".join(json.dumps(row) for row in ROWS),
    "windows lines": "\r\n".join(["", *(json.dumps(row) for row in ROWS), "", ""]),
    "one after another": "".join(json.dumps(row) for row in ROWS),
    "pretty objects": "\n".join(json.dumps(row, indent=2, ensure_ascii=False) for row in ROWS),
    "array": json.dumps(ROWS),
    "pretty array": json.dumps(ROWS, indent=4) + "\n",
    "array of lines": "[\n" + ",\n".join(json.dumps(row) for row in ROWS) + "\n]",
    "two arrays": f"{json.dumps(ROWS[:1])}\n\n{json.dumps(ROWS[1:], indent=1)}\n[]",
    "byte order mark": "\ufeff" + json.dumps(ROWS),
}


def read(
    path: Path, text: str | bytes, block_bytes: int = 1 << 20
) -> tuple[list[tuple[int, object]], list[tuple[int, bytes]]]:
    """The values of a file with their lines, and the lines and texts that are no values."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (source,) = find([str(path)], None)
    found, bad = [], []
    for records in read_records(Reading.whole(source), block_bytes=block_bytes):
        found += [(int(records.lines[at]), json.loads(records.text(at))) for at in range(len(records))]
        bad += records.bad
    return found, bad


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_same_objects(lake: sl.Lake, tmp_path: Path, form: str) -> None:
    (tmp_path / "a.json").write_text(FORMS[form])
    for key in (["id"], []):
        name = f"made{len(key)}"
        assert lake.ingest(name, [str(tmp_path / "a.json")], key=key).rows == 3
        table = lake.table(name).to_arrow().sort_by("id").to_pylist()
        assert [{**row, "doc": json.loads(row["doc"])} for row in table] == ROWS


def test_blocks_of_any_size_give_the_same_objects_and_lines(tmp_path: Path) -> None:
    for form, text in FORMS.items():
        whole = read(tmp_path / "a.json", text)
        assert [row for _, row in whole[0]] == ROWS and not whole[1], form
        for size in (7, 50, 200):
            assert read(tmp_path / "a.json", text, size) == whole, (form, size)


def test_the_line_of_an_object_is_the_line_where_it_begins(tmp_path: Path) -> None:
    found, _ = read(tmp_path / "a.json", '\n\n[\n {"a": 1,\n  "b": 2},\n\n {"a":\n 2}, {"a": 3}]')
    assert found == [(4, {"a": 1, "b": 2}), (7, {"a": 2}), (8, {"a": 3})]


def test_one_object_is_one_row(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": [{"id": 1}]}, indent=1))
    assert lake.ingest("made", [str(tmp_path / "a.geojson")], key=[]).rows == 1
    (row,) = lake.table("made").to_arrow().to_pylist()
    assert (row["type"], json.loads(row["features"])) == ("FeatureCollection", [{"id": 1}])


@pytest.mark.parametrize(
    ("text", "rows", "bad"),
    [
        ('[{"a": 1}, 5, {"a": 2}, null, [1], "x"]', [1, 2], [(1, b"5"), (1, b"null"), (1, b'"x"')]),
        ('[{"a": 1},\n{"a": 2', [1], [(2, b'{"a": 2')]),
        ('[{"a": 1},\n', [1], [(2, b"")]),
        ('[{"a": 1},]', [1], []),
        ('{\n"a": 1}\n}\n{"a": 2}', [1, 2], [(3, b"}")]),
        ('{\n"a": 1}\nother\n{"a": 2}\n{"a": 3}', [1, 3], [(3, b'other\n{"a": 2}')]),
        ('{"a": 1}\n{"a": "x}\n{"a": 2}\n]\n{"a": [}\n{"a": 3}\n', [1, 2, 3],
         [(2, b'{"a": "x}'), (4, b"]"), (5, b'{"a": [}')]),
        ('{"a":\n{"a": 1}\n', [1], [(1, b'{"a":')]),
    ],
)  # fmt: skip
def test_what_is_no_object_is_bad_alone(
    tmp_path: Path, text: str, rows: list[int], bad: list[tuple[int, bytes]]
) -> None:
    found, others = read(tmp_path / "a.json", text)
    assert [row["a"] for _, row in found if isinstance(row, dict)] == rows
    assert others == bad


def test_text_after_an_array_is_refused_with_its_line(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"a": 1}]\n\nmore')
    with refused(sl.Invalid, line=3, file=str(tmp_path / "a.json")):
        lake.ingest("made", [str(tmp_path / "a.json")], key=[])


def test_the_first_bytes_tell_the_form() -> None:
    part = b'{"type": "Collection", "features": [\n{"a": 1},\n{"a": 2},\n'
    assert find_form(part, is_all=False) is Form.OBJECTS
    assert find_form(b'{"a": "torn\n{"b": 2}\n{"c": "to\n', is_all=False) is Form.LINES
    assert find_form(b'{"a": 1', is_all=False) is Form.OBJECTS
    assert find_form(b" \n[\n", is_all=False) is Form.ARRAY
    assert find_form(b"5\n", is_all=True) is find_form(b"", is_all=True) is Form.LINES


def test_an_object_that_never_ends_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream, "_OBJECT_BYTES", 1000)
    with refused(sl.Invalid, line=1):
        read(tmp_path / "a.json", '[{"a": "' + "x" * 5000, 100)


def test_a_complete_last_line_needs_no_newline_and_half_a_line_waits(lake: sl.Lake, tmp_path: Path) -> None:
    events = lake.create_table("events", "id:int64")
    file = tmp_path / "a.jsonl"
    whole = '{"id": 1}\n{"id": 2}\n{"id": 3}\n'
    counts = []
    for end in (len(whole) - 13, len(whole) - 11, len(whole) - 4, len(whole) - 1, len(whole)):
        file.write_text(whole[:end])
        counts.append(lake.ingest("events", [str(file)], last_line="wait").rows)
    assert counts == [1, 1, 0, 1, 0]
    assert rows_in(events) == [1, 2, 3]


def test_an_array_that_has_grown_is_loaded_whole(lake: sl.Lake, tmp_path: Path) -> None:
    lake.create_table("items", "id:int64!", key=["id"])
    (tmp_path / "a.json").write_text('[{"id": 1}]')
    assert lake.ingest("items", [str(tmp_path / "a.json")]).rows == 1
    (tmp_path / "a.json").write_text('[{"id": 1}, {"id": 2}]')
    report = lake.ingest("items", [str(tmp_path / "a.json")])
    assert (actions(report), report.rows, rows_in(lake.table("items"))) == (["load"], 2, [1, 2])


def test_random_files_are_read_as_python_reads_them(tmp_path: Path) -> None:
    random.seed(11)

    def value(depth: int) -> object:
        kinds = [1, -2.5, 'a"b\\', "{[,:]}", None, True, "\n"]
        if depth < 3 and random.random() < 0.4:
            return {f"k{n}": value(depth + 1) for n in range(random.randrange(4))}
        return [value(depth + 1) for _ in range(random.randrange(3))] if random.random() < 0.2 else random.choice(kinds)

    for number in range(60):
        rows = [{f"k{n}": value(1) for n in range(random.randrange(1, 5))} for _ in range(random.randrange(1, 6))]
        indent = random.choice([None, None, 1])
        text = json.dumps(rows, indent=indent) if number % 2 else "\n".join(json.dumps(r, indent=indent) for r in rows)
        found, bad = read(tmp_path / "a.json", text, random.choice([1, 16, 300]))
        assert [row for _, row in found] == rows and not bad, text


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_other_encodings_of_unicode_are_read(lake: sl.Lake, tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.json").write_bytes(json.dumps(ROWS, indent=1, ensure_ascii=False).encode(encoding))
    assert lake.ingest("made", [str(tmp_path / "a.json")], key=["id"]).rows == 3
    assert lake.table("made").to_arrow(where="id = 2").to_pylist()[0]["name"] == ROWS[1]["name"]


def test_a_compressed_array_is_loaded(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(ROWS).encode()))
    assert lake.ingest("made", [str(tmp_path / "a.json.gz")], key=["id"]).rows == 3
