"""The schema of a table that is created from its first file.

A column gets a type only when every sampled value has it. Columns of objects or lists become JSON, columns without any
value become text. When bad rows are kept aside, the type of most values counts.

No library infers the types, because a type must keep every value as it is written. Arrow reads 00712 as 712, a number
of 20 digits as a float and `nan` as null; DuckDB reads all identifiers in JSON as floats when one of them has 20
digits. Both infer types (times of day, dates in national formats) that ingest does not read.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from strandline.errors import Invalid
from strandline.jobs.ingest.blocks import Reading
from strandline.jobs.ingest.csv_file import find_types
from strandline.jobs.ingest.jsonl import LINES_HINT, JsonLines
from strandline.jobs.ingest.parquet import open_parquet
from strandline.jobs.ingest.source import Source
from strandline.jobs.ingest.text import Format
from strandline.jobs.ingest.text_options import TextOptions
from strandline.model.types import JSON, KEY_TYPES, canonical_schema, relax_schema

_SAMPLE_ROWS = 10_000
_SAMPLE_BYTES = 4 << 20

_UTC = pa.timestamp("us", tz="UTC")
_LOCAL = pa.timestamp("us")
_CLOCK = r"[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?"
_TIMES = (
    (re.compile(r"\d{4}-\d\d-\d\d\Z"), pa.date32()),
    (re.compile(rf"\d{{4}}-\d\d-\d\d{_CLOCK}(Z|[+-]\d\d:?\d\d)\Z"), _UTC),
    (re.compile(rf"\d{{4}}-\d\d-\d\d{_CLOCK}\Z"), _LOCAL),
)


def infer(source: Source, options: TextOptions, *, is_tolerant: bool = False, key: Sequence[str] = ()) -> pa.Schema:
    """The schema of a Parquet file, or the types of the rows of a text file. `is_tolerant` skips bad rows.
    Types that `options` says are not inferred. Columns of the `key` get a type that a key may have."""
    if source.kind == "parquet":
        with open_parquet(source) as file:
            return _canonical_schema(options.override(file.schema_arrow, source.uri), source)
    if source.kind == "csv":
        schema = pa.schema([pa.field(name, kind) for name, kind in zip(*find_types(source, options), strict=True)])
    else:
        schema = _infer_json(source, options, is_tolerant)
    if not len(schema) and source.unfinished_bytes:
        raise Invalid(
            f"{source.uri} has no complete line: its only line does not end with a newline",
            hint="End the line with a newline, or load it as it is: --last-line load",
            file=source.uri,
        )
    if not len(schema):
        raise Invalid(
            f"{source.uri} is empty, so its columns are not known",
            hint='Create the table first: strandline table create NAME --schema "id:int64,…" --key id',
            file=source.uri,
        )
    for at, field in enumerate(schema):
        if field.name in key and field.type not in KEY_TYPES and source.kind == "csv":
            schema = schema.set(at, field.with_type(pa.string()))
    return _canonical_schema(options.override(schema, source.uri), source)


def _infer_json(source: Source, options: TextOptions, is_tolerant: bool) -> pa.Schema:
    fields: list[pa.Field] = []
    for name, values in _jsonl_columns(source, is_tolerant).items():
        if name in options.types.names:
            fields.append(options.types.field(name))
            continue
        found = Counter(map(_json_type, values))
        if is_tolerant and len(found) > 1 and found.keys() != {pa.int64(), pa.float64()}:
            found = Counter(dict(found.most_common(1)))
        fields.append(pa.field(name, _common_type(name, set(found), source)))
    return pa.schema(fields)


def _canonical_schema(schema: pa.Schema, source: Source) -> pa.Schema:
    try:
        return canonical_schema(relax_schema(schema))
    except Invalid as error:
        raise Invalid(
            f"{source.uri}: {error.message}",
            hint=f"{error.hint or ''}\nRename it in the file, or write the rows to a file with other names.".strip(),
            **{"file": source.uri, **error.fields},
        ) from error


def _common_type(name: str, found: set[pa.DataType], source: Source) -> pa.DataType:
    if not found:
        return pa.string()
    if found == {pa.int64(), pa.float64()}:
        return pa.float64()
    if len(found) > 1 and found <= {pa.string(), pa.date32(), _UTC, _LOCAL}:
        return pa.string()
    if len(found) > 1:
        kinds = " and ".join(sorted("objects" if kind == JSON else str(kind) for kind in found))
        raise Invalid(
            f"{source.uri}: column {name!r} holds {kinds}; a column has one type",
            hint="Create the table first, with a type that holds them all (json, for example):"
            ' strandline table create NAME --schema "…"',
            file=source.uri,
            column=name,
        )
    return found.pop()


def _json_type(value: Any) -> pa.DataType:
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64()
    if isinstance(value, float):
        return pa.float64()
    return _text_type(value) if isinstance(value, str) else JSON


def _text_type(text: str) -> pa.DataType:
    for pattern, kind in _TIMES:
        if pattern.match(text):
            try:
                pa.array([text]).cast(kind)
            except pa.ArrowInvalid:
                break
            return kind
    return pa.string()


def _jsonl_columns(source: Source, is_tolerant: bool) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for at, line in _first_records(source, JsonLines(pa.schema([]))):
        number = at + 1
        try:
            row = json.loads(line)
        except ValueError as error:
            if is_tolerant:
                continue
            raise Invalid(
                f"{source.uri}, line {number}: the line is not a JSON object: {error}",
                hint=LINES_HINT,
                file=source.uri,
                line=number,
            ) from error
        if not isinstance(row, dict):
            if is_tolerant:
                continue
            raise Invalid(
                f"{source.uri}, line {number}: expected an object", hint=LINES_HINT, file=source.uri, line=number
            )
        for name, value in row.items():
            kept = columns.setdefault(name, [])
            if value is not None:
                kept.append(value)
    return columns


def _first_records(source: Source, form: Format) -> list[tuple[int, bytes]]:
    """The first records of a file, a sample to know its columns; each with the number of newlines before it."""
    for block in Reading.whole(source).blocks(form.cut, block_bytes=_SAMPLE_BYTES):
        return form.records(block.data)[:_SAMPLE_ROWS]
    return []
