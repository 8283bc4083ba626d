"""Names of columns and of struct fields: reserved names, and names that an engine takes for the same.

Spark and DuckDB ignore case, each by its own rules. Two names that one of them takes for the same are refused
together, as columns and inside a struct.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from strandline.errors import Invalid

# The hidden columns of logs, baselines, exports and requests (`model/change`, `sinks/forward`).
_HIDDEN = {"_op", "_hash", "_seq", "_row", "_vnode", "_index"}
OWN = "_sl_"
"""The start of names that Strandline gives to columns of its own inside of queries."""

QUOTED = re.compile(r'"(?:[^"]|"")+"')
"""A name in double quotes, as in SQL; a double quote in it is doubled."""
_NAME = re.compile(rf'\s*(?P<quoted>{QUOTED.pattern}|"")\s*(?=,|\Z)|(?P<plain>[^,]*)')


def caseless_name(name: str) -> str:
    """One form for all names that some engine takes for the same, by Java's `equalsIgnoreCase` (ſ is s, İ and ı are i,
    the Kelvin sign is k), by lower or upper case, or by Unicode's case folding (ß is ss)."""
    return name.upper().casefold().replace("i\u0307", "i")


def is_reserved(name: str) -> bool:
    """Whether a name belongs to a hidden column, for an engine that ignores case."""
    plain = caseless_name(name)
    return plain in _HIDDEN or plain.startswith(OWN)


def is_text(name: str) -> bool:
    """Whether a name is one that every engine can hold."""
    return bool(name) and "\0" not in name and not any("\ud800" <= sign <= "\udfff" for sign in name)


def unquote(text: str) -> str:
    """The name in a text of `QUOTED`."""
    return text[1:-1].replace('""', '"')


def split_names(text: str) -> tuple[str, ...]:
    """The names in a text such as `a,b`. A name with a comma, or with space at its ends, is in double quotes; so is one
    without text."""
    found, at = [], 0
    while at < len(text):
        part = _NAME.match(text, at)
        assert part is not None
        if part["quoted"]:
            found.append(unquote(part["quoted"]))
        elif part["plain"].strip():
            found.append(part["plain"].strip())
        at = part.end() + 1
    return tuple(found)


def join_names(names: Iterable[str]) -> str:
    """The text from which `split_names` reads these names, each once."""
    return ",".join(map(_quote_name, dict.fromkeys(names)))


def _quote_name(name: str) -> str:
    is_plain = name and name == name.strip() and not any(sign in name for sign in ',:"')
    return name if is_plain else '"' + name.replace('"', '""') + '"'


def name_list(role: str, names: object) -> tuple[str, ...]:
    """The names of columns that a caller gave as a list; `Invalid` for anything else."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        hint = f"Write {role}=[{names!r}]." if isinstance(names, str) else None
        raise Invalid(f"{role} is {names!r}; expected a list of column names", hint=hint, column=str(names))
    return tuple(names)


def backticked(name: str) -> str:
    """A name in Spark's quotes."""
    return "`" + name.replace("`", "``") + "`"


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
        if not is_text(name):
            raise Invalid(
                f"column name {name!r} is not allowed",
                hint="A name is a text that is not empty, without NUL and without half a surrogate pair.",
                column=name,
            )
        if is_reserved(name):
            raise Invalid(
                f"column name {name!r} is reserved for a hidden column",
                hint=f"Reserved are: {', '.join(sorted(_HIDDEN))}, and names that start with {OWN}",
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
