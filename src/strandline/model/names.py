"""Names of columns and of struct fields: reserved names, and names that an engine takes for the same.

Spark and DuckDB ignore case, each by its own rules. Two names that one of them takes for the same are refused
together, as columns and inside a struct.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from strandline.errors import Invalid

# The hidden columns of logs, baselines, exports and requests (`model/change`, `sinks/forward`).
_HIDDEN = {"_op", "_hash", "_seq", "_row", "_vnode", "_index"}
OWN = "_sl_"
"""The start of names that Strandline gives to columns of its own inside of queries."""
# DuckDB's own name for a file's place in a scan. A column of that name would hide it and give rows wrong seqs.
_TAKEN = {"file_index"}
# Characters that Delta or Spark refuses in column names or reads as a path, and SQL's quotes.
_FORBIDDEN = set(' .,;{}()=`"')


def caseless_name(name: str) -> str:
    """One form for all names that some engine takes for the same, by Java's `equalsIgnoreCase` (ſ is s, İ and ı are i,
    the Kelvin sign is k), by lower or upper case, or by Unicode's case folding (ß is ss)."""
    return name.upper().casefold().replace("i\u0307", "i")


def is_reserved(name: str) -> bool:
    """Whether a name belongs to a hidden column, for an engine that ignores case."""
    plain = caseless_name(name)
    return plain in _HIDDEN or plain in _TAKEN or plain.startswith(OWN)


@contextmanager
def require_utf8_names() -> Iterator[None]:
    """`Invalid` when the block meets a name that is not UTF-8: Arrow takes names from files as bytes."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise Invalid(f"the name {error.object!r:.80} of a column or field is not UTF-8 text") from error


def check_columns(names: Iterable[str]) -> None:
    """`Invalid` for a column name that is not allowed, and for two that are the same to an engine."""
    names = list(names)
    for name in names:
        is_plain = name.isprintable() and not _FORBIDDEN & set(name)
        if is_reserved(name):
            raise Invalid(
                f"column name {name!r} is reserved for a hidden column",
                hint=f"Reserved are: {', '.join(sorted(_HIDDEN | _TAKEN))}, and names that start with {OWN}",
                column=name,
            )
        if not name or not is_plain:
            raise Invalid(
                f"column name {name!r} is not allowed",
                hint='A name is printable and has no space and none of: . , ; { } ( ) = ` "',
                column=name,
            )
    _check_distinct(names, "columns")


def check_fields(names: Iterable[str], column: str) -> None:
    """The same for the fields of a struct, whose names may hold any character but NUL."""
    names = list(names)
    for name in names:
        if not name or "\0" in name:
            why = "no name" if not name else f"the name {name!r}, which holds a NUL character"
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
