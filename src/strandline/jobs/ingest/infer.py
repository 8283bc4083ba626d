"""The schema of a table that is created from its first file.

A type is given only when every sampled value has it; columns of objects or lists become JSON, columns without any
value become text. When bad rows are to be kept aside, the type of most values counts.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from strandline.errors import Invalid
from strandline.jobs.ingest.blocks import Reading
from strandline.jobs.ingest.csv import Records
from strandline.jobs.ingest.jsonl import LINES_HINT
from strandline.jobs.ingest.parquet import open_parquet
from strandline.jobs.ingest.source import Source
from strandline.jobs.ingest.text import delimiter_of, header_of
from strandline.model.types import JSON, canonical_schema, relaxed

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
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})\Z")
_DECIMAL = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?\Z")


def infer(source: Source, delimiter: str | None, *, is_tolerant: bool = False) -> pa.Schema:
    """The schema of `source`, from its own or from its first rows; `is_tolerant` passes over those that are bad."""
    if source.kind == "parquet":
        with open_parquet(source) as file:
            return _canonical(file.schema_arrow, source)
    columns: dict[str, list[Any]]
    type_of: Callable[[Any], pa.DataType]
    if source.kind == "csv":
        columns, type_of = _csv_columns(source, delimiter), _csv_type
    else:
        columns, type_of = _jsonl_columns(source, is_tolerant), _json_type
    fields = []
    for name, values in columns.items():
        found = Counter(map(type_of, values))
        if is_tolerant and len(found) > 1 and type_of is _json_type and found.keys() != {pa.int64(), pa.float64()}:
            found = Counter(dict(found.most_common(1)))
        fields.append((name, _common(name, set(found), type_of is _csv_type, source)))
    schema = pa.schema(fields)
    if not len(schema) and source.unfinished_bytes:
        raise Invalid(
            f"{source.uri} holds no finished line: its only line does not end with a newline",
            hint="A table without a key takes finished lines only, lest half of one is loaded. End the line.",
            file=source.uri,
        )
    if not len(schema):
        raise Invalid(
            f"{source.uri} is empty: no columns can be seen in it",
            hint='Create the table first: strandline table create NAME --schema "id:int64,…" --key id',
            file=source.uri,
        )
    return _canonical(schema, source)


def _canonical(schema: pa.Schema, source: Source) -> pa.Schema:
    try:
        return canonical_schema(relaxed(schema))
    except Invalid as error:
        raise Invalid(
            f"{source.uri}: {error.message}",
            hint=f"{error.hint or ''}\nRename it in the file, or write the rows to one with other names.".strip(),
            **{"file": source.uri, **error.fields},
        ) from error


def _common(name: str, found: set[pa.DataType], is_csv: bool, source: Source) -> pa.DataType:
    if not found:
        return pa.string()
    if found == {pa.int64(), pa.float64()}:
        return pa.float64()
    if len(found) > 1 and is_csv:
        return pa.string()
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


def _csv_type(text: str) -> pa.DataType:
    if _INTEGER.match(text):
        return pa.int64()
    if _DECIMAL.match(text):
        return pa.float64()
    if text in ("true", "false", "True", "False", "TRUE", "FALSE"):
        return pa.bool_()
    return _text_type(text)


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
    for number, line in enumerate(_lines(source, lambda data: data.rfind(b"\n") + 1, _split), 1):
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


def _split(data: bytes) -> list[bytes]:
    return [line for line in data.split(b"\n") if line.strip()]


def _csv_columns(source: Source, delimiter: str | None) -> dict[str, list[Any]]:
    sign = delimiter_of(source, delimiter)
    header = header_of(source, sign)
    if header is None:
        return {}
    records = Records(sign)

    def split(data: bytes) -> list[bytes]:
        ends = [0, *records.ends(data)]
        return [data[start:end] for start, end in pairwise(ends) if data[start:end].strip()]

    columns: dict[str, list[Any]] = {name: [] for name in header.names}
    for record in _skip_first(_lines(source, records.cut, split)):
        for name, text in zip(header.names, records.fields(record), strict=False):
            if text:
                columns[name].append(text)
    return columns


def _skip_first(records: Iterable[bytes]) -> Iterator[bytes]:
    rest = iter(records)
    next(rest, None)
    return rest


def _lines(source: Source, cut: Callable[[bytes], int], split: Callable[[bytes], Sequence[bytes]]) -> Iterator[bytes]:
    """The first records of a file, enough to know its columns."""
    for block in Reading.whole(source).blocks(cut, block_bytes=_SAMPLE_BYTES):
        yield from split(block.data)[:_SAMPLE_ROWS]
        return
