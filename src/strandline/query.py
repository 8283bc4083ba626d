"""SQL over the lake's tables, safe to take from strangers.

A statement is one SELECT. It is read as DuckDB's own syntax tree: the tables it names must be the lake's, table
functions that reach outside are refused, and statements that write have no place, also not inside WITH. It then
runs in a read-only transaction of a DuckDB that can open nothing outside the lake (see `duck`).
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from strandline.dialect import quoted
from strandline.duck import Duck
from strandline.errors import Invalid, NotFound
from strandline.merge import duck_sql

if TYPE_CHECKING:
    from strandline.lake import Lake

# Small enough that even rows of 200 KB stay within Arrow's string offsets.
_BATCH_ROWS = 8192
_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_FUNCTIONS = {"range", "generate_series", "unnest", "json_each", "json_tree", "repeat", "repeat_row"}


def run(lake: Lake, statement: str) -> pa.Table:
    """The result of `statement` over the lake, with one seq per table, fixed before it runs."""
    names = tables_of(lake.duck, statement)
    known = {name.lower(): name for name in lake.tables()}
    for name in names:
        if name.lower() not in known:
            raise NotFound(
                f"no table {name!r} in this lake",
                hint=f"Tables: {', '.join(sorted(known.values())) or 'none'}",
                table=name,
            )
    with lake.duck.transaction(read_only=True) as cursor:
        with ExitStack() as locks:
            tables = [lake.table(name) for name in sorted({known[name.lower()] for name in names})]
            for table in tables:
                locks.enter_context(table.lock)
            merges = [table.merge() for table in tables]
            folds = [table.fold_name(merge) for table, merge in zip(tables, merges, strict=True)]
            # The transaction sees the folds as they are at its first look; later refreshes do not disturb it.
            for fold in filter(None, folds):
                cursor.execute(f"SELECT 1 FROM {fold} LIMIT 0").fetchall()
        views = {
            table.name: duck_sql(merge, fold, merge.definition.schema.names)
            for table, merge, fold in zip(tables, merges, folds, strict=True)
        }
        for name, sql in views.items():
            cursor.execute(f"CREATE TEMP VIEW {quoted(name)} AS {sql}").fetchall()
        return cursor.sql(statement).to_arrow_table(_BATCH_ROWS)


def tables_of(duck: Duck, statement: str) -> set[str]:
    """The tables that a statement reads; `Invalid` when it is not one plain SELECT."""
    if not isinstance(statement, str) or not statement.strip():
        raise Invalid("the query is empty")
    try:
        count = len(duckdb.extract_statements(statement))
    except duckdb.Error as error:
        raise Invalid(f"the query is not SQL: {str(error).splitlines()[0]}") from error
    if count != 1:
        raise Invalid(f"the query holds {count} statements; expected one SELECT")
    with duck.transaction() as cursor:
        tree = json.loads(cursor.execute("SELECT json_serialize_sql(?)", [statement]).fetchall()[0][0])
    if tree.get("error"):
        raise Invalid("the query must be one SELECT", hint="Rows are written with upsert, delete, append or ingest.")
    found: set[str] = set()
    _visit(tree, frozenset(), found)
    return found


def _visit(node: Any, ctes: frozenset[str], found: set[str]) -> None:
    """Check a node and those below it, and collect the tables they read. `ctes` are the names that WITH has given
    where the node stands."""
    if isinstance(node, list):
        for item in node:
            _visit(item, ctes, found)
    if not isinstance(node, dict):
        return
    kind = str(node.get("type", ""))
    if kind.endswith("_NODE") and "modifiers" in node and kind not in _NODES:
        raise Invalid("the query must only read; it holds a statement that writes")
    if isinstance(node.get("cte_map"), dict):
        ctes |= {entry["key"].lower() for entry in node["cte_map"].get("map", ())}
    if kind in ("CTE_NODE", "RECURSIVE_CTE_NODE") and node.get("cte_name"):
        ctes |= {str(node["cte_name"]).lower()}
    if kind == "BASE_TABLE":
        if node.get("schema_name") or node.get("catalog_name"):
            raise Invalid(f"{node['schema_name']}.{node['table_name']}: name tables without a schema")
        if node["table_name"].lower() not in ctes:
            found.add(node["table_name"])
    if kind == "TABLE_FUNCTION":
        function = node.get("function", {}).get("function_name", "")
        if function.lower() not in _FUNCTIONS:
            raise Invalid(
                f"the table function {function!r} is not allowed", hint=f"Allowed: {', '.join(sorted(_FUNCTIONS))}"
            )
    if kind == "SHOW_REF" and node.get("table_name"):
        found.add(str(node["table_name"]).strip('"'))
    for value in node.values():
        _visit(value, ctes, found)
