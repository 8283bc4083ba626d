"""The names of columns inside files. A file has each column under the name of its first file, its stored name; a rename
changes the definition of the table alone, so no file is written again.

The schema of a file has the table's own names. When the stored name of a column is another one, the metadata of its
field holds it: readers and writers of files cannot miss it, and a table without renames has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

_STORED = b"strandline.stored"


@dataclass(frozen=True)
class ColumnRename:
    """A column has another name, from the schema with this id on."""

    schema_id: int
    old: str
    new: str


def find_stored_names(renames: Iterable[ColumnRename]) -> dict[str, str]:
    """The stored name of each column that has another name now, dropped columns too."""
    found: dict[str, str] = {}
    for rename in renames:
        found[rename.new] = found.pop(rename.old, rename.old)
    return {name: stored for name, stored in found.items() if name != stored}


def find_former_names(renames: Iterable[ColumnRename]) -> dict[str, str]:
    """Each name that a column had before, with the column."""
    found: dict[str, str] = {}
    for rename in renames:
        found = {name: rename.new if column == rename.old else column for name, column in found.items()}
        found[rename.old] = rename.new
        found.pop(rename.new, None)
    return found


def rename_field(schema: pa.Schema, old: str, new: str) -> pa.Schema:
    """The schema with another name for a column, if it has that column."""
    return pa.schema([field.with_name(new) if field.name == old else field for field in schema])


def tag_fields(schema: pa.Schema, stored: Mapping[str, str]) -> pa.Schema:
    """The schema of a file, whose fields know their stored names."""
    if not stored:
        return schema
    tagged = (
        field.with_metadata({_STORED: stored[field.name].encode()}) if field.name in stored else field
        for field in schema
    )
    return pa.schema(list(tagged))


def stored_name(field: pa.Field) -> str:
    """The name of a column inside files."""
    name = (field.metadata or {}).get(_STORED)
    return str(field.name) if name is None else str(name.decode())


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """A file's schema with the names that the file has."""
    if all(stored_name(field) == field.name for field in schema):
        return schema
    return pa.schema([field.with_name(stored_name(field)).remove_metadata() for field in schema])


def name_stats(stats: Mapping[str, Any], stored: Mapping[str, str]) -> Mapping[str, Any]:
    """The statistics of a file under the table's own names."""
    if not stored:
        return stats
    names = {inside: name for name, inside in stored.items()}
    return {
        what: {names.get(inside, inside): value for inside, value in found.items()}
        if isinstance(found, Mapping)
        else found
        for what, found in stats.items()
    }
