"""Texts of CSV fields become values, a column at a time.

An empty field is null; a quoted empty field is null too where the column does not hold text. One function decides for
every value alone, so that it does not depend on its neighbours whether a row is good.
"""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from strandline.jobs.ingest.bad_rows import UNFIT
from strandline.jobs.ingest.columns import misfit_reason
from strandline.model import json_text
from strandline.model.arrow_check import find_unreadable
from strandline.model.types import conform_column, is_json, storage_type, type_text

_LONG_DIGITS = r"^\s*-?[0-9]{16,}\s*$"


def cast_texts(texts: pa.ChunkedArray, field: pa.Field, null: tuple[str, ...] = ()) -> pa.ChunkedArray:
    """The values of a column; raises one of `UNFIT` when a text is none."""
    kind = storage_type(field.type)
    if is_json(field.type):
        found = drop_empty(texts, null)
        for text in pc.unique(found).drop_null().to_pylist():
            json_text.check(text)
    elif pt.is_string(kind):
        found = texts
    else:
        found = _parse_texts(drop_empty(texts, null), kind)
        fault = find_unreadable(pa.table({field.name: found}))
        if fault is not None:
            raise fault.error(0)
    if found.null_count and not field.nullable:
        raise pa.ArrowInvalid("a value is required")
    return conform_column(found, field.type)


def drop_empty(texts: pa.ChunkedArray, null: tuple[str, ...]) -> pa.ChunkedArray:
    """`texts` with null for the empty text and for the texts that mean null, quoted or not."""
    is_empty = pc.is_in(texts, value_set=pa.array(["", *null]))
    return pc.if_else(is_empty, None, texts) if pc.any(is_empty, min_count=0).as_py() else texts


def _parse_texts(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pt.is_floating(kind):
        _refuse_inexact(texts, kind)
    found = _cast_trimmed(texts, kind)
    if pt.is_floating(kind) and pc.any(pc.is_inf(found), min_count=0).as_py():
        is_number = pc.match_substring_regex(texts.filter(pc.is_inf(found)), "[0-9]")
        if pc.any(is_number, min_count=0).as_py():
            raise pa.ArrowInvalid("the number is too large")
    return found


def _cast_trimmed(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        trimmed = pc.utf8_trim_whitespace(texts)
        if trimmed.equals(texts):
            raise
        return drop_empty(trimmed, ()).cast(kind)


def _refuse_inexact(texts: pa.ChunkedArray, kind: pa.DataType) -> None:
    """Refuse integers that would become other numbers as floats."""
    is_long = pc.match_substring_regex(texts, _LONG_DIGITS)
    if pc.any(is_long, min_count=0).as_py():
        for text in pc.unique(texts.filter(is_long)).to_pylist():
            if not keeps_integer(text.strip(), kind):
                raise pa.ArrowInvalid("the number has too many digits")


def keeps_integer(text: str, kind: pa.DataType) -> bool:
    """Whether an integer is the same number as a float of this type."""
    value = pa.scalar(text).cast(kind).as_py()
    return math.isfinite(value) and int(value) == int(text)


def find_unfit(texts: pa.ChunkedArray, field: pa.Field, null: tuple[str, ...]) -> pa.ChunkedArray | None:
    """A mask of the texts that are no values of the column; None when all are."""
    try:
        cast_texts(texts, field, null)
        return None
    except UNFIT:
        # Each distinct text is decided once.
        distinct = pc.unique(texts)
    distinct = pa.chunked_array([distinct])
    bad: list[int] = []
    waiting = [(0, len(distinct))]
    while waiting:
        start, stop = waiting.pop()
        try:
            cast_texts(distinct.slice(start, stop - start), field, null)
        except UNFIT:
            middle = (start + stop) // 2
            if stop - start == 1:
                bad.append(start)
            else:
                waiting += [(start, middle), (middle, stop)]
    return pc.is_in(texts, value_set=distinct.take(bad).combine_chunks(), skip_nulls=False)


def reason_for(text: str | None, field: pa.Field, null: tuple[str, ...]) -> str:
    """Why a text does not fit its column."""
    is_empty = text is None or (not pt.is_string(field.type) and (text == "" or text in null))
    if not is_empty and pt.is_floating(field.type) and str(text).strip().lstrip("-").isdigit():
        return f"'{text}' has more digits than {type_text(field.type)} keeps"
    return misfit_reason(None if is_empty and not field.nullable else text, field)
