"""What a query may ask about the tables themselves: their names and columns, from the lake's own catalog.

DuckDB's own catalog is never asked: it would show the inner names of a query, and the folds of other reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strandline.engines.scan import duck_type, literal, quoted
from strandline.tables.broken import BrokenTable, try_table
from strandline.tables.collection import Tables

NAMES = "names"
TABLES = "tables"
COLUMNS = "columns"
SCHEMA = "information_schema"

_LAKE, _MAIN = "lake", "main"
_HEADS = {
    NAMES: ("name",),
    TABLES: ("table_catalog", "table_schema", "table_name", "table_type"),
    COLUMNS: (
        "table_catalog", "table_schema", "table_name", "column_name", "ordinal_position", "is_nullable", "data_type",
    ),
}  # fmt: skip


def listing_sql(lake: Tables, what: str) -> str:
    """SQL for a list: the names of tables (`SHOW TABLES`), or `tables` and `columns` of the information schema."""
    names = lake.tables()
    if what == NAMES:
        return _values_sql(what, ((name,) for name in names))
    if what == TABLES:
        return _values_sql(what, ((_LAKE, _MAIN, name, "BASE TABLE") for name in names))
    return _values_sql(what, (row for name in names for row in _list_columns(lake, name)))


def _list_columns(lake: Tables, name: str) -> Sequence[tuple[str | int, ...]]:
    """The columns of a table; none of a broken one."""
    schema = try_table(name, lambda: lake.table(name).schema)
    if isinstance(schema, BrokenTable):
        return ()
    return [
        (_LAKE, _MAIN, name, field.name, at + 1, "YES" if field.nullable else "NO", duck_type(field.type))
        for at, field in enumerate(schema)
    ]


def _values_sql(what: str, rows: Iterable[Sequence[str | int]]) -> str:
    head = _HEADS[what]
    texts = [f"({', '.join(literal(cell) if isinstance(cell, str) else str(cell) for cell in row)})" for row in rows]
    # Without rows there is nothing to tell the types by.
    empty = ", ".join(str(1) if name == "ordinal_position" else "''" for name in head)
    condition = "" if texts else " WHERE false"
    return f"SELECT * FROM (VALUES {', '.join(texts) or f'({empty})'}) AS t({', '.join(map(quoted, head))}){condition}"
