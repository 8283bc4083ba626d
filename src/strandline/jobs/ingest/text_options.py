"""How text files are to be read, as the caller said it. What is not said is found out from each file."""

from __future__ import annotations

import codecs
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, get_args

import pyarrow as pa

from strandline.errors import Invalid
from strandline.jobs.column_names import find_columns
from strandline.model.name_map import NameMap
from strandline.model.names import join_names
from strandline.model.schema_text import parse_schema, parse_type, type_text

ShortRows = Literal["reject", "fill"]
LastLine = Literal["auto", "load", "wait"]

_NO_TYPES = pa.schema([])


class TextArguments(TypedDict, total=False):
    """The options of `Lake.ingest` for text files.

    `types` are the types of some columns of a new table: `{"id": "int64"}`, `"id:int64, zip:string"` or a schema.
    `null` are texts that mean no value. `short_rows` fills rows with too few fields with nulls, or refuses them.
    `last_line` loads a last line without a newline, lets it wait, or decides by whether the file is still growing."""

    types: pa.Schema | Mapping[str, Any] | str | None
    delimiter: str | None
    quote: str | None
    escape: str | None
    header: bool | None
    encoding: str | None
    comment: str | None
    skip_lines: int | None
    null: Sequence[str]
    short_rows: ShortRows
    last_line: LastLine


@dataclass(frozen=True)
class TextOptions:
    """What a caller said about text files. None, and an empty schema, mean: not said. An empty quote: no quotes."""

    types: pa.Schema = _NO_TYPES
    delimiter: str | None = None
    quote: str | None = None
    escape: str | None = None
    header: bool | None = None
    encoding: str | None = None
    comment: str | None = None
    skip_lines: int | None = None
    null: tuple[str, ...] = ()
    short_rows: ShortRows = "reject"
    last_line: LastLine = "auto"

    @staticmethod
    def of(settings: TextArguments) -> TextOptions:
        """The checked options."""
        given: dict[str, Any] = dict(settings)
        unknown = given.keys() - TextArguments.__annotations__.keys()
        if unknown:
            known = ", ".join(TextArguments.__annotations__)
            raise Invalid(
                f"ingest has no option {min(unknown)!r}",
                hint=f"See all: help(lake.ingest). Options for text files: {known}",
            )
        for name in ("delimiter", "quote", "escape", "comment"):
            if given.get(name) == r"\t":
                given[name] = "\t"
            _check_sign(name, given.get(name), is_optional=name != "delimiter")
        _check_apart({name: given.get(name) for name in ("delimiter", "quote", "comment")})
        if given.get("encoding") is not None:
            given["encoding"] = _check_encoding(str(given["encoding"]))
        for name, words in (("short_rows", get_args(ShortRows)), ("last_line", get_args(LastLine))):
            if given.get(name, words[0]) not in words:
                raise Invalid(f"{name} is {given[name]!r}; expected one of: {', '.join(words)}")
        skip = given.get("skip_lines")
        if skip is not None and (not isinstance(skip, int) or isinstance(skip, bool) or skip < 0):
            raise Invalid(f"skip_lines is {skip!r}; expected a number of lines")
        null = given.get("null", ())
        texts = (null,) if isinstance(null, str) or not isinstance(null, Sequence) else tuple(null)
        if not all(isinstance(text, str) for text in texts):
            raise Invalid(f"null is {null!r}; expected a text, or a list of texts")
        given["null"] = texts
        given["types"] = parse_types(settings.get("types"))
        return TextOptions(**given)

    def for_columns(self, columns: Sequence[str], names: NameMap) -> TextOptions:
        """The same with the names of columns where a name in the file was said."""
        found = find_columns(self.types.names, columns, names)
        return replace(self, types=pa.schema([f.with_name(n) for f, n in zip(self.types, found, strict=True)]))

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


def types_option(column: str, kind: str) -> str:
    """The option of `ingest` that gives a column a type, as it is typed."""
    return f"--types {shlex.quote(f'{join_names([column])}:{kind}')}"


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


def _check_sign(name: str, sign: Any, *, is_optional: bool) -> None:
    if sign is None or (sign == "" and is_optional):
        return
    if not isinstance(sign, str) or len(sign) != 1 or sign in "\r\n\0" or not sign.isascii():
        raise Invalid(f"{name} is {sign!r}; expected one character", hint=r"A tab is written \t")


def _check_apart(signs: Mapping[str, Any]) -> None:
    said = [(name, sign) for name, sign in signs.items() if sign]
    for at, (name, sign) in enumerate(said):
        for other, same in said[at + 1 :]:
            if same == sign:
                raise Invalid(f"{name} and {other} are both {sign!r}")


def _check_encoding(name: str) -> str:
    try:
        found = codecs.lookup(name)
    except LookupError as error:
        raise Invalid(
            f"encoding is {name!r}, which is not known", hint="Such as: utf-8, utf-16, latin-1, windows-1252, shift-jis"
        ) from error
    if not getattr(found, "_is_text_encoding", True):
        raise Invalid(f"encoding is {name!r}, which is not an encoding of text")
    return found.name
