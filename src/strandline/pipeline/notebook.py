"""Tables and lakes as people see them at a prompt and in a notebook: text and HTML of bounded size."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from functools import partial

import pyarrow as pa
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from strandline.consumers.context import Context
from strandline.errors import StrandlineError
from strandline.model.schema_text import columns_of
from strandline.pipeline.status import TableStatus, table_status
from strandline.tables.broken import try_table
from strandline.tables.store import TableStore

ROWS = 10
TABLES = 50
CHARACTERS = 60


def front_names(thing: object, inner: type, shared: Sequence[str]) -> list[str]:
    """The names that a user calls, for `dir`: those of the classes in front of `inner`, and the `shared` ones of it."""
    fronts = [kind for kind in type(thing).__mro__ if issubclass(kind, inner) and kind is not inner]
    own = [name for kind in fronts for name, value in vars(kind).items() if not isinstance(value, type)]
    return sorted({*shared, *(name for name in own if not name.startswith("_"))})


def print_rows(rows: pa.Table) -> None:
    """Print rows as a table."""
    grid = Grid(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in rows.column_names:
        grid.add_column(Text(name), overflow="ellipsis")
    for row in _read_cells(rows):
        grid.add_row(*map(Text, row))
    Console(highlight=False, markup=False, emoji=False).print(grid)


def table_html(table: TableStore) -> str:
    """A table: its columns, its size and its first rows."""
    status = table_status(table)
    key = ", ".join(table.definition.key) or "none: append-only"
    facts = f"{_describe_rows(status)}, seq {status.head:,}, key {key}"
    columns = [(c["name"], c["type"], "" if c["nullable"] else "required") for c in columns_of(table.schema)]
    parts = [_titled("Table", table.name, facts), _grid(("column", "type", ""), columns)]
    try:
        rows = table.to_arrow(limit=ROWS)
        if rows.num_rows:
            parts.append(_grid(rows.column_names, _read_cells(rows)))
    except StrandlineError as error:
        parts.append(f"<p>{html.escape(str(error))}</p>")
    return "".join(parts)


def lake_html(lake: Context) -> str:
    """A lake: its tables and their size."""
    names = lake.tables()
    found = [try_table(name, partial(_find_status, lake, name)) for name in names[:TABLES]]
    rows = [
        (each.name, _describe_rows(each), f"{each.head:,}", ", ".join(each.key))
        if isinstance(each, TableStatus)
        else (each.name, each.message, "", "")
        for each in found
    ]
    count = "1 table" if len(names) == 1 else f"{len(names):,} tables"
    more = f", the first {TABLES} shown" if len(names) > TABLES else ""
    return _titled("Lake", lake.storage.uri, count + more) + _grid(("table", "rows", "seq", "key"), rows)


def _find_status(lake: Context, name: str) -> TableStatus:
    return table_status(lake.table(name))


def _describe_rows(status: TableStatus) -> str:
    return f"{'' if status.is_exact else 'at most '}{status.rows:,} {'row' if status.rows == 1 else 'rows'}"


def _titled(what: str, name: str, facts: str) -> str:
    return f"<p>{what} <b>{html.escape(name)}</b>: {html.escape(facts)}</p>"


def _grid(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _read_cells(rows: pa.Table) -> list[list[str]]:
    """Every value as a short text."""
    columns = [[_format_cell(value) for value in column] for column in rows.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _format_cell(value: pa.Scalar) -> str:
    try:
        made = value.as_py()
    except (OverflowError, ValueError):
        # A moment outside of the years that Python knows.
        made = str(value)
    nested = isinstance(made, list | dict)
    text = "null" if made is None else json.dumps(made, ensure_ascii=False, default=str) if nested else str(made)
    text = text.replace("\n", "⏎")
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"
