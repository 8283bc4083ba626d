"""JSON lines: one object per line, whose names are columns of the table.

JSON columns take any value and keep its text unchanged; a string there is JSON text already. Times are ISO 8601 texts.

Arrow parses the lines. Before that, this module refuses a line that is `null`, and turns values of JSON columns into
strings. DuckDB would keep these values too, but writes their numbers again, as floats.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.types as pt

from strandline.errors import Invalid
from strandline.jobs.ingest.bad_rows import UNFIT
from strandline.jobs.ingest.columns import cast_columns, misfit_reason, read_type
from strandline.model.rows import check_rows
from strandline.model.types import is_json

# Places where a line may not start with an object, or where `null` may follow an object. Two patterns, because each is
# found by its first character: one pattern for both takes thirty times as long.
_SUSPECT = (re.compile(rb"\n[^{\n\r]"), re.compile(rb"\}[ \t]*n"))
_SPACE = re.compile(r"[ \t\r\n]*")
_decode = json.JSONDecoder().raw_decode

LINES_HINT = (
    "Expected one JSON object per line, not an array or an object over several lines. Convert: jq -c '.[]' or jq -c ."
)


class JsonLines:
    """Rows of `schema` from lines of JSON. `others` is what Arrow does with names that are no columns."""

    names = None

    def __init__(self, schema: pa.Schema, *, others: str = "error") -> None:
        self._schema = schema
        self._texts = frozenset(f.name for f in schema if is_json(f.type) or pt.is_map(f.type))
        for field in schema:
            if field.name not in self._texts and _holds_map(field.type):
                raise Invalid(
                    f"column {field.name!r} is {field.type}, which cannot be read from JSON lines",
                    hint="Load it from Parquet.",
                    column=field.name,
                )
        read = [(f.name, pa.string() if f.name in self._texts else read_type(f.type)) for f in schema]
        self._options = pj.ParseOptions(explicit_schema=pa.schema(read), unexpected_field_behavior=others)
        self._is_nested = False

    def cut(self, data: bytes) -> int:
        return data.rfind(b"\n") + 1

    def records(self, data: bytes) -> list[tuple[int, bytes]]:
        return [(at, line + b"\n") for at, line in enumerate(data.split(b"\n")) if line.strip()]

    def convert(self, data: bytes) -> pa.Table:
        """The rows of whole lines, checked; raises one of `UNFIT` when any of them is bad."""
        if not self._is_nested:
            try:
                return self._parse_lines(data)
            except UNFIT:
                if not self._texts:
                    raise
        lines = data.decode().split("\n")
        plain = "\n".join(quote_values(line, self._texts) if line.strip() else "" for line in lines).encode()
        table = self._parse_lines(plain)
        # If one block has objects in JSON columns, the next blocks have them too.
        self._is_nested = plain != data
        return table

    def _parse_lines(self, data: bytes) -> pa.Table:
        if not data or data.isspace():
            return self._schema.empty_table()
        _refuse_nulls(data)
        lines = data.count(b"\n") + (not data.endswith(b"\n"))
        read = pj.ReadOptions(block_size=len(data) + 1)
        table = pj.read_json(pa.BufferReader(data), read_options=read, parse_options=self._options)
        if table.num_rows != lines and table.num_rows != len(self.records(data)):
            raise Invalid("rows and lines differ")
        table.validate(full=True)
        return next(
            check_rows(
                self._add_maps(cast_columns(table.drop_columns(self._map_columns), self._schema), table), self._schema
            )
        )

    @property
    def _map_columns(self) -> list[str]:
        return [name for name in self._texts if pt.is_map(self._schema.field(name).type)]

    def _add_maps(self, table: pa.Table, texts: pa.Table) -> pa.Table:
        for name in self._map_columns:
            values = [None if text is None else json.loads(text) for text in texts.column(name).to_pylist()]
            pairs = [None if value is None else list(value.items()) for value in values]
            table = table.append_column(name, pa.array(pairs, self._schema.field(name).type))
        return table

    def explain(self, line: bytes) -> tuple[str | None, str]:
        """The column and the reason why a line is bad."""
        try:
            row = json.loads(line.decode().strip(), object_pairs_hook=JsonObject)
        except UnicodeDecodeError as error:
            return None, f"byte {error.start + 1} of the line is not UTF-8"
        except json.JSONDecodeError as error:
            return None, f"the line is not a JSON object: {error.msg.removesuffix(' at')} at character {error.pos + 1}"
        except (ValueError, RecursionError) as error:
            return None, f"the line is not a JSON object: {error}"
        if not isinstance(row, JsonObject):
            return None, f"the line is {'null' if row is None else f'a {type(row).__name__}'}; expected an object"
        if row.twice is not None:
            return row.twice, f"the name {row.twice!r} occurs twice"
        for name, value in row.items():
            if name not in self._schema.names:
                return name, f"the table has no column {name!r}"
            if isinstance(value, str) and any("\ud800" <= sign <= "\udfff" for sign in value):
                return name, "the text has an incomplete character: an escape such as \\ud83d without its second half"
        for field in sorted(self._schema, key=lambda field: _is_likely(row.get(field.name), field)):
            try:
                JsonLines(pa.schema([field]), others="ignore").convert(line)
            except UNFIT:
                return field.name, misfit_reason(row.get(field.name), field)
        return None, "the line does not fit the table"


class JsonObject(dict[str, Any]):
    """A JSON object that remembers a repeated name."""

    twice: str | None = None

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        if len(self) != len(pairs):
            counts = Counter(name for name, _ in pairs)
            self.twice = next(name for name, count in counts.items() if count > 1)


def _refuse_nulls(data: bytes) -> None:
    """Arrow's parser crashes on a `null` where a row should start (apache/arrow#47409), so refuse it before."""
    places = [] if data.startswith(b"{") else [0]
    places += [found.end() - 1 for pattern in _SUSPECT for found in pattern.finditer(data)]
    done = -1
    for place in sorted(places):
        if place > done:
            end = data.find(b"\n", place)
            done = len(data) if end < 0 else end
            line = data[data.rfind(b"\n", 0, place) + 1 : done]
            if line.strip() and not isinstance(json.loads(line), dict):
                raise Invalid("a line is not an object")


def _is_likely(value: object, field: pa.Field) -> bool:
    """Whether the value probably fits; the other columns are tried first."""
    if value is None:
        return bool(field.nullable)
    if pt.is_integer(field.type) or pt.is_floating(field.type) or pt.is_decimal(field.type):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if pt.is_boolean(field.type):
        return isinstance(value, bool)
    return isinstance(value, str) and not pt.is_temporal(field.type) and not is_json(field.type)


def _holds_map(kind: pa.DataType) -> bool:
    return bool(pt.is_map(kind)) or any(_holds_map(kind.field(i).type) for i in range(kind.num_fields))


def quote_values(line: str, names: Collection[str]) -> str:
    """`line`, with the values of these names turned into JSON strings of their text, except strings and null."""
    parts: list[str] = []
    done, at = 0, _skip_sign(line, 0, "{")
    while not line.startswith("}", at):
        if not line.startswith('"', at):
            raise Invalid("a name is missing")
        name, at = _decode(line, at)
        at = _skip_sign(line, at, ":")
        value, end = _decode(line, at)
        if name in names and value is not None and not isinstance(value, str):
            parts += [line[done:at], json.dumps(line[at:end], ensure_ascii=False)]
            done = end
        at = _skip_sign(line, end, ",}")
    return "".join([*parts, line[done:]])


def _skip_sign(line: str, at: int, signs: str) -> int:
    """The position after one of `signs` and the space around it; at a '}' the position of that."""
    at = _skip_space(line, at)
    if at >= len(line) or line[at] not in signs:
        raise Invalid(f"expected {signs}")
    return at if line[at] == "}" else _skip_space(line, at + 1)


def _skip_space(line: str, at: int) -> int:
    found = _SPACE.match(line, at)
    return found.end() if found else at
