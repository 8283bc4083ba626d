"""Folders that hold a column's value in their name, as Hive writes them: `year=2024/city=S%C3%A3o%20Paulo/a.parquet`.

All folders of a path count as the caller wrote it, and all below it. A type is inferred only when every value of it is
written as that type is written: `month=01` stays text.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from datetime import date
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import Invalid
from strandline.model.names import join_names

_NULL = "__HIVE_DEFAULT_PARTITION__"

Partitions = Mapping[str, str | None]
"""The text of each partition column of a file; None for a null."""


def partitions_of(path: str) -> dict[str, str | None]:
    """The columns that the folders of a file's path hold."""
    pairs = (part.partition("=") for part in path.split("/")[:-1])
    return {
        unquote(name): None if text == _NULL else unquote(text)
        for name, sign, text in pairs
        if name and sign and not any(c in name for c in "?&:")
    }


def partition_fields(files: Iterable[Partitions]) -> list[pa.Field]:
    """The partition columns of some files, each with the narrowest type that writes every value as it is written."""
    texts: dict[str, set[str]] = {}
    for values in files:
        for name, text in values.items():
            texts.setdefault(name, set()).update(() if text is None else (text,))
    return [pa.field(name, _infer_type(found)) for name, found in texts.items()]


def _infer_type(texts: Iterable[str]) -> pa.DataType:
    texts = list(texts)
    if texts and all(map(_is_int64, texts)):
        return pa.int64()
    return pa.date32() if texts and all(map(_is_date, texts)) else pa.string()


def _is_int64(text: str) -> bool:
    digits = text.removeprefix("-")
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= 19
    return is_number and str(int(text)) == text and -(1 << 63) <= int(text) < 1 << 63


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def add_partitions(table: pa.Table, partitions: Partitions, schema: pa.Schema, where: str) -> pa.Table:
    """`table` with the partition columns that it lacks. `Invalid` when a column of the same name inside of the file has
    another value, and when a value does not fit the type of its column in `schema`."""
    for name, text in partitions.items():
        at = table.schema.get_field_index(name)
        if at >= 0:
            check_partition(table.column(at), name, text, where)
        elif name in schema.names:
            value = _cast_text(text, name, schema.field(name).type, where)
            table = table.append_column(name, pa.chunked_array([pa.repeat(value, table.num_rows)]))
    return table


def check_partition(column: pa.ChunkedArray, name: str, text: str | None, where: str) -> None:
    """`Invalid` when a column inside of a file has another value than the folder of the file."""
    values = pc.unique(column)
    try:
        wanted = pa.scalar(text, pa.string()).cast(values.type)
        is_same = not len(values) or (len(values) == 1 and values[0].equals(wanted))
    except (pa.ArrowException, ValueError):
        is_same = False
    if not is_same:
        raise Invalid(
            f"{where}: its folder says {name}={text}, but the file has its own column {name!r} with another value",
            hint=f"Leave both out: add --skip {shlex.quote(join_names([name]))}. Or rename the folder.",
            file=where,
            column=name,
        )


def _cast_text(text: str | None, name: str, kind: pa.DataType, where: str) -> pa.Scalar:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    try:
        return pa.scalar(text, pa.string()).cast(kind)
    except pa.ArrowException as error:
        raise Invalid(
            f"{where}: its folder says {name}={text}, which does not fit the column's type {kind}",
            hint=f"Leave the column out: add --skip {shlex.quote(join_names([name]))}.",
            file=where,
            column=name,
        ) from error
