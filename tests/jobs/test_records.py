"""Where records end: quotes, escapes and every kind of line end."""

from __future__ import annotations

import pytest

from strandline.jobs.ingest.dialect import Dialect
from strandline.jobs.ingest.records import Records


def split(data: bytes, **signs: str) -> list[bytes]:
    records = Records(Dialect(**signs))
    ends = records.ends(data).tolist()
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize(
    ("data", "signs", "count"),
    [
        (b"a,b\n1,2\n", {}, 2),
        (b"a,b\r\n1,2\r\n3,4", {}, 3),
        (b"a,b\r1,2\r", {}, 2),
        (b'"a\nb",2\n1,2\n', {}, 2),
        (b'"a\r\nb",2\r\n1,2\r\n', {}, 2),
        (b"'a\nb';2\n1;2\n", {"quote": "'", "delimiter": ";"}, 2),
        (b'"a\nb",2\n', {"quote": ""}, 2),
        (b'"say \\"hi\\"\n",2\n1,2\n', {"escape": "\\"}, 2),
        (b'"ends with \\\\",2\n1,2\n', {"escape": "\\"}, 2),
        (b'5" pipe,"x\ny"\n1,2\n', {}, 2),
        (b"", {}, 0),
    ],
)
def test_a_record_ends_at_a_line_end_outside_of_quotes(data: bytes, signs: dict[str, str], count: int) -> None:
    found = split(data, **signs)
    assert b"".join(found) == data
    assert len(found) == count
    whole = Records(Dialect(**signs)).cut(data)
    assert whole in [0, *(len(b"".join(found[: at + 1])) for at in range(count))]


@pytest.mark.parametrize(
    ("record", "signs", "fields"),
    [
        (b'1,"a ""b""",\n', {}, [b"1", b'a "b"', b""]),
        (b'1,"a \\"b\\" \\\\"\n', {"escape": "\\"}, [b"1", b'a "b" \\']),
        (b"1;'it''s'\r\n", {"delimiter": ";", "quote": "'"}, [b"1", b"it's"]),
        (b'"a",b\n', {"quote": ""}, [b'"a"', b"b"]),
    ],
)
def test_fields_are_without_their_quotes(record: bytes, signs: dict[str, str], fields: list[bytes]) -> None:
    assert Records(Dialect(**signs)).fields(record) == fields


def test_a_quote_that_is_never_closed_is_found_where_its_record_begins() -> None:
    records = Records(Dialect())
    assert records.find_open(b'a,b\n1,"x\n3,4\n') == 4
    assert records.find_open(b'a,b\n5" x,"y\n3,4\n') == 4
    assert records.find_open(b'a,b\n1,"x\ny"\n') is None
