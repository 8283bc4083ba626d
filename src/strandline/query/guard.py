"""Rewrite a query from an untrusted user, so that it can read only the lake's tables.

The size of the query is checked (`sql_limits`), then DuckDB parses it into a syntax tree. Names are resolved scope by
scope: a table is a name of a WITH around it, a table of the lake, or a list of tables (`listing`). Every table of the
lake (at each seq or time that the query names with AT), every list and every name of a WITH gets a new random name,
where it is defined and where it is used. So no table name of the query ever reaches DuckDB, which would look for a
file, a catalog or a Python variable of that name. A name that is resolved wrongly finds nothing. Only functions of a
list may be called.

The text of the new tree runs. It is parsed and checked again: it may use the new names only.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from strandline.engines.duck import Duck
from strandline.errors import Internal, Invalid, NotFound
from strandline.model.sql_limits import check_sql_size, too_deep
from strandline.query.functions import SCALAR_FUNCTIONS, TABLE_FUNCTIONS, check_size
from strandline.query.listing import COLUMNS, NAMES, SCHEMA, TABLES

MOST_LEVELS = 700  # of the tree as JSON; Python reads 1,000
MOST_TABLES = 10_000  # read by a query, when each name of a WITH counts as its query
_MESSAGE_CHARS = 500  # of a message of DuckDB's parser, which repeats the query

_QUERIES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE"}
_SOURCES = {"BASE_TABLE", "SUBQUERY", "JOIN", "EXPRESSION_LIST", "EMPTY", "PIVOT", "SHOW_REF"}
_EXPRESSIONS = {
    "BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "DEFAULT", "FUNCTION",
    "LAMBDA", "LAMBDA_REF", "OPERATOR", "POSITIONAL_REFERENCE", "STAR", "SUBQUERY", "TYPE", "WINDOW",
}  # fmt: skip
_FUNCTIONS = SCALAR_FUNCTIONS | TABLE_FUNCTIONS
_WRITE = "Rows are written with upsert, delete, append or ingest."
_SHOW = "Columns of a table: SHOW table. All tables: SHOW TABLES"
_AT = "Write AT (VERSION => 5) for a seq, or AT (TIMESTAMP => '2024-01-31 12:00') for a time in UTC."
_HINTS = {
    "EXPLAIN": "A query plan is not shown. Run the query itself.",
    "MULTI": "A PIVOT must list its values: PIVOT … ON column IN (…).",
    "PRAGMA": "Settings are not shown. Columns of a table: DESCRIBE table",
    "SET": "Settings cannot be changed by a query.",
    **dict.fromkeys(("INSERT", "UPDATE", "DELETE", "MERGE_INTO", "COPY"), _WRITE),
    "CREATE": "Tables are created with create_table, or: strandline table create",
    "DROP": "Tables are dropped with drop_table, or: strandline table drop",
    "ALTER": "Tables are changed with evolve and rename_column, or: strandline table -h",
}
_TEXTS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_BRACKETS = re.compile(r"[\[\]{}]")


@dataclass(frozen=True)
class TableRead:
    """A table that a query reads, at a seq or a time; None when the query does not say."""

    table: str
    at: int | str | None = None


@dataclass(frozen=True)
class GuardedQuery:
    """A query that may run: its text, the view for each table that it reads and for each list of tables, and the
    original of each new name."""

    sql: str
    views: Mapping[TableRead, str]
    listings: Mapping[str, str]
    names: Mapping[str, str]

    def unmask(self, text: str) -> str:
        """A message of DuckDB, with the original names."""
        for name, said in self.names.items():
            if name in text:
                text = re.sub(rf'{name} AS ("?){re.escape(said)}\1(?!\w)', name, text).replace(name, said)
        return text


def guard_query(duck: Duck, statement: object, tables: Iterable[str]) -> GuardedQuery:
    """The query `statement` over the lake's `tables`; `Invalid` unless it is one SELECT over them."""
    text = check_sql_size("the query", statement)
    rewriting = _Rewriter({name.lower(): name for name in tables})
    with duck.transaction(read_only=True) as cursor:
        try:
            (raw,) = _fetch_row(cursor, "json_serialize_sql(?)", text)
            tree = _parse_tree(cursor, text, raw, rewriting.known)
            rewriting.run(tree["node"])
            new = json.dumps({"error": False, "statements": [tree]})
            sql, read = _fetch_row(
                cursor, "sql, json_serialize_sql(sql) FROM (SELECT json_deserialize_sql(?) AS sql)", new
            )
            _verify_names(_parse_tree(cursor, sql, read), rewriting.names)
        except RecursionError:
            raise too_deep("the query") from None
    return GuardedQuery(sql, rewriting.views, rewriting.listings, rewriting.names)


def _fetch_row(cursor: Any, what: str, text: str) -> tuple[str, ...]:
    return tuple(map(str, cursor.execute(f"SELECT {what}", [text]).fetchall()[0]))


def _parse_tree(cursor: Any, text: str, raw: str, tables: Container[str] = ()) -> dict[str, Any]:
    """The one SELECT of a text over `tables`; `raw` is its syntax tree as JSON."""
    steps = (1 if sign in "[{" else -1 for sign in _BRACKETS.findall(_TEXTS.sub("", raw)))
    if max(accumulate(steps)) > MOST_LEVELS:
        raise too_deep("the query")
    found = json.loads(raw)
    if found["error"]:
        said = str(found.get("error_message", ""))[:_MESSAGE_CHARS]
        if found.get("error_type") != "not implemented":
            hint = _hint_at_syntax(cursor, text, said, tables)
            raise (
                too_deep("the query") if "depth limit" in said else Invalid(f"the query is not SQL: {said}", hint=hint)
            )
        kinds = {statement.type.name for statement in cursor.extract_statements(text)} - {"SELECT"}
        hints = [_HINTS[kind] for kind in sorted(kinds & _HINTS.keys())]
        raise Invalid("the query must be one SELECT", hint=" ".join(hints) or None)
    statements = found["statements"]
    if len(statements) != 1:
        raise Invalid(f"the query holds {len(statements)} statements; expected one SELECT")
    if statements[0].get("named_param_map"):
        raise Invalid("the query has a parameter; write the value itself")
    return dict(statements[0])


def _is_word_of_sql(cursor: Any, word: str) -> bool:
    """Whether a name must be in quotes to be a table."""
    (raw,) = _fetch_row(cursor, "json_serialize_sql(?)", f"SELECT * FROM {word}")
    return bool(json.loads(raw)["error"])


def _hint_at_syntax(cursor: Any, text: str, said: str, tables: Container[str]) -> str:
    near = re.search(r'at or near "(\w+)"', said)
    if near and near[1].lower() in tables and _is_word_of_sql(cursor, near[1]):
        return f'{near[1]} is a word of SQL. For the table of this name write it in double quotes: "{near[1]}"'
    if re.search(r"\bAT\s*\([^()]*=>[^()]*\)\s*(AS\s+)?\w", text, re.I):
        return "Write the other name of the table before AT: FROM table t AT (VERSION => 1)"
    if re.match(r"\s*SHOW\b", text, re.I):
        return _SHOW
    is_time_travel = re.search(r"\b(VERSION|TIMESTAMP)\s+AS\s+OF\b", text, re.I)
    if is_time_travel:
        return "Read an earlier version with: FROM table AT (VERSION => 1)"
    return "Look at that place and at the word before it. A query is like: SELECT name FROM table WHERE name = 'x'"


@dataclass
class _WithName:
    """A name of a WITH, and the number of tables that its query reads."""

    name: str
    reads: int = 0


class _Rewriter:
    """One walk over a tree.

    A generator yields the children of its node, and continues when they are done. The generators are on a stack, so a
    deep tree needs no deep calls."""

    def __init__(self, tables: Mapping[str, str]) -> None:
        self.views: dict[TableRead, str] = {}
        self.listings: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.known = tables
        self._bound: dict[str, list[_WithName]] = {}
        self._inside = [_WithName("")]

    def run(self, node: Any) -> None:
        stack: list[Iterator[Any]] = [iter([node])]
        while stack:
            for item in stack[-1]:
                below = self._children(item)
                if below is not None:
                    stack.append(below)
                    break
            else:
                stack.pop()

    def _children(self, item: Any) -> Iterator[Any] | None:
        if isinstance(item, dict):
            kind = _check_node(item)
            if kind == "query":
                return self._walk_query(item)
            if kind == "table":
                self._rename_table(item)
            elif kind == "show tables":
                _turn_into_table(item, self._name_listing(NAMES))
            elif kind == "function":
                check_size(item["function_name"].lower(), item.get("arguments", ()))
            elif kind == "table function":
                return iter(_values_without(item, "function") + _values_without(item["function"], "function_name"))
            return iter(item.values())
        return iter(item) if isinstance(item, list | Iterator) else None

    def _walk_query(self, node: dict[str, Any]) -> Iterator[Any]:
        if node["type"] == "RECURSIVE_CTE_NODE":
            raise Invalid("the query is recursive outside of a WITH")
        given: list[str] = []
        yield self._bind_names(node, given)
        yield _values_without(node, "cte_map")
        self._unbind_names(given)

    def _bind_names(self, node: dict[str, Any], given: list[str]) -> Iterator[Any]:
        """Bind the names of a WITH: each is known to the names after it, and then to the query."""
        for entry in node["cte_map"]["map"]:
            said, inner = entry["key"].lower(), _WithName(self._new_name(entry["key"]))
            entry["key"] = inner.name
            query = entry["value"]["query_node"]
            self._inside.append(inner)
            if query["type"] == "RECURSIVE_CTE_NODE":
                query["cte_name"] = inner.name
                yield self._walk_recursive(query, said, inner)
            else:
                yield query
            yield _values_without(entry["value"], "query_node")
            self._inside.pop()
            self._bound.setdefault(said, []).append(inner)
            given.append(said)

    def _walk_recursive(self, node: dict[str, Any], said: str, inner: _WithName) -> Iterator[Any]:
        """A recursive query: its second part reads its own name; in its first part that name is a table."""
        given: list[str] = []
        yield self._bind_names(node, given)
        yield node["left"]
        self._bound.setdefault(said, []).append(_WithName(inner.name))
        yield node["right"]
        self._bound[said].pop()
        yield _values_without(node, "cte_map", "left", "right")
        self._unbind_names(given)

    def _unbind_names(self, given: Iterable[str]) -> None:
        for said in given:
            self._bound[said].pop()

    def _rename_table(self, node: dict[str, Any]) -> None:
        *schema, said = node["qualified_name"]["path"]
        given = self._bound.get(said.lower())
        inner = given[-1] if given else None
        is_recurring = [name.lower() for name in schema] == ["recurring"] and inner is not None
        if node["table_name"] != said:
            raise Invalid(f"{'.'.join([*schema, said])}: name tables without a schema")
        if inner is not None and node.get("at_clause"):
            raise Invalid(f"AT is for tables; {said!r} is a name of a WITH", hint=_AT)
        if [name.lower() for name in schema] == [SCHEMA]:
            inner, schema = self._find_listing(node, said), []
        elif schema and not is_recurring:
            raise Invalid(f"{'.'.join([*schema, said])}: name tables without a schema")
        elif inner is None:
            inner = self._find_table(node, said)
        self._inside[-1].reads += max(1, inner.reads)
        if self._inside[-1].reads > MOST_TABLES:
            raise Invalid(
                f"the query reads more than {MOST_TABLES:,} tables: the names of its WITH read each other many times",
                hint="Read each of them once.",
            )
        node["table_name"] = inner.name
        node["qualified_name"]["path"] = [*schema, inner.name]
        # Columns may still be qualified with the name that the query uses for the table.
        node["alias"] = node["alias"] or said

    def _find_table(self, node: dict[str, Any], said: str) -> _WithName:
        table = self.known.get(said.lower())
        if table is None:
            raise NotFound(
                f"no table {said!r} in this lake",
                hint=f"Tables: {', '.join(sorted(self.known.values())) or 'none'}",
                table=said,
            )
        read = TableRead(table, _take_at(node))
        if read not in self.views:
            self.views[read] = self._new_name(table)
        return _WithName(self.views[read])

    def _find_listing(self, node: dict[str, Any], said: str) -> _WithName:
        if said.lower() not in (TABLES, COLUMNS) or node.get("at_clause"):
            hint = f"There are {SCHEMA}.{TABLES} and {SCHEMA}.{COLUMNS}, as they are now."
            raise Invalid(f"{SCHEMA}.{said} cannot be read", hint=hint)
        return _WithName(self._name_listing(said.lower()))

    def _name_listing(self, what: str) -> str:
        if what not in self.listings:
            self.listings[what] = self._new_name(TABLES if what == NAMES else what)
        return self.listings[what]

    def _new_name(self, said: str) -> str:
        # Only small letters, so that DuckDB never writes it in quotes.
        name = "".join(secrets.choice(string.ascii_lowercase) for _ in range(24))
        self.names[name] = said
        return name


def _verify_names(tree: dict[str, Any], names: Mapping[str, str]) -> None:
    """Every table, in every scope, has one of the new names."""
    stack: list[Any] = [tree]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            kind = _check_node(item)
            if kind == "show tables" or (
                kind == "table" and (item["qualified_name"]["path"][-1] not in names or item.get("at_clause"))
            ):
                raise Internal(f"the query still names {item['qualified_name']['path']} after its names were replaced")
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _check_node(node: dict[str, Any]) -> str | None:
    """Refuse a node that is not allowed in a query. The kind of the node, if it has names."""
    kind = str(node.get("type", ""))
    if "cte_map" in node or kind.endswith("_NODE"):
        if kind not in _QUERIES:
            raise Invalid("the query must only read; it has a statement that writes")
        return "query"
    if "class" in node:
        if node["class"] not in _EXPRESSIONS:
            raise Invalid(f"the query holds {node['class']}, which is not allowed")
        if "function_name" in node:
            _check_function(node, _FUNCTIONS, "function")
            return "function"
    elif "alias" in node and "sample" in node:
        if kind == "TABLE_FUNCTION":
            _check_function(node["function"], TABLE_FUNCTIONS, "table function")
            return "table function"
        if kind not in _SOURCES:
            raise Invalid(f"the query reads from {kind}, which is not allowed")
        if kind == "SHOW_REF" and node["query"] is None:
            if (node["show_type"], node["qualified_name"]["path"]) == ("SHOW_SPECIAL", ['"tables"']):
                return "show tables"
            if node["show_type"] != "SHOW":
                raise Invalid("SHOW is for one table, or for TABLES", hint=_SHOW)
            return "table"
        return "table" if kind == "BASE_TABLE" else None
    return None


def _turn_into_table(node: dict[str, Any], name: str) -> None:
    """Make a node of the tree one that reads a table."""
    kept = {word: node[word] for word in ("alias", "sample", "query_location", "query_location_length")}
    empty: dict[str, Any] = {"schema_name": "", "catalog_name": "", "column_name_alias": [], "at_clause": None}
    node.clear()
    node.update(type="BASE_TABLE", table_name=name, qualified_name={"path": [name]}, **kept, **empty)


def _take_at(node: dict[str, Any]) -> int | str | None:
    """The seq or the time of a table's AT, which leaves the tree."""
    clause, node["at_clause"] = node.get("at_clause"), None
    if clause is None:
        return None
    value = clause["expr"]
    while value["class"] == "CAST":
        value = value["child"]
    literal = value.get("literal") or {}
    text = str(literal.get("text", ""))
    if clause["unit"].upper() == "VERSION" and literal.get("kind") == "INTEGER" and text.isdecimal():
        return int(text)
    if clause["unit"].upper() == "TIMESTAMP" and literal.get("kind") == "STRING":
        return text
    raise Invalid(f"AT holds no plain {'seq' if clause['unit'].upper() == 'VERSION' else 'time'}", hint=_AT)


def _check_function(node: dict[str, Any], allowed: frozenset[str], what: str) -> None:
    """Only the function's own name is checked. In `name.upper()` DuckDB takes the column for a schema until it binds
    the query, and no schema has functions that are not in the list."""
    name = node["function_name"]
    if name.lower() not in allowed:
        few = f"Allowed: {', '.join(sorted(allowed))}" if allowed is TABLE_FUNCTIONS else None
        raise Invalid(f"a query may not call the {what} {name!r}", hint=few)


def _values_without(node: dict[str, Any], *names: str) -> list[Any]:
    return [value for name, value in node.items() if name not in names]
