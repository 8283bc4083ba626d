"""Lines of JSON from outside, as the forward protocol writes them.

They are read as `ingest` reads such files. Only what JSON has no word for is taken by hand, a value at a time: binary
in base64, maps whose keys are no texts, and numbers such as "NaN".
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable, Collection, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, overload

import pyarrow as pa
import pyarrow.types as pt

from strandline import moments
from strandline.errors import Invalid
from strandline.ingest.columns import unfit
from strandline.ingest.jsonl import JsonLines
from strandline.ingest.sift import UNFIT, sift
from strandline.rows import checked
from strandline.server.errors import malformed

_NUMBERS = ("NaN", "Infinity", "-Infinity")


def count_lines(data: bytes) -> int:
    return sum(1 for line in data.split(b"\n") if line.strip())


def read_lines(data: bytes, schema: pa.Schema) -> pa.Table:
    """The rows of `data` with the columns of `schema`, of which one at least is a plain one; `Invalid` names the row
    and the column that do not fit."""
    if not data or data.isspace():
        return schema.empty_table()
    has_texts = any(f'"{word}"'.encode() in data for word in _NUMBERS)
    by_hand = [field for field in schema if _holds(field.type, lambda kind: _is_by_hand(kind, has_texts))]
    plain = pa.schema([field for field in schema if field not in by_hand])
    lines = JsonLines(plain, others="ignore" if by_hand else "error")
    try:
        table = lines.convert(data)
    except UNFIT as error:
        raise _fault(lines, data, {field.name for field in by_hand}) from error
    if by_hand:
        rows = _ByHand([record for _, record in lines.records(data)], by_hand, schema.names)
        taken = pa.concat_tables(checked(rows, pa.schema(by_hand)))
        for field in by_hand:
            table = table.append_column(field.with_nullable(True), taken.column(field.name))
    return table.select(schema.names)


def _fault(lines: JsonLines, data: bytes, others: Collection[str]) -> Exception:
    """Which row it was: the first of those that do not fit even alone. `others` are columns that were not looked at."""
    records = [record for _, record in lines.records(data)]
    found = sift(len(records), lambda start, stop: lines.convert(b"".join(records[start:stop])))
    row = next((place for place in found if isinstance(place, int)), None)
    if row is None:
        return malformed("the body is not lines of JSON objects")
    column, reason = lines.explain(_without(records[row], others))
    if column is None:
        return malformed(f"row {row}: {reason}", row=row)
    return Invalid(f"row {row}, column {column!r}: {reason}", row=row, column=column)


def _without(record: bytes, names: Collection[str]) -> bytes:
    try:
        row = json.loads(record)
    except (ValueError, RecursionError):
        return record
    if not isinstance(row, dict) or not any(name in row for name in names):
        return record
    return json.dumps({name: value for name, value in row.items() if name not in names}).encode()


class _ByHand(Sequence[dict[str, Any]]):
    """The values of some columns, made of the lines as they are asked for. `names` are all columns that there are."""

    def __init__(self, records: Sequence[bytes], fields: Sequence[pa.Field], names: Sequence[str]) -> None:
        self._records = records
        self._fields = fields
        self._names = frozenset(names)

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, at: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, at: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, at: int | slice) -> Any:
        return self._row(at) if isinstance(at, int) else [self._row(row) for row in range(*at.indices(len(self)))]

    def _row(self, row: int) -> dict[str, Any]:
        said = json.loads(self._records[row])
        for name in said:
            if name not in self._names:
                raise Invalid(f"row {row}, column {name!r}: the table has no such column", row=row, column=name)
        values = {}
        for field in self._fields:
            try:
                values[field.name] = _value(said.get(field.name), field.type)
            except (ValueError, TypeError, InvalidOperation) as error:
                why = unfit(said[field.name], field)
                raise Invalid(f"row {row}, column {field.name!r}: {why}", row=row, column=field.name) from error
        return values


def _value(said: Any, kind: pa.DataType) -> Any:
    """The value that JSON says; where it says it as a text, parsed."""
    if said is None:
        return None
    if pt.is_list(kind):
        return [_value(each, kind.value_type) for each in _a(list, said)]
    if pt.is_struct(kind):
        types = {field.name: field.type for field in kind}
        return {name: _value(each, types.get(name, pa.null())) for name, each in _a(dict, said).items()}
    if pt.is_map(kind):
        pairs = said.items() if isinstance(said, dict) else _a(list, said)
        return [(_value(key, kind.key_type), _value(each, kind.item_type)) for key, each in pairs]
    if not isinstance(said, str):
        return Decimal(str(said)) if pt.is_decimal(kind) and isinstance(said, float) else said
    if pt.is_binary(kind):
        return base64.b64decode(said, validate=True)
    if pt.is_timestamp(kind):
        return moments.parsed(said)
    if pt.is_date(kind):
        return dt.date.fromisoformat(said)
    if pt.is_decimal(kind):
        return Decimal(said)
    return float(said) if pt.is_floating(kind) and said in _NUMBERS else said


def _a(kind: type, said: Any) -> Any:
    if not isinstance(said, kind):
        raise TypeError(f"expected a {kind.__name__}")
    return said


def _is_by_hand(kind: pa.DataType, has_texts: bool) -> bool:
    return bool(pt.is_binary(kind) or pt.is_map(kind) or (has_texts and pt.is_floating(kind)))


def _holds(kind: pa.DataType, is_such: Callable[[pa.DataType], bool]) -> bool:
    return is_such(kind) or any(_holds(kind.field(at).type, is_such) for at in range(kind.num_fields))
