"""One column of JSON values: their texts become an Arrow array, a text that does not fit becomes a reason.

Casts are done for whole columns; only where one fails, halves of the column are tried until the bad values are found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pt

from strandline.jobs.ingest.cells import keeps_integer
from strandline.jobs.ingest.columns import misfit_reason, read_type
from strandline.model import json_text
from strandline.model.types import is_json, storage_type

Texts = list[bytes | None]
Reasons = dict[int, str]
"""Why the value of a row is bad, by the number of the row."""

_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]*+)\Z")
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?\Z")
_LONG_DIGITS = 16
_FLOATS = {b"NaN": b"nan", b"Infinity": b"inf", b"-Infinity": b"-inf"}
_BOOLS = {b"true": True, b"false": False}
_CAST_ERRORS = (pa.ArrowException, ValueError, OverflowError)
_HALF_PAIR = "the text has an incomplete character: an escape such as \\ud83d without its second half"
TOO_DEEP = f"the value is nested deeper than {json_text.DEPTH} levels"


def read_column(texts: Texts, field: pa.Field) -> tuple[pa.Array, Reasons]:
    """The values of a column in the storage type of the field, null where a value is bad. A text of None is a null."""
    kind = storage_type(field.type)
    reasons: Reasons = {}
    if is_json(field.type):
        return _read_json(texts, reasons), reasons
    if pt.is_boolean(kind):
        values = [None if text is None else _BOOLS.get(text) for text in texts]
        array = pa.array(values, kind)
        unfit = [at for at, text in enumerate(texts) if text is not None and values[at] is None]
    elif pt.is_nested(kind):
        array, unfit = _read_nested(texts, kind)
    elif pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind):
        array, unfit = _read_numbers(texts, kind)
    else:
        strings = _read_strings(texts, reasons, takes_all=bool(pt.is_string(kind)), field=field)
        array, unfit = _cast_each(pa.array(strings, pa.string()), kind)
    for at in unfit:
        reasons[at] = explain_value(texts[at] or b"", field)
    return array, reasons


def explain_value(text: bytes, field: pa.Field) -> str:
    """Why the text of a value does not fit the column."""
    try:
        return misfit_reason(json.loads(text), field)
    except (ValueError, RecursionError):
        return misfit_reason(text.decode(errors="backslashreplace"), field)


def _read_json(texts: Texts, reasons: Reasons) -> pa.Array:
    """Values as they are written. Each distinct text is checked once."""
    known: dict[bytes, str | None] = {}
    for at, text in enumerate(texts):
        if text is None:
            continue
        if text not in known:
            known[text] = _find_fault(text)
        fault = known[text]
        if fault is not None:
            reasons[at] = fault
    return pa.array([None if at in reasons else text for at, text in enumerate(texts)], pa.binary()).cast(pa.string())


def _find_fault(text: bytes) -> str | None:
    try:
        json_text.check(text.decode())
    except UnicodeDecodeError:
        return "the text is not UTF-8"
    except UnicodeEncodeError:
        return _HALF_PAIR
    except RecursionError:
        return TOO_DEEP
    except ValueError as error:
        return f"the value is not JSON: {str(error).splitlines()[0]}"
    return None


def _read_numbers(texts: Texts, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Numbers as they are written. A decimal may be a string too."""
    unfit = []
    numbers: Texts = [None] * len(texts)
    is_float = pt.is_floating(kind)
    pattern = _INTEGER if pt.is_integer(kind) else _NUMBER
    for at, text in enumerate(texts):
        if text is None:
            continue
        if pt.is_decimal(kind):
            text = text.removeprefix(b'"').removesuffix(b'"')
        if pattern.match(text) and not (is_float and _is_rounded(text, kind)):
            numbers[at] = text
        elif pt.is_floating(kind) and text in _FLOATS:
            numbers[at] = _FLOATS[text]
        else:
            unfit.append(at)
    array, others = _cast_each(pa.array(numbers, pa.binary()).cast(pa.string()), kind)
    if pt.is_floating(kind) and pc.any(pc.is_inf(array), min_count=0).as_py():
        # A number that is too large for the type is not infinite.
        is_said = pa.array([text in _FLOATS for text in texts])
        is_large = pc.and_(pc.is_inf(array).fill_null(False), pc.invert(is_said))
        others += pc.indices_nonzero(is_large).to_pylist()
        array = pc.if_else(is_large, None, array)
    return array, unfit + others


def _is_rounded(text: bytes, kind: pa.DataType) -> bool:
    """Whether an integer would become another number."""
    return len(text) >= _LONG_DIGITS and _INTEGER.match(text) is not None and not keeps_integer(text.decode(), kind)


def _read_strings(texts: Texts, reasons: Reasons, *, takes_all: bool, field: pa.Field) -> list[str | None]:
    """The values of strings. With `takes_all`, numbers, true and false are taken as their texts."""
    found: list[Any] = _parse_all(texts, reasons)
    for at, value in enumerate(found):
        if value is None or isinstance(value, str):
            continue
        if takes_all and not isinstance(value, list | dict):
            found[at] = (texts[at] or b"").decode()
        else:
            found[at] = None
            reasons[at] = misfit_reason(value, field)
    try:
        "".join(filter(None, found)).encode()
    except UnicodeEncodeError:
        for at, value in enumerate(found):
            if value is not None and any("\ud800" <= sign <= "\udfff" for sign in value):
                found[at], reasons[at] = None, _HALF_PAIR
    return found


def _parse_all(texts: Texts, reasons: Reasons) -> list[Any]:
    """The Python values of JSON texts, all by one call if possible."""
    try:
        return list(json.loads(b"[" + b",".join(b"null" if text is None else text for text in texts) + b"]"))
    except (ValueError, RecursionError):
        pass
    found: list[Any] = []
    for at, text in enumerate(texts):
        try:
            found.append(None if text is None else json.loads(text))
        except (ValueError, RecursionError):
            found.append(None)
            reasons[at] = _find_fault(text or b"") or "the value is not JSON"
    return found


def _read_nested(texts: Texts, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    def read(start: int, stop: int) -> pa.Array:
        return _parse_nested(texts[start:stop], kind)

    return _try_halves(len(texts), kind, read)


def _parse_nested(texts: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Lists, structs and maps. Arrow's reader has no maps, so these are read by Python."""
    if _holds_map(kind):
        values = [None if text is None else _to_pairs(json.loads(text), kind) for text in texts]
        return pa.array(values, kind)
    options = pj.ParseOptions(
        explicit_schema=pa.schema([("v", read_type(kind))]),
        unexpected_field_behavior="error",
        newlines_in_values=True,
    )
    lines = b"".join(b'{"v": %b}\n' % (b"null" if text is None else text) for text in texts)
    read = pj.read_json(
        pa.BufferReader(lines), read_options=pj.ReadOptions(block_size=len(lines) + 1), parse_options=options
    )
    read.validate(full=True)
    if read.num_rows != len(texts):
        raise ValueError("rows and values differ")
    return read.column("v").cast(kind).combine_chunks()


def _to_pairs(value: Any, kind: pa.DataType) -> Any:
    """A JSON value with the pairs of its maps as Arrow takes them."""
    if value is None:
        return None
    if pt.is_map(kind):
        return [(key, _to_pairs(item, kind.item_type)) for key, item in value.items()]
    if pt.is_list(kind):
        return [_to_pairs(each, kind.value_type) for each in value]
    if pt.is_struct(kind):
        types = {field.name: field.type for field in kind}
        return {name: _to_pairs(each, types[name]) for name, each in value.items()}
    return value


def _holds_map(kind: pa.DataType) -> bool:
    return bool(pt.is_map(kind)) or any(_holds_map(kind.field(i).type) for i in range(kind.num_fields))


def _cast_each(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """The array as `kind`, and the numbers of the values that cannot be."""
    return _try_halves(len(array), kind, lambda start, stop: array.slice(start, stop - start).cast(kind))


def _try_halves(count: int, kind: pa.DataType, read: Callable[[int, int], pa.Array]) -> tuple[pa.Array, list[int]]:
    pieces, unfit = [], []
    waiting = [(0, count)] if count else []
    while waiting:
        start, stop = waiting.pop()
        try:
            pieces.append(read(start, stop))
        except (*_CAST_ERRORS, AttributeError, TypeError, KeyError):
            if stop - start == 1:
                unfit.append(start)
                pieces.append(pa.nulls(1, kind))
            else:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
    return pa.concat_arrays(pieces) if pieces else pa.nulls(0, kind), unfit
