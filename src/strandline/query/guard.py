"""Read a query from a stranger, and rewrite it so that it can name nothing but the lake's tables.

The query is measured (`sql_limits`) and then read as DuckDB's syntax tree. Names are resolved scope by scope: a table
is one of a WITH around it, or one of the lake. Every table of the lake and every name of a WITH gets a new name that
nobody can guess, where it is defined and where it is used. So no table name that the query holds ever reaches DuckDB,
which would look for a file, a catalog or a Python variable of that name: a name that is resolved wrongly finds
nothing. Functions are called from a list.

What runs is the text of the new tree. That text is read and checked once more: it names the new names alone.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from strandline.engines.duck import Duck
from strandline.errors import Internal, Invalid, NotFound
from strandline.model.sql_limits import check_sql_size, too_deep
from strandline.query.functions import SCALAR_FUNCTIONS, TABLE_FUNCTIONS, check_size

MOST_LEVELS = 700  # of the tree as JSON; Python reads 1,000
MOST_TABLES = 10_000  # that are read when each name of a WITH stands for its query
_MOST_SAID = 500  # characters of what DuckDB's parser says, which repeats the query

_QUERIES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE"}
_SOURCES = {"BASE_TABLE", "SUBQUERY", "JOIN", "EXPRESSION_LIST", "EMPTY", "PIVOT", "SHOW_REF"}
_EXPRESSIONS = {
    "BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "DEFAULT", "FUNCTION",
    "LAMBDA", "LAMBDA_REF", "OPERATOR", "POSITIONAL_REFERENCE", "STAR", "SUBQUERY", "TYPE", "WINDOW",
}  # fmt: skip
_CALLED = SCALAR_FUNCTIONS | TABLE_FUNCTIONS
_WRITE = "Rows are written with upsert, delete, append or ingest."
_SHOW = "Columns of one: SHOW table. Tables: strandline table list, or lake.tables() in Python."
_HINTS = {
    "EXPLAIN": "A plan is not shown: run the query itself.",
    "MULTI": "A PIVOT needs its values: PIVOT … ON column IN (…).",
    "PRAGMA": "Settings are not shown. The columns of a table: DESCRIBE table",
    "SET": "Settings are not changed by a query.",
    **dict.fromkeys(("INSERT", "UPDATE", "DELETE", "MERGE_INTO", "COPY"), _WRITE),
    **dict.fromkeys(("CREATE", "DROP", "ALTER"), "Tables are made with create_table, or: strandline table create"),
}
_TEXTS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_BRACKETS = re.compile(r"[\[\]{}]")


@dataclass(frozen=True)
class GuardedQuery:
    """A query that may run: its text, the view to make for each table it reads, and what the new names stand for."""

    sql: str
    views: Mapping[str, str]
    names: Mapping[str, str]

    def unmasked(self, text: str) -> str:
        """A text of DuckDB's with the names that the query has."""
        for name, said in self.names.items():
            if name in text:
                text = re.sub(rf'{name} AS ("?){re.escape(said)}\1(?!\w)', name, text).replace(name, said)
        return text


def fenced(duck: Duck, statement: object, tables: Iterable[str]) -> GuardedQuery:
    """The query `statement` over the lake's `tables`; `Invalid` when it is anything but one SELECT over them."""
    text = check_sql_size("the query", statement)
    rewriting = _Rewriting({name.lower(): name for name in tables})
    with duck.transaction(read_only=True) as cursor:
        try:
            tree = _tree(cursor, text, *_asked(cursor, "json_serialize_sql(?)", text))
            rewriting.run(tree["node"])
            new = json.dumps({"error": False, "statements": [tree]})
            sql, read = _asked(cursor, "sql, json_serialize_sql(sql) FROM (SELECT json_deserialize_sql(?) AS sql)", new)
            _verify(_tree(cursor, sql, read), rewriting.names)
        except RecursionError:
            raise too_deep("the query") from None
    return GuardedQuery(sql, rewriting.views, rewriting.names)


def _asked(cursor: Any, what: str, text: str) -> tuple[str, ...]:
    return tuple(map(str, cursor.execute(f"SELECT {what}", [text]).fetchall()[0]))


def _tree(cursor: Any, text: str, raw: str) -> dict[str, Any]:
    """The one SELECT of a text, which DuckDB reads as `raw`."""
    steps = (1 if sign in "[{" else -1 for sign in _BRACKETS.findall(_TEXTS.sub("", raw)))
    if max(accumulate(steps)) > MOST_LEVELS:
        raise too_deep("the query")
    found = json.loads(raw)
    if found["error"]:
        said = str(found.get("error_message", ""))[:_MOST_SAID]
        if found.get("error_type") != "not implemented":
            raise too_deep("the query") if "depth limit" in said else Invalid(f"the query is not SQL: {said}")
        kinds = {statement.type.name for statement in cursor.extract_statements(text)} - {"SELECT"}
        hints = [_HINTS[kind] for kind in sorted(kinds & _HINTS.keys())]
        raise Invalid("the query must be one SELECT", hint=" ".join(hints) or None)
    statements = found["statements"]
    if len(statements) != 1:
        raise Invalid(f"the query holds {len(statements)} statements; expected one SELECT")
    if statements[0].get("named_param_map"):
        raise Invalid("the query has a parameter; write the value itself")
    return dict(statements[0])


@dataclass
class _With:
    """A name that a WITH gives, and how many tables stand behind it."""

    name: str
    reads: int = 0


class _Rewriting:
    """One walk over a tree.

    A generator yields what lies below its node, and goes on when that is done. They are kept on a stack here, so that
    depth costs no calls."""

    def __init__(self, tables: Mapping[str, str]) -> None:
        self.views: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self._tables = tables
        self._bound: dict[str, list[_With]] = {}
        self._inside = [_With("")]

    def run(self, node: Any) -> None:
        stack: list[Iterator[Any]] = [iter([node])]
        while stack:
            for item in stack[-1]:
                below = self._below(item)
                if below is not None:
                    stack.append(below)
                    break
            else:
                stack.pop()

    def _below(self, item: Any) -> Iterator[Any] | None:
        if isinstance(item, dict):
            kind = _check(item)
            if kind == "query":
                return self._query(item)
            if kind == "table":
                self._rename(item)
            elif kind == "function":
                check_size(item["function_name"].lower(), item.get("arguments", ()))
            elif kind == "table function":
                return iter(_without(item, "function") + _without(item["function"], "function_name"))
            return iter(item.values())
        return iter(item) if isinstance(item, list | Iterator) else None

    def _query(self, node: dict[str, Any]) -> Iterator[Any]:
        if node["type"] == "RECURSIVE_CTE_NODE":
            raise Invalid("the query is recursive outside of a WITH")
        given: list[str] = []
        yield self._with(node, given)
        yield _without(node, "cte_map")
        self._forget(given)

    def _with(self, node: dict[str, Any], given: list[str]) -> Iterator[Any]:
        """The names of a WITH: each is known to those after it, and then to the query."""
        for entry in node["cte_map"]["map"]:
            said, inner = entry["key"].lower(), _With(self._new_name(entry["key"]))
            entry["key"] = inner.name
            query = entry["value"]["query_node"]
            self._inside.append(inner)
            if query["type"] == "RECURSIVE_CTE_NODE":
                query["cte_name"] = inner.name
                yield self._recursive(query, said, inner)
            else:
                yield query
            yield _without(entry["value"], "query_node")
            self._inside.pop()
            self._bound.setdefault(said, []).append(inner)
            given.append(said)

    def _recursive(self, node: dict[str, Any], said: str, inner: _With) -> Iterator[Any]:
        """A query whose second part reads the rows of its own name; in the first part the name is that of a table."""
        given: list[str] = []
        yield self._with(node, given)
        yield node["left"]
        self._bound.setdefault(said, []).append(_With(inner.name))
        yield node["right"]
        self._bound[said].pop()
        yield _without(node, "cte_map", "left", "right")
        self._forget(given)

    def _forget(self, given: Iterable[str]) -> None:
        for said in given:
            self._bound[said].pop()

    def _rename(self, node: dict[str, Any]) -> None:
        *schema, said = node["qualified_name"]["path"]
        given = self._bound.get(said.lower())
        inner = given[-1] if given else None
        is_recurring = [name.lower() for name in schema] == ["recurring"] and inner is not None
        if (schema and not is_recurring) or node["table_name"] != said:
            raise Invalid(f"{'.'.join([*schema, said])}: name tables without a schema")
        if node.get("at_clause"):
            raise Invalid(f"AT is not allowed: {said!r} is read at its head", hint="Earlier rows: to_arrow(at=…)")
        if inner is None:
            table = self._tables.get(said.lower())
            if table is None:
                raise NotFound(
                    f"no table {said!r} in this lake",
                    hint=f"Tables: {', '.join(sorted(self._tables.values())) or 'none'}",
                    table=said,
                )
            if table not in self.views:
                self.views[table] = self._new_name(table)
            inner = _With(self.views[table])
        self._inside[-1].reads += max(1, inner.reads)
        if self._inside[-1].reads > MOST_TABLES:
            raise Invalid(
                f"the query reads more than {MOST_TABLES:,} tables: names of its WITH read each other many times",
                hint="Read each of them once.",
            )
        node["table_name"] = inner.name
        node["qualified_name"]["path"] = [*schema, inner.name]
        # Columns are still called by the name that the query has for the table.
        node["alias"] = node["alias"] or said

    def _new_name(self, said: str) -> str:
        # Small letters alone, so that DuckDB never writes it in quotes.
        name = "".join(secrets.choice(string.ascii_lowercase) for _ in range(24))
        self.names[name] = said
        return name


def _verify(tree: dict[str, Any], names: Mapping[str, str]) -> None:
    """Whatever scope a table stands in: its name is one of ours."""
    stack: list[Any] = [tree]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if _check(item) == "table" and item["qualified_name"]["path"][-1] not in names:
                raise Internal(f"the query still names {item['qualified_name']['path']} after its names were replaced")
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _check(node: dict[str, Any]) -> str | None:
    """Refuse a node that has no place in a query, whatever it names; what it is, if it has a name or names inside."""
    kind = str(node.get("type", ""))
    if "cte_map" in node or kind.endswith("_NODE"):
        if kind not in _QUERIES:
            raise Invalid("the query must only read; it holds a statement that writes")
        return "query"
    if "class" in node:
        if node["class"] not in _EXPRESSIONS:
            raise Invalid(f"the query holds {node['class']}, which is not allowed")
        if "function_name" in node:
            _check_function(node, _CALLED, "function")
            return "function"
    elif "alias" in node and "sample" in node:
        if kind == "TABLE_FUNCTION":
            _check_function(node["function"], TABLE_FUNCTIONS, "table function")
            return "table function"
        if kind not in _SOURCES:
            raise Invalid(f"the query reads from {kind}, which is not allowed")
        if kind == "SHOW_REF" and node["query"] is None:
            if node["show_type"] != "SHOW":
                raise Invalid("SHOW is for one table", hint=_SHOW)
            return "table"
        return "table" if kind == "BASE_TABLE" else None
    return None


def _check_function(node: dict[str, Any], allowed: frozenset[str], what: str) -> None:
    """In `name.upper()` DuckDB takes the column for a schema until it binds the query: what stands before a function's
    own name does not matter, because no schema has functions that are not in the list."""
    name = node["function_name"]
    if name.lower() not in allowed:
        few = f"Allowed: {', '.join(sorted(allowed))}" if allowed is TABLE_FUNCTIONS else None
        raise Invalid(f"there is no {what} {name!r} for queries", hint=few)


def _without(node: dict[str, Any], *names: str) -> list[Any]:
    return [value for name, value in node.items() if name not in names]
