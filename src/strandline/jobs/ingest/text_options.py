"""How text files are to be read, as the caller said it. What is not said is found out from each file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import pyarrow as pa

from strandline.errors import Invalid
from strandline.model.schema_text import parse_schema, parse_type, type_text

_NO_TYPES = pa.schema([])


class TextArguments(TypedDict, total=False):
    """The options of `Lake.ingest` for text files.

    `types` are the types of some columns of a new table: `{"id": "int64"}`, `"id:int64, zip:string"` or a schema."""

    types: pa.Schema | Mapping[str, Any] | str | None
    delimiter: str | None


@dataclass(frozen=True)
class TextOptions:
    """What a caller said about text files. None, and an empty schema, mean: not said."""

    types: pa.Schema = _NO_TYPES
    delimiter: str | None = None

    @staticmethod
    def of(settings: TextArguments) -> TextOptions:
        """The checked options."""
        given: dict[str, Any] = dict(settings)
        unknown = given.keys() - TextArguments.__annotations__.keys()
        if unknown:
            raise Invalid(
                f"ingest has no option {min(unknown)!r}", hint=f"Options: {', '.join(TextArguments.__annotations__)}"
            )
        _check_sign("delimiter", given.get("delimiter"))
        given["types"] = parse_types(settings.get("types"))
        return TextOptions(**given)

    def override(self, schema: pa.Schema, file: str) -> pa.Schema:
        """`schema` with the types that were said; `Invalid` when it has no such column."""
        for field in self.types:
            at = schema.get_field_index(field.name)
            if at < 0:
                raise Invalid(
                    f"types names the column {field.name!r}, which {file} does not have",
                    hint=f"Columns: {', '.join(schema.names)}",
                    file=file,
                    column=field.name,
                )
            schema = schema.set(at, field)
        return schema

    def check_types(self, schema: pa.Schema, table: str) -> None:
        """`Invalid` when a table that exists has other types than were said."""
        for field in self.types:
            at = schema.get_field_index(field.name)
            if at >= 0 and schema.field(at).type != field.type:
                found = type_text(schema.field(at).type)
                raise Invalid(
                    f"column {field.name!r} of table {table!r} is {found}; types says {type_text(field.type)}",
                    hint="The types are for a new table. Leave them out to load into the table as it is.",
                    table=table,
                    column=field.name,
                )


def parse_types(given: pa.Schema | Mapping[str, Any] | str | None) -> pa.Schema:
    """The types of columns, given as a schema, as a mapping of names to types or their texts, or as one text."""
    if given is None:
        return pa.schema([])
    if isinstance(given, pa.Schema):
        return given
    if isinstance(given, str):
        found = parse_schema(given)
    elif isinstance(given, Mapping):
        kinds = {str(name): kind for name, kind in given.items()}
        for name, kind in kinds.items():
            if not isinstance(kind, str | pa.DataType):
                raise Invalid(f"the type of column {name!r} is {kind!r}; expected a text such as 'int64'", column=name)
        found = pa.schema([(n, parse_type(kind, n) if isinstance(kind, str) else kind) for n, kind in kinds.items()])
    else:
        raise Invalid(f"types is a {type(given).__name__}; expected a text such as 'id:int64, zip:string'")
    for name in found.names:
        if found.names.count(name) > 1:
            raise Invalid(f"types names the column {name!r} twice", column=name)
    return found


def _check_sign(name: str, sign: Any) -> None:
    if sign is None:
        return
    if not isinstance(sign, str) or len(sign) != 1 or sign in "\r\n\0" or not sign.isascii():
        raise Invalid(f"{name} is {sign!r}; expected one character")
