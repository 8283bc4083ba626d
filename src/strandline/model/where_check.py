"""Check the types of a `where=` expression, and rewrite what DuckDB and Spark would read differently.

An expression is made of comparisons, AND/OR/NOT, IN, BETWEEN, LIKE/ILIKE, IS NULL, `+ - *` and a few functions, and
compares like with like. Constants for dates and times get their type, and times an offset (UTC unless they have one).
32-bit floats are compared as 64-bit ones, and integers are computed in 64 bits. For floats, -0.0 equals 0.0, and NaN
equals NaN and is larger than every other number.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal, cast

import pyarrow as pa
import pyarrow.types as pt
from sqlglot import exp

from strandline.errors import Invalid
from strandline.model import moments
from strandline.model.types import is_json

Family = Literal["number", "text", "truth", "date", "time", "local time", "null", "other"]

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Abs)
_TYPES = exp.DataType.Type
_CASTS: dict[Any, Family] = {
    _TYPES.DATE: "date",
    _TYPES.TIMESTAMP: "local time",
    _TYPES.TIMESTAMPNTZ: "local time",
    _TYPES.TIMESTAMPTZ: "time",
    _TYPES.TIMESTAMPLTZ: "time",
}


def check_types(tree: exp.Expr, schema: pa.Schema, text: str) -> exp.Expr:
    """The expression with its constants typed; `Invalid` when it is no condition or its types do not match."""
    sense = _TypeChecker(schema, text)
    holder: Any = exp.Paren(this=tree)
    if sense.family(tree) not in ("truth", "null"):
        raise sense.refusal(tree, "is not a condition")
    for listed in list(holder.find_all(exp.In)):
        if any(pt.is_floating(schema.field(column.name).type) for column in listed.find_all(exp.Column)):
            # In a long list, Spark compares floats by their bits.
            listed.replace(exp.paren(exp.or_(*(exp.EQ(this=listed.this, expression=e) for e in listed.expressions))))
    for column in list(holder.find_all(exp.Column)):
        kind = schema.field(column.name).type
        if pt.is_floating(kind) and not isinstance(column.parent, exp.Is):
            column.replace(_compare_by_value(column.copy(), kind))
        elif pt.is_integer(kind) and isinstance(column.parent, _ARITHMETIC):
            column.replace(_cast(column.copy(), _TYPES.BIGINT))
    return cast(exp.Expr, holder.this)


def _compare_by_value(column: exp.Expr, kind: pa.DataType) -> exp.Expr:
    """A column of floats that engines must compare row by row: bounds of files, dictionaries and hashes tell -0.0 from
    0.0 and ignore NaN. Adding 0 turns -0.0 into 0.0 and changes no other value."""
    number = _cast(column, _TYPES.DOUBLE) if pt.is_float32(kind) else column
    return exp.paren(exp.Add(this=number, expression=exp.Literal.number("0e0")), copy=False)


def _cast(node: exp.Expr, to: Any) -> exp.Cast:
    return exp.Cast(this=node, to=exp.DataType(this=to))


class _TypeChecker:
    def __init__(self, schema: pa.Schema, text: str) -> None:
        self._schema = schema
        self._text = text

    def refusal(self, node: exp.Expr, why: str) -> Invalid:
        return Invalid(
            f"where {self._text!r}: {node.sql(dialect='duckdb')!r} {why}",
            hint="Compare like with like; use AND/OR/NOT, IN, BETWEEN, LIKE, IS NULL, + - * and a few functions.",
        )

    def family(self, node: exp.Expr) -> Family:
        """The family of the node's value; the node and all below it are checked."""
        if isinstance(node, exp.Paren):
            return self.family(node.this)
        if isinstance(node, exp.And | exp.Or | exp.Not):
            self._require_family(node, "truth")
            return "truth"
        if isinstance(node, (*_COMPARISONS, exp.Between, exp.In)):
            self._common_family(node)
            return "truth"
        if isinstance(node, exp.Like | exp.ILike):
            self._require_family(node, "text")
            if "\\" in node.expression.name or not is_text(node.expression):
                raise self.refusal(node, "needs a plain text without backslashes as its pattern")
            return "truth"
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            self.family(node.this)
            return "truth"
        if isinstance(node, _ARITHMETIC):
            self._require_family(node, "number")
            return "number"
        if isinstance(node, exp.Lower | exp.Upper | exp.Length):
            self._require_family(node, "text")
            return "number" if isinstance(node, exp.Length) else "text"
        if isinstance(node, exp.Coalesce):
            return self._common_family(node)
        return self._leaf_family(node)

    def _leaf_family(self, node: exp.Expr) -> Family:
        if isinstance(node, exp.Column):
            return _family_of(self._schema.field(node.name).type)
        if isinstance(node, exp.Literal):
            return "text" if node.is_string else "number"
        if isinstance(node, exp.Boolean):
            return "truth"
        if isinstance(node, exp.Null):
            return "null"
        if isinstance(node, exp.Cast) and is_text(node.this) and node.to.this in _CASTS:
            return _CASTS[node.to.this]
        raise self.refusal(node, "is not allowed here")

    def _require_family(self, node: exp.Expr, wanted: Family) -> None:
        for part in node.iter_expressions():
            if self.family(part) not in (wanted, "null"):
                raise self.refusal(part, f"is not a {wanted}")

    def _common_family(self, node: exp.Expr) -> Family:
        """The family that all parts share. A text constant beside dates or times becomes a date or time."""
        parts = list(node.iter_expressions())
        families = [self.family(part) for part in parts]
        for wanted in ("date", "time", "local time"):
            if any(f == wanted and not isinstance(p, exp.Cast) for f, p in zip(families, parts, strict=True)):
                for part in parts:
                    inner = part.this if isinstance(part, exp.Cast) else part
                    if is_text(inner):
                        part.replace(self._typed_constant(inner, wanted))
                families = [self.family(part) for part in node.iter_expressions()]
        found = set(families) - {"null"}
        if len(found) > 1 or "other" in found:
            raise self.refusal(node, f"compares {' with '.join(sorted(found))}")
        return found.pop() if found else "null"

    def _typed_constant(self, node: exp.Expr, family: str) -> exp.Expr:
        try:
            if family == "date":
                return _cast(exp.Literal.string(dt.date.fromisoformat(node.name).isoformat()), _TYPES.DATE)
            moment = moments.parse_moment(node.name)
            moment = moment.replace(tzinfo=moment.tzinfo or dt.UTC).astimezone(dt.UTC)
        except (ValueError, OverflowError) as error:
            raise self.refusal(node, f"is not a {family}") from error
        if family == "time":
            # TIMESTAMP_LTZ in Spark: there the meaning of TIMESTAMP depends on a setting.
            return _cast(exp.Literal.string(moment.isoformat(sep=" ")), _TYPES.TIMESTAMPLTZ)
        return _cast(exp.Literal.string(moment.replace(tzinfo=None).isoformat(sep=" ")), _TYPES.TIMESTAMPNTZ)


def _family_of(kind: pa.DataType) -> Family:
    if pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind):
        return "number"
    if pt.is_string(kind) or is_json(kind):
        return "text"
    if pt.is_boolean(kind):
        return "truth"
    if pt.is_date(kind):
        return "date"
    if pt.is_timestamp(kind):
        return "time" if kind.tz else "local time"
    return "other"


def is_text(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.Literal) and bool(node.is_string)
