"""Names of columns and of fields inside them: which no engine may be given, and which an engine takes for one.

Spark and DuckDB do not tell upper case from lower, and differ in what they take for the case of a letter. Two names
that any of them takes for one are refused together, at the top and inside a struct.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from strandline.errors import Invalid

# DuckDB's own name for a file's place in a scan: a column of that name would hide it, and rows get wrong seqs.
_TAKEN = {"file_index"}
# What Delta and Spark refuse or read as a path in column names, and the quotes of SQL.
_FORBIDDEN = set(' .,;{}()=`"')


def caseless_name(name: str) -> str:
    """One form for all names that some engine takes for the same: by Java's `equalsIgnoreCase` (ſ is s, İ and ı are i,
    the Kelvin sign is k), by lower or upper case, or by Unicode's case folding (ß is ss)."""
    return name.upper().casefold().replace("i\u0307", "i")


@contextmanager
def require_utf8_names() -> Iterator[None]:
    """`Invalid` when a name that the block looks at is not text: Arrow keeps bytes, and files may hold any."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise Invalid(f"the name {error.object!r:.80} of a column or field is not UTF-8 text") from error


def check_columns(names: Iterable[str]) -> None:
    """The names of a table's columns."""
    names = list(names)
    for name in names:
        is_plain = name.isprintable() and not _FORBIDDEN & set(name)
        if not name or name.startswith("_") or caseless_name(name) in _TAKEN or not is_plain:
            raise Invalid(
                f"column name {name!r} is not allowed",
                hint="A name is printable, does not start with '_' and has no space and none of: . , ; { } ( ) = ` \"",
                column=name,
            )
    _check_distinct(names, "columns")


def check_fields(names: Iterable[str], column: str) -> None:
    """The names of the fields of a struct, which may hold any sign but NUL."""
    names = list(names)
    for name in names:
        if not name or "\0" in name:
            why = "no name" if not name else f"the name {name!r}, which holds a NUL sign"
            raise Invalid(f"column {column!r} has a field with {why}; no engine reads its values", column=column)
    _check_distinct(names, f"fields of column {column!r}", column)


def _check_distinct(names: Iterable[str], what: str, column: str | None = None) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.get(caseless_name(name))
        if other is not None:
            why = "are the same name" if other == name else "differ in case only: Spark or DuckDB takes them for one"
            raise Invalid(f"{what} {other!r} and {name!r} {why}", column=column or name)
        seen[caseless_name(name)] = name
