"""Keys as people type them: a value for a key of one column, a JSON object for a key of several columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from strandline.errors import Invalid
from strandline.jobs.ingest.bad_rows import UNFIT
from strandline.jobs.ingest.csv import Delimited
from strandline.jobs.ingest.dialect import Dialect
from strandline.jobs.ingest.json_rows import JsonRows
from strandline.jobs.ingest.json_stream import split_objects
from strandline.model.definition import TableDef
from strandline.model.types import type_text

_Found = tuple[pa.Table | None, tuple[str | None, str]]
"""One row, or the column and the reason why the text is none."""


def parse_keys(texts: Sequence[str], definition: TableDef) -> pa.Table:
    """The keys in the types of the key columns, each once. They are read as ingest reads fields."""
    columns = pa.schema([definition.schema.field(name) for name in definition.key])
    found = pa.concat_tables([_parse_key(text, columns) for text in texts])
    return found.group_by(columns.names, use_threads=False).aggregate([])


def _parse_key(text: str, columns: pa.Schema) -> pa.Table:
    is_single = len(columns) == 1
    try:
        record = (_quote_field(text) if is_single else " ".join(text.split("\n"))).encode() + b"\n"
    except UnicodeEncodeError as error:
        raise Invalid(f"key {text!r} is not UTF-8") from error
    table, (column, reason) = _read_single(record, columns) if is_single else _read_object(record, columns)
    if table is not None:
        return table
    hint = f"The key is {columns.names[0]}: {type_text(columns.field(0).type)}"
    if not is_single:
        shape = json.dumps(dict.fromkeys(columns.names, "…"), ensure_ascii=False)
        hint = f"A key of this table is a JSON object: '{shape}'"
        if column is None:
            reason = "it is not a JSON object"
        elif column not in columns.names:
            reason = f"the key has no column {column!r}"
        else:
            reason = f"column {column!r}: {reason}"
    raise Invalid(f"key {text!r}: {reason}", hint=hint, column=column, key=text)


def _read_single(record: bytes, columns: pa.Schema) -> _Found:
    form = Delimited(columns, columns.names, Dialect())
    try:
        table = form.convert(record)
        return (table, (None, "")) if table.num_rows == 1 else (None, (None, "it is empty"))
    except UNFIT:
        return None, form.explain(record)


def _read_object(record: bytes, columns: pa.Schema) -> _Found:
    rows, bad = JsonRows(columns).convert(partial(split_objects, record))
    if bad or rows.table.num_rows != 1:
        return None, (bad[0].column, bad[0].reason) if bad else (None, "it is empty")
    return rows.table, (None, "")


def _quote_field(text: str) -> str:
    quoted = text.replace('"', '""')
    return f'"{quoted}"'
