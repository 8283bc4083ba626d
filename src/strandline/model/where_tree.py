"""Parse a `where=` expression with sqlglot: its columns, its SQL for each engine, its bounds."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import sqlglot
from sqlglot import exp

from strandline.errors import Invalid
from strandline.model.condition import Bound, Predicate
from strandline.model.where_check import check_types, is_text

_FLIPPED = {exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE, exp.EQ: exp.EQ}


def parse_tree(text: str, schema: pa.Schema) -> Predicate:
    """The expression as SQL for both engines, with the bounds by which files are skipped."""
    try:
        trees = sqlglot.parse(text, read="duckdb")
    except sqlglot.errors.SqlglotError as error:
        raise Invalid(
            f"where {text!r} is not an SQL expression: {_explain(error)}",
            hint=f"A condition is like: {next(iter(schema.names), 'id')} = 5. Texts are in single quotes: 'x'.",
        ) from error
    if len(trees) != 1 or trees[0] is None:
        raise Invalid(f"where {text!r} is not one SQL expression")
    tree = trees[0]
    names = {name.lower(): name for name in schema.names}
    columns = set()
    for node in list(tree.find_all(exp.Column)):
        name = names.get(node.name.lower())
        if name is None or node.table:
            raise Invalid(
                f"where {text!r}: no column {node.sql()!r}",
                hint=f"Columns: {', '.join(schema.names)}",
                column=node.name,
            )
        columns.add(name)
        node.set("this", exp.to_identifier(name, quoted=True))
    tree = check_types(tree, schema, text)
    return Predicate(
        tree.sql(dialect="duckdb"),
        tree.transform(_escape_text).sql(dialect="spark"),
        frozenset(columns),
        tuple(_find_bounds(tree, schema)),
    )


def _explain(error: sqlglot.errors.SqlglotError) -> str:
    """Where an expression stops making sense."""
    facts = next(iter(getattr(error, "errors", None) or ()), None)
    if facts is None:
        return "a quote or a bracket is not closed"
    if "Unexpected" in facts["description"]:
        return f"it cannot have {facts['highlight']!r} at character {facts['col']}"
    return f"something is missing after {facts['highlight']!r}, before character {facts['col'] + 1}"


def _escape_text(node: exp.Expr) -> exp.Expr:
    """A text literal as hex where Spark's reading of it depends on settings: with a backslash, quote or dollar sign."""
    if not is_text(node) or (node.name.isprintable() and not set(node.name) & set("\\'\"$")):
        return node
    return exp.Cast(this=exp.HexString(this=node.name.encode().hex()), to=exp.DataType(this=exp.DataType.Type.TEXT))


def _find_bounds(tree: exp.Expr, schema: pa.Schema) -> list[Bound]:
    bounds = []
    for part in tree.flatten() if isinstance(tree, exp.And) else [tree]:
        part = part.unnest()
        if isinstance(part, exp.And):
            bounds += _find_bounds(part, schema)
            continue
        if isinstance(part, exp.Between) and not part.args.get("symmetric"):
            bounds += _find_bounds(exp.GTE(this=part.this, expression=part.args["low"]), schema)
            bounds += _find_bounds(exp.LTE(this=part.this, expression=part.args["high"]), schema)
            continue
        kind = type(part)
        if kind not in _FLIPPED:
            continue
        column, value = part.this.unnest(), part.expression.unnest()
        if isinstance(value, exp.Column):
            column, value, kind = value, column, _FLIPPED[kind]
        if isinstance(column, exp.Column):
            constant = _statistics_value(value, schema.field(column.name).type)
            if constant is not None:
                op = {exp.EQ: "=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}[kind]
                bounds.append(Bound(column.name, op, constant))
    return bounds


def _statistics_value(node: exp.Expr, kind: pa.DataType) -> Any:
    """The literal as Delta statistics write values of `kind`; None when unsure, which skips no file."""
    if pt.is_integer(kind):
        try:
            value = int(node.sql()) if isinstance(node, exp.Literal | exp.Neg) and not is_text(node) else None
        except ValueError:
            return None
        return value if value is None or abs(value) < 1 << (kind.bit_width - 1) else None
    if pt.is_string(kind):
        return node.name if is_text(node) else None
    if pt.is_date(kind):
        text = node.this.name if isinstance(node, exp.Cast) and node.to.this == exp.DataType.Type.DATE else node.name
        try:
            return dt.date.fromisoformat(text).isoformat() if len(text) == 10 else None
        except ValueError:
            return None
    return None
