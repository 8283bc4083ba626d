"""Functions of SQL whose result may be much larger than what they are given, each with a bound.

DuckDB's memory limit leaves out the values that a function makes. So user SQL gets macros in place of these functions:
a macro adds up what the rows that DuckDB works on at a time will become, and refuses them before they are made. What
only joins its arguments, such as `a || b`, is not weighed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import Invalid

_PREFIX = "bounded_"
_WEIGH = "bounded_weigh"
_WIDTH = "bounded_width"
_LIMIT = "$limit"
_TOO_LARGE = "values that are too large"
_SMALL_BYTES = 1024  # a value that is not weighed
_FEW = 64  # bytes that stand in for others: a text may grow by so much without being weighed
_MOST_ARGUMENTS = 32

# How much `repeat` repeats: for a list about what its text takes, times the widest of its elements' forms.
_UNIT = "strlen(s::VARCHAR) * CASE WHEN typeof(s) LIKE '%]' THEN 8e0 ELSE 1e0 END"
_MOMENT = "epoch(TRY_CAST(({})::VARCHAR AS TIMESTAMPTZ))"
_STEPS = (
    "CASE WHEN typeof(c) = 'INTERVAL'"
    f" THEN ({_MOMENT.format('b')} - {_MOMENT.format('a')}) / epoch(TRY_CAST((c)::VARCHAR AS INTERVAL))"
    " ELSE (TRY_CAST((b)::VARCHAR AS DOUBLE) - TRY_CAST((a)::VARCHAR AS DOUBLE)) / TRY_CAST((c)::VARCHAR AS DOUBLE) END"
)
# The widths that a format asks for; one that comes from an argument may be anything.
_WIDTHS = (
    r"CASE WHEN regexp_matches(s, '%[^a-zA-Z%]*\*|\{[^{}]*:[^{}]*\{') THEN 1e30"
    r" ELSE list_sum(list_transform(regexp_extract_all(s, '\d{3,}'), lambda x: TRY_CAST(x AS DOUBLE))) END"
)


def _bounded(size: str, value: str) -> str:
    """SQL for `value`, the argument that decides: it is there only if `size` is."""
    return f"CASE WHEN ({size}) <= {_SMALL_BYTES} THEN {value} WHEN {_WEIGH}({size}, {_LIMIT}) THEN {value} END"


def _series(name: str) -> list[str]:
    return [
        f"(b) AS {name}({_bounded('8e0 * b', 'b')})",
        f"(a, b) AS {name}(a, {_bounded('8e0 * (b::DOUBLE - a::DOUBLE)', 'b')})",
        f"(a, b, c) AS {name}(a, {_bounded(f'8e0 * {_STEPS}', 'b')}, c)",
    ]


def _padded(name: str) -> list[str]:
    return [f"(s, n, c) AS {name}(s, {_bounded('4e0 * n', 'n')}, c)"]


def _resized(name: str) -> list[str]:
    return [
        f"(l, n) AS {name}(l, {_bounded('8e0 * n', 'n')})",
        f"(l, n, v) AS {name}(l, {_bounded('(8e0 + strlen(v::VARCHAR)) * n', 'n')}, v)",
    ]


def _formatted(name: str) -> list[str]:
    rows = [[f"a{n}" for n in range(count)] for count in range(_MOST_ARGUMENTS)]
    return [f"({', '.join(['s', *row])}) AS {name}({', '.join([f'{_WIDTH}(s)', *row])})" for row in rows]


def _replaced(size: str) -> str:
    return _bounded(f"CASE WHEN strlen(c) <= {_FEW} THEN 0e0 ELSE {size} END", "c")


_MACROS = {
    "repeat": [f"(s, n) AS repeat(s, {_bounded(f'{_UNIT} * n', 'n')})"],
    "range": _series("range"),
    "generate_series": _series("generate_series"),
    "lpad": _padded("lpad"),
    "rpad": _padded("rpad"),
    "list_resize": _resized("list_resize"),
    "array_resize": _resized("array_resize"),
    "bitstring": [f"(s, n) AS bitstring(s, {_bounded('n::DOUBLE', 'n')})"],
    "printf": _formatted("printf"),
    "format": _formatted("format"),
    "replace": [
        "(a, b, c) AS replace(a, b, "
        + _replaced("strlen(c) * ((strlen(a) - strlen(replace(a, b, ''))) / strlen(b)::DOUBLE)")
        + ")"
    ],
    "regexp_replace": [
        f"(a, b, c) AS regexp_replace(a, b, {_replaced('strlen(c) * (strlen(a) + 1e0)')})",
        f"(a, b, c, d) AS regexp_replace(a, b, {_replaced('strlen(c) * (strlen(a) + 1e0)')}, d)",
    ],
}
BOUNDED = {name: _PREFIX + name for name in _MACROS}
"""The functions with a bound, and the names of the macros that user SQL calls in their place."""

COLLECTING = frozenset(
    {
        "array_agg", "group_concat", "histogram", "histogram_exact", "json_group_array", "json_group_object", "list",
        "listagg", "string_agg", "variant_group_array", "variant_group_object",
    }
)  # fmt: skip
"""Aggregates whose one value grows with the rows. DuckDB counts their memory itself."""

_QUOTED = {"range", "replace"}
_NAMES = re.compile(rf"\b{_PREFIX}({'|'.join(_MACROS)})\b")


def install(connection: Any) -> None:
    """Make the function that weighs the rows which DuckDB works on at a time."""

    def weigh(sizes: pa.ChunkedArray, limits: pa.ChunkedArray) -> pa.ChunkedArray:
        limit = limits[0].as_py() if len(limits) else 0.0
        if (pc.sum(pc.max_element_wise(sizes, 0.0)).as_py() or 0.0) > limit:
            raise ValueError(f"{_TOO_LARGE}: more than {int(limit):,} bytes at a time")
        return pa.chunked_array([pa.repeat(True, len(sizes))])

    # With side effects: DuckDB does not make the value while it plans, where it would take many times as much.
    kinds = ["DOUBLE", "DOUBLE"]
    connection.create_function(
        _WEIGH, weigh, kinds, "BOOLEAN", type="arrow", null_handling="special", side_effects=True
    )


def macros(names: Iterable[str], most_bytes: int) -> list[str]:
    """Statements that make the macros for these functions, each of which may make `most_bytes` at a time."""
    made = {BOUNDED[name]: _MACROS[name] for name in sorted(names)}
    if not made.keys().isdisjoint((BOUNDED["printf"], BOUNDED["format"])):
        made = {_WIDTH: [f"(s) AS {_bounded(_WIDTHS, 's')}"], **made}
    return [
        f"CREATE TEMP MACRO {name}{', '.join(forms)}".replace(_LIMIT, str(most_bytes)) for name, forms in made.items()
    ]


def weighed(sql: str, kinds: Iterable[Any], most_bytes: int) -> str:
    """The query with its columns named c0, c1 and so on; it is refused before rows that share a value get one each."""
    columns = {f"c{at}": _size(kind, f"c{at}") for at, kind in enumerate(kinds)}
    shown = [
        name if size is None else f"CASE WHEN {_WEIGH}({size}, {most_bytes}) THEN {name} END AS {name}"
        for name, size in columns.items()
    ]
    return f"SELECT {', '.join(shown)} FROM ({sql}) AS q({', '.join(columns)})"


def _size(kind: Any, value: str, depth: int = 0) -> str | None:
    """SQL for the bytes of a value; None for a type whose values all have one size."""
    if kind.id == "varchar":
        return f"strlen({value})"
    if kind.id == "blob":
        return f"octet_length({value})"
    if kind.id in ("list", "array"):
        inner = _size(kind.children[0][1], f"x{depth}", depth + 1)
        return f"8 * len({value})" if inner is None else f"list_sum(list_transform({value}, lambda x{depth}: {inner}))"
    if kind.id == "map":
        parts = [f"{part}({value})" for part in ("map_keys", "map_values")]
        inside = [
            _size(duckdb.list_type(part), name, depth) for (_, part), name in zip(kind.children, parts, strict=True)
        ]
    elif kind.id == "struct":
        inside = [
            _size(part, f"struct_extract_at({value}, {at})", depth) for at, (_, part) in enumerate(kind.children, 1)
        ]
    else:
        return None
    sizes = [f"coalesce({size}, 0)" for size in inside if size is not None]
    return " + ".join(sizes) or None


def refusal(said: str) -> Invalid | None:
    """The error that DuckDB makes of a refusal, as one of ours."""
    at = said.find(_TOO_LARGE)
    if at < 0:
        return None
    return Invalid(
        f"the query makes {said[at:].splitlines()[0]}",
        hint="Make smaller texts and lists, or open the lake with a larger cache_bytes.",
    )


def unmasked(text: str) -> str:
    """A text of DuckDB's with the names of the functions, in quotes where DuckDB writes them so."""
    return _NAMES.sub(lambda found: f'"{found[1]}"' if found[1] in _QUOTED else found[1], text)
