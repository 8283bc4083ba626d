"""Rows of a table from JSON objects: good rows as a table, bad rows with line, column and reason.

An object's names are columns of the table; a name that is missing is null. JSON columns take any value and keep its
text unchanged. Text columns take strings, and the texts of numbers and booleans. Times are ISO 8601 texts.

Arrow parses a block as a whole when it is sure to give the same rows. Otherwise the values of each object are found by
their positions, and read column by column.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pt

from strandline.engines.ahead import convert_ahead
from strandline.errors import Invalid
from strandline.jobs.column_names import ColumnMatcher, missing_hint
from strandline.jobs.ingest.bad_rows import UNFIT, BadRow, sift
from strandline.jobs.ingest.blocks import Reading
from strandline.jobs.ingest.columns import cast_columns, read_type
from strandline.jobs.ingest.json_cells import TOO_DEEP, Texts, read_column
from strandline.jobs.ingest.json_scan import CLOSE_OBJECT, COLON, COMMA, OPEN_OBJECT, Positions
from strandline.jobs.ingest.json_stream import Form, JsonBlock, Lines, MakeBlock, cut_records, split_lines
from strandline.model import json_text
from strandline.model.checked_rows import CheckedRows, Mask
from strandline.model.rows import check_rows
from strandline.model.types import is_json

_MOST_DEPTH = json_text.DEPTH + 1
_SPACE = b" \t\r\n"
_EXACT_FLOAT = float(1 << 53)
_Fault = tuple[str | None, str]


class JsonRows:
    """Reads the objects of one file. Threads may share it. `tells_lacking`: the rows tell which values they lack, which
    takes longer where there are nulls."""

    def __init__(self, schema: pa.Schema, names: ColumnMatcher | None = None, *, tells_lacking: bool = False) -> None:
        self._schema = schema
        self._tells_lacking = tells_lacking
        self._places = {name: at for at, name in enumerate(schema.names)}
        self._match = None if names is None else names.one_by_one()
        self._lock = threading.Lock()
        self._met: dict[str, int | None] = {}
        self._hints: dict[str, str] = {}
        self._keys: dict[bytes, tuple[str, int | None]] = {}
        is_own = names is None or not any(name in names.known.columns for name in schema.names)
        self._is_plain = is_own and not any(_is_read_by_hand(field.type) for field in schema)
        read = pa.schema([(field.name, read_type(field.type)) for field in schema])
        self._options = pj.ParseOptions(
            explicit_schema=read, unexpected_field_behavior="error", newlines_in_values=True
        )

    def convert(self, make: MakeBlock) -> tuple[CheckedRows, list[BadRow]]:
        """The good rows of a block, checked, and the bad ones, in the order of their lines."""
        table, is_tried = self._read_lines(make) if isinstance(make, Lines) else (None, False)
        if table is not None:
            return CheckedRows(table, by_row=True), []
        records = make()
        table = None if is_tried else self._read_by_arrow(records)
        if table is not None:
            return CheckedRows(table, by_row=True), []
        bad = [BadRow(line, *explain_text(text), _show_text(text)) for line, text in records.bad]
        found = _Members(records)
        faults = found.faults
        columns: list[Texts] = [[None] * len(records) for _ in self._schema]
        lacking = self._place_values(found, columns, faults)
        arrays = []
        for field, texts in zip(self._schema, columns, strict=True):
            array, reasons = read_column(texts, field)
            arrays.append(array)
            for at, reason in reasons.items():
                faults.setdefault(at, (field.name, reason))
            if not field.nullable:
                for at in np.flatnonzero(pc.is_null(array).to_numpy(zero_copy_only=False)).tolist():
                    faults.setdefault(at, (field.name, "a value is required, found none"))
        rows = pa.Table.from_arrays(arrays, names=self._schema.names)
        good = np.setdiff1d(np.arange(len(records)), np.fromiter(faults, np.int64, len(faults)))
        rows, others = self._check(rows.take(good) if faults else rows)
        faults |= {int(good[at]): fault for at, fault in others.items()}
        good = np.delete(good, list(others))
        lacking = {name: mask[good] for name, mask in lacking.items() if mask[good].any()}
        for at, fault in faults.items():
            text, hint = _show_text(records.text(at)), self._hints.get(fault[0] or "", "")
            bad.append(BadRow(int(records.lines[at]), *fault, text, hint=hint))
        return CheckedRows(rows, lacking, by_row=True), sorted(bad, key=lambda each: each.line)

    def _check(self, rows: pa.Table) -> tuple[pa.Table, dict[int, _Fault]]:
        """Checked rows, and the reasons why others are bad."""
        pieces, faults = [self._schema_of_rows().empty_table()], {}

        def check(start: int, stop: int) -> pa.Table:
            return next(check_rows(rows.slice(start, stop - start), self._schema))

        for found in sift(rows.num_rows, check) if rows.num_rows else ():
            if isinstance(found, pa.Table):
                pieces.append(found)
                continue
            try:
                check(found, found + 1)
            except Invalid as error:
                faults[found] = (error.fields.get("column"), error.message.partition(": ")[2])
            except UNFIT as error:
                faults[found] = (None, str(error).splitlines()[0])
        return pa.concat_tables(pieces), faults

    def _schema_of_rows(self) -> pa.Schema:
        return pa.schema([field.with_nullable(True) for field in self._schema])

    def _read_lines(self, lines: Lines) -> tuple[pa.Table | None, bool]:
        """The rows of whole lines as Arrow reads them, and whether it could read them at all: where it does, nobody has
        to look for brackets and quotes. `None, False` also when a line may be broken."""
        objects = lines.count_objects() if self._is_plain else None
        try:
            return (None, False) if objects is None else (self._take_arrow(lines.data, objects), True)
        except UNFIT:
            return None, False

    def _read_by_arrow(self, records: JsonBlock) -> pa.Table | None:
        """The same for a block that has been looked at."""
        if not self._is_plain or records.bad or not len(records):
            return None
        is_object = records.signs.kind[records.first] == OPEN_OBJECT
        if not is_object.all() or records.signs.depth.max() > _MOST_DEPTH:
            return None
        try:
            return self._take_arrow(records.data, len(records))
        except UNFIT:
            # If one block cannot be read so, the next ones cannot either.
            self._is_plain = False
            return None

    def _take_arrow(self, data: bytes, objects: int) -> pa.Table | None:
        """The rows of so many objects as Arrow reads them; None when it might read them differently than we do."""
        read = pj.ReadOptions(block_size=len(data) + 1)
        table = pj.read_json(pa.BufferReader(data), read_options=read, parse_options=self._options)
        table.validate(full=True)
        floats = (found for column in table.columns for chunk in column.chunks for found in _find_floats(chunk))
        if table.num_rows != objects or any(map(_may_be_rounded, floats)):
            return None
        rows = next(check_rows(cast_columns(table, self._schema), self._schema))
        # Arrow reads a name that is missing as it reads null.
        if self._tells_lacking and any(column.null_count for column in rows.columns):
            return None
        return rows if self._take_own_names(rows) else None

    def _take_own_names(self, rows: pa.Table) -> bool:
        """Whether the columns that have values have no other name in this file."""
        own = [name for name in rows.column_names if rows.column(name).null_count < rows.num_rows]
        return all(self._find_place(name) == self._places[name] for name in own)

    def _place_values(self, found: _Members, columns: list[Texts], faults: dict[int, _Fault]) -> dict[str, Mask]:
        """Put the text of each value into its column and row; returns which rows lack a column, where that is told."""
        keys, data = self._keys, found.data
        for row, start, colon, stop in found.spans():
            key = data[start:colon].strip(_SPACE)
            known = keys.get(key)
            if known is None:
                known = self._find_key(key)
                if known is None:
                    faults.setdefault(row, (None, explain_text(data[start:stop])[1]))
                    continue
            name, place = known
            if place is None:
                why = "has another name in this file" if name in self._places else "is not in the table"
                faults.setdefault(row, (name, f"the column {name!r} {why}"))
                continue
            texts = columns[place]
            text = data[colon + 1 : stop].strip(_SPACE)
            if texts[row] is not None:
                faults.setdefault(row, (name, f"the name {name!r} occurs twice"))
            elif not text:
                faults.setdefault(row, (name, "the value is missing"))
            texts[row] = text
        lacking = {}
        for name, texts in zip(self._schema.names, columns, strict=True):
            if self._tells_lacking and None in texts:
                lacking[name] = np.fromiter((each is None for each in texts), np.bool_, len(texts))
            for row, each in enumerate(texts):
                if each == b"null":
                    texts[row] = None
        return lacking

    def _find_key(self, key: bytes) -> tuple[str, int | None] | None:
        """The name and the place of the column; None when the text is no name."""
        try:
            name = json.loads(key)
            if not isinstance(name, str):
                return None
            name.encode()
        except ValueError:
            return None
        found = self._keys[key] = (name, self._find_place(name))
        return found

    def _find_place(self, name: str) -> int | None:
        """The place of the column that a name means; None when the table has none."""
        with self._lock:
            if name not in self._met:
                source = name if name in self._places else quote_blank(name)
                column = name if self._match is None else self._match(source)
                self._met[name] = self._places.get(column)
                if self._met[name] is None and name not in self._places:
                    self._hints[name] = missing_hint([name], column)
            return self._met[name]


class _Members:
    """The names and values of the objects of a block, by their positions."""

    def __init__(self, records: JsonBlock) -> None:
        self.data = records.data
        self.faults: dict[int, _Fault] = {}
        signs, count = records.signs, len(records)
        self._signs = signs
        row_of = np.repeat(np.arange(count), records.last - records.first + 1)
        inside = _join_ranges(records.first, records.last)
        kind, depth = signs.kind[inside], signs.depth[inside]
        for row in np.unique(row_of[depth > _MOST_DEPTH]).tolist():
            self.faults[row] = (None, TOO_DEEP)
        ends = records.last - records.first
        is_other = (signs.kind[records.first] != OPEN_OBJECT) | (signs.kind[records.last] != CLOSE_OBJECT)
        is_empty = np.isin(np.arange(count), row_of[kind == COLON], invert=True)
        for row in np.flatnonzero(is_other | is_empty).tolist():
            if is_other[row] or records.text(row)[1:-1].strip(_SPACE):
                self.faults[row] = explain_text(records.text(row))
        is_edge = (depth <= 1) & ((depth == 0) | (kind == COMMA) | (kind == COLON))
        is_edge[np.cumsum(ends + 1) - (ends + 1)] = True
        edges, rows, kinds = inside[is_edge], row_of[is_edge], kind[is_edge]
        # An object is: {, then for each member a colon, then a comma or }.
        is_first = np.diff(rows, prepend=-1) != 0
        place = np.arange(len(edges)) - np.maximum.accumulate(np.where(is_first, np.arange(len(edges)), 0))
        is_last = np.append(is_first[1:], True)[: len(edges)]
        wants_colon = place % 2 == 1
        is_wrong = (wants_colon & (kinds != COLON) & ~(is_last & (place == 1))) | (
            ~wants_colon & ~is_first & (kinds == COLON)
        )
        for row in np.unique(rows[is_wrong]).tolist():
            self.faults.setdefault(row, explain_text(records.text(row)))
        is_good = ~np.isin(rows, np.fromiter(self.faults, np.int64, len(self.faults)))
        colons = np.flatnonzero((kinds == COLON) & is_good)
        at = signs.at[edges]
        self._rows = rows[colons].tolist()
        self._starts = (at[colons - 1] + 1).tolist()
        self._colons = at[colons].tolist()
        self._stops = at[colons + 1].tolist()

    def spans(self) -> Iterator[tuple[int, int, int, int]]:
        """Row, start of the name, colon, and end of each value."""
        return zip(self._rows, self._starts, self._colons, self._stops, strict=True)


def quote_blank(name: str) -> str:
    """A name of an object. One without text gets quotes: unlike in CSV, it does not stand for a place in the file, so
    the table's map of names keeps it."""
    return name if name.strip() else json.dumps(name)


def quote_columns(data: bytes, names: Collection[str]) -> bytes | None:
    """Lines of objects, with the values of these names turned into strings of their JSON text, except null. None when a
    line is not one object, or such a value is not JSON."""
    block = split_lines(data)
    found = _Members(block)
    if block.bad or found.faults or (np.diff(block.lines) == 0).any():
        return None
    keys = {json.dumps(name, ensure_ascii=False).encode() for name in names}
    parts, done = [], 0
    for _, start, colon, stop in found.spans():
        key = data[start:colon].strip(_SPACE)
        if b"\\" in key:
            return None
        value = data[colon + 1 : stop]
        if key in keys and value.strip(_SPACE) != b"null":
            try:
                text = value.strip(_SPACE).decode()
                json_text.check(text)
            except (ValueError, RecursionError):
                return None
            parts += [data[done : colon + 1], json.dumps(text, ensure_ascii=False).encode()]
            done = stop
    return b"".join([*parts, data[done:]])


def _join_ranges(first: Positions, last: Positions) -> Positions:
    """The numbers of all ranges, their ends included."""
    sizes = last - first + 1
    starts = np.cumsum(sizes) - sizes
    joined: Positions = np.arange(int(sizes.sum())) + np.repeat(first - starts, sizes)
    return joined


def explain_text(text: bytes) -> _Fault:
    """Why a text is no object with names and values."""
    try:
        value = json.loads(text.decode())
    except UnicodeDecodeError as error:
        return None, f"byte {error.start + 1} of the row is not UTF-8"
    except RecursionError:
        return None, TOO_DEEP
    except json.JSONDecodeError as error:
        place = f"at character {error.colno}" + ("" if error.lineno == 1 else f" of its line {error.lineno}")
        return None, f"this is not a JSON object: {error.msg.removesuffix(' at')} {place}"
    except ValueError as error:
        return None, f"this is not a JSON object: {error}"
    if not isinstance(value, dict):
        return None, f"found {describe_value(value)}; expected an object"
    return None, "this is not a JSON object"


def describe_value(value: object) -> str:
    """A value by its kind, for a message."""
    kinds = (
        (bool, "true or false"),
        (str, "a text"),
        (int | float, "a number"),
        (list, "an array"),
        (dict, "an object"),
    )
    return "null" if value is None else next(word for kind, word in kinds if isinstance(value, kind))


def _show_text(text: bytes) -> str:
    return text.decode(errors="backslashreplace")


def _is_read_by_hand(kind: pa.DataType) -> bool:
    return (
        is_json(kind)
        or bool(pt.is_map(kind))
        or any(_is_read_by_hand(kind.field(i).type) for i in range(kind.num_fields))
    )


def _find_floats(array: pa.Array) -> Iterator[pa.Array]:
    """The arrays of floats in an array, at any depth."""
    if pt.is_floating(array.type):
        yield array
    elif pt.is_struct(array.type):
        for child in array.flatten():
            yield from _find_floats(child)
    elif pt.is_nested(array.type):
        yield from _find_floats(array.flatten())


def _may_be_rounded(floats: pa.Array) -> bool:
    """Whether a number may have been an integer that a float does not keep, or is none that JSON knows."""
    is_odd = pc.or_(pc.greater_equal(pc.abs(floats), _EXACT_FLOAT), pc.is_nan(floats))
    return bool(pc.any(is_odd, min_count=0).as_py())


def read_json(reading: Reading, rows: JsonRows, form: Form | None = None) -> Iterator[CheckedRows | BadRow]:
    """The rows of a reading: good ones in pieces, bad ones with their lines. Other threads convert the next blocks
    while the caller takes the rows."""
    for good, bad in convert_ahead(rows.convert, cut_records(reading, form=form)):
        if good.table.num_rows:
            yield good
        yield from bad
