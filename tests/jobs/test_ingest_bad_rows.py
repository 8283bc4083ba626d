"""Bad rows: the call fails and names file, line and column, or the rows are kept aside and the good ones load."""

from __future__ import annotations

import codecs
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.jobs.ingest import blocks
from strandline.jobs.ingest.csv import Records
from strandline.model.types import JSON
from strandline.tables.rejects import Rejects
from support import nothing_written, python, refused

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("n", pa.int32()),
        ("f", pa.float64()),
        ("ok", pa.bool_()),
        ("text", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("doc", JSON),
        ("tags", pa.list_(pa.string())),
    ]
)
FLAT = pa.schema([field for field in SCHEMA if field.name != "tags"])


@pytest.fixture
def things(lake: sl.Lake) -> sl.Table:
    return lake.create_table("things", SCHEMA, key=["id"])


@pytest.fixture
def flat(lake: sl.Lake) -> sl.Table:
    return lake.create_table("flat", FLAT, key=["id"])


def rejects_of(table: sl.Table) -> list[dict[str, Any]]:
    return Rejects(table.log.storage, table.entry).latest(1000)


GOOD = '{"id": %d, "text": "fine"}\n'


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
        ('{"id": 1, "text": 5}', "text"),
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
        ('{"id": 1, "doc": "not json"}', "doc"),
        ('{"id": 1, "doc": ' + "[" * 10_000 + "]" * 10_000 + "}", None),
        ('{"id": 1, "tags": "x"}', "tags"),
        ('{"id": 1, "tags": [1]}', "tags"),
        ('{"id": 1, "other": 2}', "other"),
        ('{"id": 1, "id": 2}', "id"),
        ('{"id": 1', None),
        ('{"id": 1}{"id": 2}', None),
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


HEADER = "id,n,f,ok,text,at,local,day,price,doc\n"


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("x,,,,,,,,,", "id"),
        (",1,,,,,,,,", "id"),
        ("1.0,,,,,,,,,", "id"),
        ("1,3000000000,,,,,,,,", "n"),
        ('1,"",,,,,,,,', "n"),
        ("1,,x,,,,,,,", "f"),
        ("1,,,yes,,,,,,", "ok"),
        ("1,,,,,yesterday,,,,", "at"),
        ("1,,,,,2024-01-31T12:00:00,,,,", "at"),
        ("1,,,,,,2024-01-31T12:00:00Z,,,", "local"),
        ("1,,,,,,,31/01/2024,,", "day"),
        ("1,,,,,,,,1.005,", "price"),
        ("1,,,,,,,,,{", "doc"),
        ("1,,,,,,,,", None),
        ("1,,,,,,,,,,", None),
        ("1", None),
    ],
)
def test_a_bad_line_of_csv_is_named_and_nothing_is_loaded(
    flat: sl.Table, lake: sl.Lake, tmp_path: Path, line: str, column: str | None
) -> None:
    file = tmp_path / "a.csv"
    good = '7,,,,"two\nlines",,,,,\n'
    file.write_text(HEADER + good * 3 + line + "\n" + good * 2)
    with nothing_written(flat), refused(sl.Invalid, file=str(file), line=8) as caught:
        lake.ingest("flat", [str(file)])
    assert caught.value.fields.get("column") == column
    report = lake.ingest("flat", [str(file)], rejects=True)
    assert (report.rows, report.rejects) == (5, 1)
    (reject,) = rejects_of(flat)
    assert (reject["line"], reject["column"], reject["text"]) == (8, column, line)


@pytest.mark.parametrize("stray", ["", '5" pipe'])
def test_a_quote_that_is_never_closed_does_not_swallow_the_rest(
    flat: sl.Table, lake: sl.Lake, tmp_path: Path, stray: str
) -> None:
    (tmp_path / "a.csv").write_text(f'id,text\n1,{stray}\n2,"open\n3,c\n4,d\n')
    with nothing_written(flat), refused(sl.Invalid, line=3):
        lake.ingest("flat", [str(tmp_path / "a.csv")])
    assert lake.ingest("flat", [str(tmp_path / "a.csv")], rejects=True).rows == 1
    (reject,) = rejects_of(flat)
    assert (reject["line"], reject["text"]) == (3, '2,"open\n3,c\n4,d')


@pytest.mark.parametrize(
    ("header", "column"), [("id,nope\n", "nope"), ("n,f\n", "id"), ("id,n,n\n", "n"), ("id;n\n", "id;n")]
)
def test_a_bad_header_is_no_row_to_keep_aside(
    flat: sl.Table, lake: sl.Lake, tmp_path: Path, header: str, column: str
) -> None:
    (tmp_path / "a.csv").write_text(header + "1,2\n")
    with refused(sl.Invalid, line=1, column=column):
        lake.ingest("flat", [str(tmp_path / "a.csv")], rejects=True)


def test_bad_rows_of_parquet_are_named_and_kept_aside(things: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    rows = pa.table(
        {"id": [1, None, 3, 4], "n": pa.array([1, 2, 3, 1 << 40], pa.int64()), "doc": ["{}", "1", "{", None]}
    )
    file = tmp_path / "a.parquet"
    pq.write_table(rows, file)
    with nothing_written(things), refused(sl.Invalid, file=str(file), line=2, column="id"):
        lake.ingest("things", [str(file)])
    report = lake.ingest("things", [str(file)], rejects=True)
    assert (report.rows, report.rejects) == (1, 3)
    assert [(r["line"], r["column"]) for r in rejects_of(things)] == [(2, "id"), (3, "doc"), (4, "n")]
    assert json.loads(rejects_of(things)[0]["text"])["n"] == 2


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.parquet", b"not parquet"),
        ("a.jsonl.gz", b"not gzip"),
        ("a.jsonl.gz", gzip.compress(b'{"id": 1}\n' * 1000)[:-20]),
        ("a.jsonl", codecs.BOM_UTF16_LE + '{"id": 1}'.encode("utf-16-le")),
    ],
    ids=["no parquet", "no gzip", "cut gzip", "utf-16"],
)
def test_a_damaged_file_is_refused_whole(
    things: sl.Table, lake: sl.Lake, tmp_path: Path, name: str, data: bytes
) -> None:
    (tmp_path / name).write_bytes(data)
    for rejects in (False, True):
        with nothing_written(things), refused(sl.Invalid, file=str(tmp_path / name)):
            lake.ingest("things", [str(tmp_path / name)], rejects=rejects)


@pytest.mark.parametrize("columns", [{"id": ["x"]}, {"id": [1], "other": [1]}])
def test_a_parquet_file_of_other_columns_is_refused_whole(
    things: sl.Table, lake: sl.Lake, tmp_path: Path, columns: dict[str, list[Any]]
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with nothing_written(things), refused(sl.Invalid, column=list(columns)[-1]):
        lake.ingest("things", [str(tmp_path / "a.parquet")], rejects=True)


def test_bytes_that_are_not_utf8_are_a_bad_line(things: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id": 1}\n{"id": 2, "text": "\xff\xfe"}\n{"id": 3}\n')
    with nothing_written(things), refused(sl.Invalid, line=2):
        lake.ingest("things", [str(tmp_path / "a.jsonl")])
    assert lake.ingest("things", [str(tmp_path / "a.jsonl")], rejects=True).rows == 2
    assert "\\xff" in rejects_of(things)[0]["text"]


def test_a_byte_order_mark_and_windows_line_ends_are_taken(flat: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(codecs.BOM_UTF8 + b"id,text\r\n1,a\r\n2,b\r\n")
    (tmp_path / "a.jsonl").write_bytes(codecs.BOM_UTF8 + b'{"id": 3}\r\n\r\n{"id": 4}\r\n')
    assert lake.ingest("flat", [str(tmp_path / "a.*")]).rows == 4
    assert flat.to_arrow(where="id = 1").to_pylist()[0]["text"] == "a"


def test_json_columns_take_objects_and_keep_their_text(things: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    docs = ['{"b": 1.10, "a":[1,  2]}', "[]", "5", "true", "null", '"{\\"x\\": 1}"', '{"n": 12345678901234567890.5}']
    (tmp_path / "a.jsonl").write_text("".join(f'{{"id": {i}, "doc": {doc}}}\n' for i, doc in enumerate(docs)))
    assert lake.ingest("things", [str(tmp_path / "a.jsonl")]).rows == 7
    kept = things.to_arrow(columns=["id", "doc"]).sort_by("id").column("doc").to_pylist()
    assert kept == [*docs[:4], None, '{"x": 1}', docs[6]]


def test_maps_are_read_from_json_lines(lake: sl.Lake, tmp_path: Path) -> None:
    table = lake.create_table(
        "maps", pa.schema([("id", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))]), key=["id"]
    )
    (tmp_path / "a.jsonl").write_text('{"id": 1, "m": {"a": 1, "b": 2}}\n{"id": 2}\n{"id": 3, "m": {"a": "x"}}\n')
    assert lake.ingest("maps", [str(tmp_path / "a.jsonl")], rejects=True).rejects == 1
    assert table.to_arrow(where="id = 1").to_pylist()[0]["m"] == [("a", 1), ("b", 2)]


def test_a_block_boundary_may_fall_anywhere(
    flat: sl.Table, lake: sl.Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small blocks against one: the same rows and the same faults at the same lines."""
    seeded = random.Random(7)
    texts = ["", "x", "a,b", 'say ""hi""', "two\nlines", "\n", "," * 50, "y" * 500]
    rows = ["bad,,,,,,,,," if seeded.random() < 0.1 else f'{i},,,,"{seeded.choice(texts)}",,,,,' for i in range(300)]
    (tmp_path / "a.csv").write_text(HEADER + "\n".join(rows))
    expected: Any = None
    for size in (1 << 20, 64, 257, 1000):
        table = lake.create_table(f"t{size}", FLAT, key=["id"])
        monkeypatch.setattr(blocks.Reading.blocks, "__kwdefaults__", {"block_bytes": size})
        lake.ingest(f"t{size}", [str(tmp_path / "a.csv")], rejects=True)
        found = (
            table.to_arrow(columns=["id", "text"]).sort_by("id").to_pylist(),
            [(r["line"], r["column"], r["text"]) for r in rejects_of(table)],
        )
        expected = expected or found
        assert found == expected
    assert len(expected[0]) + len(expected[1]) == 300


@given(st.lists(st.text(alphabet='a",\n\r', max_size=6), max_size=12), st.booleans())
def test_records_are_cut_where_arrow_cuts_them(fields: list[str], is_quoted: bool) -> None:
    """Whatever lies before the cut parses alone as it does with the rest."""
    import pyarrow.csv as pv

    text = ",".join('"' + f.replace('"', '""') + '"' if is_quoted or "\n" in f else f.lstrip('"') for f in fields)
    data = (text + "\n" + "1,2\n").replace("\r", "").encode()
    records = Records(",")
    ends = list(records.ends(data))
    assert ends[-1] == len(data)
    assert records.cut(data) in [0, *ends]
    for start, end in zip([0, *ends], ends, strict=False):
        record = data[start:end]
        if record.strip() and not records.is_open(record):
            names = [str(i) for i in range(len(records.fields(record)))]
            parsed = pv.read_csv(
                pa.BufferReader(record),
                read_options=pv.ReadOptions(column_names=names),
                parse_options=pv.ParseOptions(newlines_in_values=True),
                convert_options=pv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
            )
            assert parsed.to_pylist() == [dict(zip(names, records.fields(record), strict=True))]


def test_rejects_in_one_block_of_many_rows_are_found_all(things: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    bad = {3, 4, 5000, 9999}
    (tmp_path / "a.jsonl").write_text("".join('{"id": "x"}\n' if i in bad else GOOD % i for i in range(10_000)))
    report = lake.ingest("things", [str(tmp_path / "a.jsonl")], rejects=True)
    assert (report.rows, report.rejects) == (9_996, 4)
    assert {r["line"] - 1 for r in rejects_of(things)} == bad


def test_earlier_groups_stay_when_a_later_file_is_bad(
    things: sl.Table, lake: sl.Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.jobs.ingest.load.GROUP_FILES", 2)
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text(GOOD % number)
    (tmp_path / "3.jsonl").write_text("garbage\n")
    with refused(sl.Invalid, file=str(tmp_path / "3.jsonl"), line=1) as caught:
        lake.ingest("things", [str(tmp_path / "*.jsonl")])
    assert "2 earlier files are loaded" in str(caught.value)
    assert things.to_arrow(columns=["id"]).num_rows == 2
    (tmp_path / "3.jsonl").write_text(GOOD % 3)
    assert lake.ingest("things", [str(tmp_path / "*.jsonl")]).rows == 2


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
