"""Lines of JSON from a client, as the forward protocol writes them: one object per line.

`_parse_row` defines the meaning of a line; it reads with Python. Arrow reads blocks of lines many times faster, and is
used for a block when it is sure to give the same result. Only little more than one block is in memory at a time.
"""

from __future__ import annotations

import base64
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pt

from strandline.errors import Invalid
from strandline.jobs.ingest.columns import misfit_reason
from strandline.jobs.ingest.json_rows import quote_columns
from strandline.model.rows import check_rows, first_failing
from strandline.model.types import conform, is_json, storage_type, type_text
from strandline.server.json_line import JsonObject, quote_values
from strandline.server.memory_cost import COPIES, SLOT_BYTES, Weight, rows_bytes, slots
from strandline.sinks.forward.refusal import malformed

Data = bytes | bytearray

_LINE = re.compile(rb"[^ \t\r\n][^\n]*")
_BLOCK_BYTES = 1 << 20
_GROUP_BYTES = 64 << 10
_OBJECT_COPIES = 50
"""How much larger a text may become as Python objects: `[],` takes 150 bytes."""
_TEXT_COPIES = 4
_LIST_COPIES = 18
"""How much larger a text may become in Arrow: `1,` takes 36 bytes in a list of decimals."""
_SUSPECT = (re.compile(rb"\n[^{\n\r]"), re.compile(rb"\}[ \t\r]*(?:\{|null)"))
_CONSTANT = re.compile(rb"[^\w\"](?:NaN|Inf)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NUMBERS = ("NaN", "Infinity", "-Infinity")
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?\Z")
_DECIMAL_DIGITS = 100
_UNFIT = (Invalid, pa.ArrowException, ValueError, OverflowError)


def count_lines(data: Data, weight: Weight) -> int:
    """The number of rows, which are the lines that are not blank."""
    count = 0
    for start, end in _block_ends(data):
        # In blocks: one search through megabytes of blank lines would block all other threads.
        count += sum(1 for _ in islice(_LINE.finditer(data, start, end), weight.most_rows + 1 - count))
        weight.check_rows(count)
    return count


def first_names(data: Data) -> list[str]:
    """The names in the first line; none when it is no object."""
    end = data.find(b"\n")
    try:
        found = json.loads(data if end < 0 else data[:end])
    except (ValueError, RecursionError):
        return []
    return list(found) if isinstance(found, dict) else []


def read_lines(data: Data, schema: pa.Schema, weight: Weight) -> pa.Table:
    """The rows of `data` in the types of `schema`, all nullable. `Invalid` names a row and a column that do not fit."""
    columns = pa.schema([field.with_nullable(True) for field in schema])
    reader = _Reader(columns, weight)
    return pa.concat_tables([columns.empty_table(), *(reader.read(block) for block in _blocks(data))])


def _blocks(data: Data) -> Iterator[bytes]:
    """Blocks of whole lines, of about `_BLOCK_BYTES` bytes."""
    whole = memoryview(data)
    for start, end in _block_ends(data):
        yield bytes(whole[start:end])


def _block_ends(data: Data) -> Iterator[tuple[int, int]]:
    """Where each block begins and ends."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", min(start + _BLOCK_BYTES, len(data)))
        end = len(data) if end < 0 else end + 1
        yield start, end
        start = end


class _Reader:
    """Reads blocks in order; `_first` is the number of the next row."""

    def __init__(self, schema: pa.Schema, weight: Weight) -> None:
        self._schema = schema
        self._weight = weight
        self._first = 0
        self._names = frozenset(schema.names)
        self._read = pa.schema([(field.name, _read_type(field.type)) for field in schema])
        self._texts = frozenset(field.name for field in schema if is_json(field.type))
        self._slots = slots(schema)
        self._has_lists = any(_contains_type(field.type, pt.is_list) for field in schema)
        self._nested_slots = max((_slots_in_lists(field.type) for field in schema), default=0)
        self._options = pj.ParseOptions(explicit_schema=self._read, unexpected_field_behavior="error")
        self._is_plain = not any(_contains_type(field.type, _has_own_form) for field in schema)

    def read(self, block: bytes) -> pa.Table:
        rows = sum(1 for _ in _LINE.finditer(block))
        if not rows:
            return self._schema.empty_table()
        objects = block.count(b"{") if self._nested_slots else 0
        size = rows_bytes(rows, self._slots) + COPIES * SLOT_BYTES * objects * self._nested_slots
        with self._weight.borrow(size + (_LIST_COPIES if self._has_lists else _TEXT_COPIES) * len(block)):
            table = self._read_by_arrow(block, rows)
            if table is None:
                # If Arrow cannot take one block, it cannot take the next ones either.
                self._is_plain = False
                pieces = [self._read_by_hand(lines, first) for first, lines in self._line_groups(block)]
                table = pa.concat_tables(pieces)
        self._weight.add(rows_bytes(rows, 0) + COPIES * table.nbytes)
        self._first += rows
        return table

    def _read_by_arrow(self, block: bytes, rows: int) -> pa.Table | None:
        """The rows as Arrow reads them; None when Arrow might read them differently."""
        if self._is_plain and self._texts:
            quoted = quote_columns(block, self._texts)
            if quoted is None:
                return None
            block = quoted
        if not self._is_plain or not block.startswith(b"{") or any(found.search(block) for found in _SUSPECT):
            return None
        if (b"NaN" in block or b"Inf" in block) and _CONSTANT.search(block):
            return None
        try:
            options = pj.ReadOptions(block_size=len(block) + 1)
            table = pj.read_json(pa.BufferReader(block), read_options=options, parse_options=self._options)
            table.validate(full=True)
            if table.num_rows != rows or any(map(_has_infinity, table.columns)):
                return None
            return self._cast_columns(table)
        except _UNFIT:
            return None

    def _line_groups(self, block: bytes) -> Iterator[tuple[int, list[bytes]]]:
        """The lines of a block in small groups, each with the number of its first row."""
        lines: list[bytes] = []
        first = row = self._first
        start = 0
        for found in _LINE.finditer(block):
            if lines and found.end() - start > _GROUP_BYTES:
                yield first, lines
                lines, first = [], row
            if not lines:
                start = found.start()
            lines.append(found[0])
            row += 1
        yield first, lines

    def _read_by_hand(self, lines: list[bytes], first: int) -> pa.Table:
        with self._weight.borrow(_OBJECT_COPIES * sum(map(len, lines))):
            rows = [self._parse_row(line, row) for row, line in enumerate(lines, first)]
            try:
                read = pa.concat_tables(check_rows(rows, self._read, required=(), first_row=first))
            except Invalid as error:
                row, name = error.fields.get("row"), error.fields.get("column")
                if row is None or name not in self._names:
                    raise
                # Show the value as JSON; the other error shows the Python value.
                raise _misfit_error(row, self._schema.field(name), rows[row - first][name]) from error
            try:
                return self._cast_columns(read)
            except _UNFIT:
                for field in self._schema:
                    self._refuse_unfit(read.column(field.name), field, first)
                raise

    @staticmethod
    def _refuse_unfit(column: pa.ChunkedArray, field: pa.Field, first: int) -> None:
        kind = storage_type(field.type)
        try:
            _cast(column, kind)
        except _UNFIT:
            at = first_failing(len(column), lambda start, count: _cast(column.slice(start, count), kind))
            raise _misfit_error(first + at, field, column[at].as_py()) from None

    def _cast_columns(self, read: pa.Table) -> pa.Table:
        """The rows in the types of the schema; times were read as texts."""
        columns = [_cast(read.column(field.name), storage_type(field.type)) for field in self._schema]
        return conform(pa.Table.from_arrays(columns, names=self._schema.names), self._schema)

    def _parse_row(self, line: bytes, row: int) -> dict[str, Any]:
        """The values of a line, in the types of `_read`."""
        said = _parse_object(line, row, self._texts)
        for name in said:
            if name not in self._names:
                raise Invalid(f"row {row}, column {name!r}: the table has no such column", row=row, column=name)
        values = {}
        for field in self._schema:
            try:
                values[field.name] = _convert_value(said.get(field.name), field.type)
            except _RepeatedName as error:
                raise malformed(f"row {row}, column {field.name!r}: {error}", row=row, column=field.name) from error
            except (ValueError, TypeError, OverflowError) as error:
                raise _misfit_error(row, field, said[field.name]) from error
        return values


def _misfit_error(row: int, field: pa.Field, value: object) -> Invalid:
    try:
        why = misfit_reason(value, field)
        if isinstance(value, str) and _SURROGATE.search(value):
            why = "the text has half of a surrogate pair"
    except RecursionError:
        why = f"the value is not {type_text(field.type)}"
    return Invalid(f"row {row}, column {field.name!r}: {why}", row=row, column=field.name)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    return pa.chunked_array([_cast_array(pa.concat_arrays([chunk]), kind) for chunk in column.chunks], type=kind)


def _cast_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """`array` as `kind`. A null struct may contain empty texts, which are no times: they become nulls first."""
    if pt.is_struct(kind):
        children = [_cast_array(child, field.type) for child, field in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pt.is_list(kind):
        values = _cast_array(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=array.is_null())
    if pt.is_map(kind):
        keys, items = _cast_array(array.keys, kind.key_type), _cast_array(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=array.is_null())
    return array.cast(kind)


class _RepeatedName(ValueError):
    """An object has a name twice."""


def _refuse_constant(name: str) -> None:
    raise Invalid(f"{name} is not JSON")


_parse = json.JSONDecoder(object_pairs_hook=JsonObject, parse_float=Decimal, parse_constant=_refuse_constant).decode
_KINDS = {bool: "true or false", str: "a text", list: "a list", type(None): "null"}


def _parse_object(line: bytes, row: int, texts: frozenset[str]) -> JsonObject:
    """The object of a line. Values of the JSON columns `texts` keep their text."""
    column = None
    try:
        text = line.decode()
        if text.startswith("\ufeff"):
            raise Invalid("it begins with a byte order mark")
        said = _parse(quote_values(text, texts) if texts else text)
        if not isinstance(said, JsonObject):
            why = f"the line is {_KINDS.get(type(said), 'a number')}; expected an object"
        elif said.twice is not None:
            column, why = said.twice, f"the name {said.twice!r} occurs twice"
        else:
            return said
    except UnicodeDecodeError as error:
        why = f"byte {error.start + 1} of the line is not UTF-8"
    except json.JSONDecodeError as error:
        why = f"the line is not one JSON object: {error.msg.removesuffix(' at')} at character {error.pos + 1}"
    except RecursionError:
        why = "the line is nested too deeply"
    except Invalid as error:
        why = f"the line is not one JSON object: {error.message}"
    except ValueError:
        why = f"a number has more than {sys.get_int_max_str_digits()} digits"
    raise malformed(f"row {row}: {why}", row=row, **({} if column is None else {"column": column}))


def _convert_value(said: Any, kind: pa.DataType) -> Any:
    """The Python value of a JSON value; times stay texts."""
    if said is None:
        return None
    if pt.is_list(kind):
        return [_convert_value(each, kind.value_type) for each in _expect(list, said)]
    if pt.is_struct(kind):
        return _convert_struct(_expect(JsonObject, said), kind)
    if pt.is_map(kind):
        pairs = _refuse_repeats(said).items() if isinstance(said, JsonObject) else _expect(list, said)
        return [(_convert_value(key, kind.key_type), _convert_value(each, kind.item_type)) for key, each in pairs]
    if pt.is_temporal(kind) or is_json(kind):
        return _expect(str, said)
    if pt.is_binary(kind):
        return base64.b64decode(_expect(str, said), validate=True)
    if pt.is_decimal(kind):
        return _to_decimal(said)
    return _to_float(said) if pt.is_floating(kind) else said


def _convert_struct(said: JsonObject, kind: pa.StructType) -> dict[str, Any]:
    types, fields = {field.name: field.type for field in kind}, _refuse_repeats(said)
    if unknown := fields.keys() - types:
        raise ValueError(f"there is no field {min(unknown)!r}")
    return {name: _convert_value(each, types[name]) for name, each in fields.items()}


def _refuse_repeats(said: JsonObject) -> JsonObject:
    if said.twice is not None:
        raise _RepeatedName(f"the name {said.twice!r} occurs twice")
    return said


def _to_decimal(said: Any) -> Decimal | int:
    if isinstance(said, str):
        if not _DECIMAL.match(said):
            raise ValueError("not a number")
        said = Decimal(said)
    if isinstance(said, Decimal) and abs(said.adjusted()) > _DECIMAL_DIGITS:
        raise ValueError("too large or too small")
    return said  # type: ignore[no-any-return]


def _to_float(said: Any) -> Any:
    """The nearest float; a number that would become infinite is refused."""
    if isinstance(said, str) and said in _NUMBERS:
        return float(said)
    if isinstance(said, bool) or not isinstance(said, int | Decimal):
        raise TypeError("not a number")
    number = float(said)
    if math.isinf(number):
        raise OverflowError("too large")
    return number


def _expect(kind: type, said: Any) -> Any:
    if not isinstance(said, kind):
        raise TypeError(f"expected a {kind.__name__}")
    return said


def _read_type(kind: pa.DataType) -> pa.DataType:
    """The type to read: times and JSON are texts."""
    if pt.is_temporal(kind) or is_json(kind):
        return pa.string()
    if pt.is_list(kind):
        return pa.list_(_read_type(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([pa.field(each.name, _read_type(each.type), each.nullable) for each in kind])
    return pa.map_(_read_type(kind.key_type), _read_type(kind.item_type)) if pt.is_map(kind) else kind


def _has_own_form(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_map(kind))


def _contains_type(kind: pa.DataType, is_such: Callable[[pa.DataType], bool]) -> bool:
    return is_such(kind) or any(_contains_type(kind.field(at).type, is_such) for at in range(kind.num_fields))


def _slots_in_lists(kind: pa.DataType) -> int:
    """How many values an element of a list takes."""
    inner = max((_slots_in_lists(kind.field(at).type) for at in range(kind.num_fields)), default=0)
    return max(inner, slots(kind.value_type)) if pt.is_list(kind) else inner


def _has_infinity(array: pa.Array | pa.ChunkedArray) -> bool:
    if isinstance(array, pa.ChunkedArray):
        return _contains_type(array.type, pt.is_floating) and any(map(_has_infinity, array.chunks))
    if pt.is_floating(array.type):
        return bool(pc.any(pc.is_inf(array), min_count=0).as_py())
    if pt.is_struct(array.type):
        return any(_has_infinity(array.field(at)) for at in range(array.type.num_fields))
    return bool(pt.is_list(array.type)) and _has_infinity(array.values)
