"""Schemas as text: `id:int64, name:string!, at:timestamp, price:decimal(10,2), tags:list<string>`."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from strandline.errors import Invalid
from strandline.model.names import QUOTED, unquote
from strandline.model.types import TYPES
from strandline.model.types import type_text as type_text


def require_schema(schema: object) -> pa.Schema:
    """A caller's schema, which may be a text."""
    if isinstance(schema, str):
        return parse_schema(schema)
    if not isinstance(schema, pa.Schema):
        raise Invalid(
            f"schema is a {type(schema).__name__}; expected a pyarrow.Schema or a text such as 'id:int64, name:string'"
        )
    return schema


def parse_schema(text: str) -> pa.Schema:
    """The schema of a text; '!' after a type means that values are required. A name with signs that the text needs is
    in double quotes: `"Order, Date":date`."""
    fields = []
    for at, part in enumerate(_split_columns(text)):
        start = QUOTED.match(part.strip())
        rest = part.strip()[start.end() if start else 0 :]
        name, colon, kind = (piece.strip() for piece in rest.partition(":"))
        name = unquote(start.group()) if start and not name else name
        if not colon or not name or not kind:
            raise Invalid(f"column {at + 1} of the schema is {part!r}; expected name:type", column=name or None)
        fields.append(pa.field(name, parse_type(kind.rstrip("!"), name), nullable=not kind.endswith("!")))
    return pa.schema(fields)


def parse_type(text: str, column: str) -> pa.DataType:
    text = text.strip()
    if text in TYPES:
        return TYPES[text]
    number = re.fullmatch(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)", text)
    if number:
        try:
            return pa.decimal128(int(number.group(1)), int(number.group(2)))
        except ValueError as error:
            raise Invalid(f"column {column!r}: {error}", column=column) from error
    if text.startswith("list<") and text.endswith(">"):
        return pa.list_(parse_type(text[5:-1], column))
    raise Invalid(
        f"column {column!r} has the unknown type {text!r}",
        hint=f"Types: {', '.join(TYPES)}, decimal(10,2), list<…>",
        column=column,
    )


def columns_of(schema: pa.Schema) -> list[dict[str, Any]]:
    """The columns of a schema, each with its type as text."""
    return [{"name": field.name, "type": type_text(field.type), "nullable": field.nullable} for field in schema]


def _split_columns(text: str) -> list[str]:
    """The parts between the commas outside of brackets and of names in quotes."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        sign = text[at]
        name = QUOTED.match(text, at) if not text[start:at].strip() else None
        depth += (sign in "(<") - (sign in ")>")
        if sign == "," and not depth:
            parts.append(text[start:at])
            start = at + 1
        at = name.end() if name else at + 1
    return [part for part in [*parts, text[start:]] if part.strip()]
