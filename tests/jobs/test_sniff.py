"""How a CSV file is written, found out from its first lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.jobs.ingest.sniff import Layout, sniff
from strandline.jobs.ingest.source import find
from strandline.jobs.ingest.text_options import TextArguments, TextOptions
from support import refused


def look(folder: Path, text: str | bytes, name: str = "a.csv", columns: list[str] | None = None, **said: Any) -> Layout:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    (source,) = find([str(folder / name)], None)
    layout = sniff(source, TextOptions.of(TextArguments(**said)), columns or ())
    assert layout is not None
    return layout


@pytest.mark.parametrize(
    ("text", "delimiter", "names"),
    [
        ("id,name\n1,a\n", ",", ["id", "name"]),
        ("id;price\n1;1,5\n2;2,5\n", ";", ["id", "price"]),
        ("id\tname\n1\ta, b\n", "\t", ["id", "name"]),
        ("id|name\n1|a\n", "|", ["id", "name"]),
        ('id;"a, b"\n1;"x, y, z"\n', ";", ["id", "a, b"]),
        ("id,name,\n1,a,\n2,b,\n", ",", ["id", "name", ""]),
        ("id,name,\n1,a\n2,b\n", ",", ["id", "name"]),
        ("id,name\n1,a,\n2,b,\n", ",", ["id", "name"]),
        ('"size","cut"\n"1",5,a\n"2",6,b\n', ",", ["", "size", "cut"]),
        ("# made by a tool, version 2\nid,value\n1,10\n2,20\n", ",", ["id", "value"]),
        ("#chrom,pos\nchr1,5\nchr2,6\n", ",", ["#chrom", "pos"]),
        ("+5,a\n+6,b\n", ",", ["column_1", "column_2"]),
        ("word\none\ntwo\n", ",", ["word"]),
        ("text\nhello, world\nwell\nso it is, and was, and will be\nfine\n", ";", ["text"]),
    ],
)
def test_the_sign_that_splits_lines_evenly_is_the_delimiter(
    tmp_path: Path, text: str, delimiter: str, names: list[str]
) -> None:
    layout = look(tmp_path, text)
    assert (layout.dialect.delimiter, layout.names) == (delimiter, names)


@pytest.mark.parametrize(
    ("text", "skipped", "comment"),
    [
        ("\n\n\nid,name\n1,a\n", 3, ""),
        ("# made by a program\n# on a day, in May\nid,name,size\n1,a,2\n", 2, "#"),
        ("Sales of the year\n\nid,name,size\n1,a,2\n2,b,2\n", 2, ""),
        ("#chrom,start,end\n1,2,3\n", 0, ""),
    ],
)
def test_lines_before_the_table_are_left_out(tmp_path: Path, text: str, skipped: int, comment: str) -> None:
    layout = look(tmp_path, text)
    assert (layout.dialect.skipped_lines, layout.dialect.comment) == (skipped, comment)
    assert layout.names[0] in ("id", "#chrom")
    assert text.encode()[len(layout.prefix) :].startswith(b"1,")


@pytest.mark.parametrize(
    ("text", "has_header"),
    [
        ("1,a\n2,b\n", False),
        (".5,-.5\n.25,-.1\n", False),
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n", False),
        ("2024-01-31,x\n2024-02-01,y\n", False),
        ("a,b\nc,d\n", True),
        ('"",142.24,144.78\n9.4,0,0\n9.5,1,0\n', True),
        ("country,1990,1991\nChad,1.5,2.5\n", True),
        ("id,2\n1,3\n", True),
        ("a,1\nb,x\n", True),
        ("id,name\n", True),
    ],
)
def test_the_first_line_is_the_header_unless_it_has_values_like_those_below(
    tmp_path: Path, text: str, has_header: bool
) -> None:
    layout = look(tmp_path, text)
    assert layout.dialect.has_header is has_header
    if not has_header:
        assert layout.names[:2] == ["column_1", "column_2"]
    assert look(tmp_path, text, header=not has_header).dialect.has_header is not has_header


def test_the_columns_of_the_table_tell_a_header(tmp_path: Path) -> None:
    assert look(tmp_path, "1,2\n3,4\n", columns=["1", "2"]).dialect.has_header


@pytest.mark.parametrize(
    ("text", "quote", "escape"),
    [
        ("id,name\n1,'a, b'\n2,'c, d'\n", "'", ""),
        ("id,name\n1,it's\n2,'tis\n", '"', ""),
        ('id,name\n1,"a \\"b\\", c"\n2,"d, e"\n', '"', "\\"),
        ('id,name\n1,"a ""b"", c"\n', '"', ""),
    ],
)
def test_quotes_and_escapes_are_those_of_the_fields(tmp_path: Path, text: str, quote: str, escape: str) -> None:
    dialect = look(tmp_path, text).dialect
    assert (dialect.quote, dialect.escape) == (quote, escape)


def test_what_is_said_is_not_found_out(tmp_path: Path) -> None:
    layout = look(tmp_path, "x\n!c\na;b,c\n1;2,3\n", delimiter=",", comment="!", skip_lines=1, quote="")
    assert layout.names == ["a;b", "c"]
    assert (layout.dialect.quote, layout.dialect.is_comment_said) == ("", True)
    assert look(tmp_path, "a.b\t1\n", name="a.tsv").dialect.delimiter == "\t"


def test_line_ends_of_old_programs_are_known(tmp_path: Path) -> None:
    assert look(tmp_path, "id,name\r1,a\r2,b\r").dialect.newline == "\r"
    assert look(tmp_path, "id,name\r\n1,a\r\n").dialect.newline == "\n"


@pytest.mark.parametrize("start", [b"\x1f\x8b\x08", b"PK\x03\x04", b"PAR1", b"%PDF-1.7", b"\0\5\xff\xfe\x80"])
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, start: bytes) -> None:
    with refused(sl.Invalid, file=str(tmp_path / "a.csv")):
        look(tmp_path, start + b"\n1,2\n")


def test_an_empty_file_has_no_layout(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\n \n")
    (source,) = find([str(tmp_path / "a.csv")], None)
    assert sniff(source, TextOptions()) is None


@pytest.mark.parametrize(
    ("text", "is_spaced"),
    [
        ('id, name\n1, "a, b"\n2, "c"\n', True),
        ('id; name\n1;  "a ""b""; c" \n', True),
        ("id, name\n1, 'a, b'\n2, 'c, d'\n", True),
        ('id,name\n1,"a, ""b"", c"\n', False),
        ('id,name\n1, 5" pipe\n2, "fine" pipe\n', False),
        ('id,name\n1, "open\n2,x\n', False),
        ("id,name\n1, a\n", False),
    ],
)
def test_spaces_before_quotes_are_seen(tmp_path: Path, text: str, is_spaced: bool) -> None:
    assert look(tmp_path, text).dialect.spaced_quotes == is_spaced
