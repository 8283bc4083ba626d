"""CSV: records are cut where Arrow cuts them, and a bad line is named by number and column."""

from __future__ import annotations

import codecs
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bad_rows
import strandline as sl
from bad_rows import HEADER, rejects_of
from strandline.jobs.ingest.dialect import Dialect
from strandline.jobs.ingest.records import Records
from support import nothing_written, refused

flat = bad_rows.flat


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("x,,,,,,,,,", "id"),
        (",1,,,,,,,,", "id"),
        ("1.0,,,,,,,,,", "id"),
        ("1,3000000000,,,,,,,,", "n"),
        ("1,,x,,,,,,,", "f"),
        ("1,,,yes,,,,,,", "ok"),
        ("1,,,,,yesterday,,,,", "at"),
        ("1,,,,,2024-01-31T12:00:00,,,,", "at"),
        ("1,,,,,,2024-01-31T12:00:00Z,,,", "local"),
        ("1,,,,,,,31/01/2024,,", "day"),
        ("1,,,,,,,,1.005,", "price"),
        ("1,,,,,,,,,{", "doc"),
        ("1,,,,,,,,", None),
        ("1,,,,,,,,,,x", None),
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
    ("header", "column"), [("id,nope\n", "nope"), ("n,f\n", "id"), ("id,n,n\n", "n"), ("id;nope\n", "nope")]
)
def test_a_bad_header_is_no_row_to_keep_aside(
    flat: sl.Table, lake: sl.Lake, tmp_path: Path, header: str, column: str
) -> None:
    (tmp_path / "a.csv").write_text(header + "1,2\n")
    with refused(sl.Invalid, line=1, column=column):
        lake.ingest("flat", [str(tmp_path / "a.csv")], rejects=True)


def test_a_byte_order_mark_and_windows_line_ends_are_taken(flat: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(codecs.BOM_UTF8 + b"id,text\r\n1,a\r\n2,b\r\n")
    (tmp_path / "a.jsonl").write_bytes(codecs.BOM_UTF8 + b'{"id": 3}\r\n\r\n{"id": 4}\r\n')
    assert lake.ingest("flat", [str(tmp_path / "a.*")]).rows == 4
    assert flat.to_arrow(where="id = 1").to_pylist()[0]["text"] == "a"


@given(st.lists(st.text(alphabet='a",\n\r', max_size=6), max_size=12), st.booleans())
def test_records_are_cut_where_arrow_cuts_them(fields: list[str], is_quoted: bool) -> None:
    """Whatever lies before the cut parses alone as it does with the rest."""
    import pyarrow.csv as pv

    text = ",".join('"' + f.replace('"', '""') + '"' if is_quoted or "\n" in f else f.lstrip('"') for f in fields)
    data = (text + "\n" + "1,2\n").replace("\r", "").encode()
    records = Records(Dialect())
    ends = records.ends(data).tolist()
    assert ends[-1] == len(data)
    assert records.cut(data) in [0, *ends]
    for start, end in zip([0, *ends], ends, strict=False):
        record = data[start:end]
        if record.strip() and records.find_open(record) is None:
            names = [str(i) for i in range(len(records.fields(record)))]
            parsed = pv.read_csv(
                pa.BufferReader(record),
                read_options=pv.ReadOptions(column_names=names),
                parse_options=pv.ParseOptions(newlines_in_values=True),
                convert_options=pv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
            )
            assert parsed.to_pylist() == [
                dict(zip(names, (field.decode() for field in records.fields(record)), strict=True))
            ]


def test_quotes_after_spaces_enclose_fields(lake: sl.Lake, tmp_path: Path) -> None:
    text = 'id, name, "the note"\n1, "b,c", x\n2,  "d ""e""" , "two\nlines"\n3, f, ""\n4,g,"h, ""i"", j"\n'
    (tmp_path / "a.csv").write_text(text)
    lake.ingest("t", [tmp_path / "a.csv"], key=["id"])
    assert [tuple(row.values()) for row in lake.sql("select * from t order by id").to_pylist()] == [
        (1, "b,c", " x"),
        (2, 'd "e"', "two\nlines"),
        (3, " f", ""),
        (4, "g", 'h, "i", j'),
    ]


def test_a_bad_row_with_spaces_before_quotes_is_loaded_later(lake: sl.Lake, tmp_path: Path) -> None:
    table = lake.create_table("t", "id:int64!, v:int8, name:string", key=["id"])
    (tmp_path / "a.csv").write_text('id, v, name\n1, "1000", "a, b"\n2, "2", "c"\n3, 3\n')
    report = lake.ingest("t", [tmp_path / "a.csv"], rejects=True)
    assert (report.rows, [row["line"] for row in rejects_of(table)]) == (1, [2, 4])
    table.evolve(pa.schema([("v", pa.int64())]))
    assert table.rejects().retry().rows == 1
    assert table.to_arrow(where="id = 1").to_pylist() == [{"id": 1, "v": 1000, "name": "a, b"}]


@given(
    st.lists(st.tuples(st.text(alphabet='a", ;\n', max_size=6), st.integers(0, 2), st.integers(0, 2)), min_size=2),
    st.integers(0, 200),
)
def test_spaces_around_quotes_change_nothing(fields: list[tuple[str, int, int]], cut: int) -> None:
    def write(is_spaced: bool) -> bytes:
        parts = []
        for at, (text, before, after) in enumerate(fields):
            quoted = '"' + text.replace('"', '""') + '"'
            parts += [" " * before + quoted + " " * after if is_spaced else quoted, "\n" if at % 2 else ","]
        return "".join([*parts[:-1], "\n"]).encode()

    spaced, plain = Records(Dialect(spaced_quotes=True)), Records(Dialect())
    data, expected = write(True), write(False)
    assert spaced.unescape(data) == expected
    ends, plain_ends = spaced.ends(data).tolist(), plain.ends(expected).tolist()
    records = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    plain_records = [expected[start:end] for start, end in zip([0, *plain_ends], plain_ends, strict=False)]
    assert [spaced.fields(record) for record in records] == [plain.fields(record) for record in plain_records]
    # A block that ends anywhere is cut at the end of a record.
    assert spaced.cut(data[:cut]) in [0, *ends]
