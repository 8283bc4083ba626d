"""Filters that Spark pushes down, as the table's own `where` expression.

Both mean the same: of floats, NaN equals NaN and is larger than every other number, and -0.0 equals 0.0; a comparison
with null is null. A filter that the expression cannot say exactly is left to Spark.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as spark

from strandline.errors import Invalid
from strandline.model.condition import Predicate
from strandline.model.where import parse

_COMPARISONS = {
    spark.EqualTo: "=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
}
_PATTERNS = {
    spark.StringStartsWith: "{}%",
    spark.StringEndsWith: "%{}",
    spark.StringContains: "%{}%",
}


def take_filters(filters: Sequence[Any], schema: pa.Schema) -> tuple[Predicate | None, list[Any]]:
    """The condition of the filters that the table takes, and the filters that are left to Spark."""
    texts, left = [], []
    for each in filters:
        text = _filter_text(each, schema)
        try:
            if text is not None:
                parse(text, schema)
        except Invalid:
            text = None
        left += [each] if text is None else []
        texts += [] if text is None else [text]
    if not texts:
        return None, left
    try:
        return parse(" AND ".join(f"({text})" for text in texts), schema), left
    except Invalid:
        # Together they are too large for one expression.
        return None, list(filters)


def _filter_text(each: Any, schema: pa.Schema) -> str | None:
    """The expression of a filter; None when there is none."""
    if isinstance(each, spark.Not):
        inner = _filter_text(each.child, schema)
        return None if inner is None else f"NOT ({inner})"
    if len(each.attribute) != 1 or each.attribute[0] not in schema.names:
        return None
    column = '"' + each.attribute[0].replace('"', '""') + '"'
    if isinstance(each, spark.IsNull):
        return f"{column} IS NULL"
    if isinstance(each, spark.IsNotNull):
        return f"NOT ({column} IS NULL)"
    if isinstance(each, spark.EqualNullSafe):
        value = _value_text(each.value)
        return None if value is None else f"{column} = {value} AND NOT ({column} IS NULL)"
    if isinstance(each, spark.In):
        values = [_value_text(value) for value in each.value]
        return None if not values or None in values else f"{column} IN ({', '.join(map(str, values))})"
    if type(each) in _PATTERNS:
        if not isinstance(each.value, str) or set(each.value) & set("%_\\"):
            return None
        value = _value_text(_PATTERNS[type(each)].format(each.value))
        return None if value is None else f"{column} LIKE {value}"
    if type(each) in _COMPARISONS:
        value = _value_text(each.value)
        return None if value is None else f"{column} {_COMPARISONS[type(each)]} {value}"
    return None


def _value_text(value: Any) -> str | None:
    """A constant in an expression; None for a value that it cannot hold."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value!r}e0" if math.isfinite(value) and "e" not in repr(value) else None
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() else None
    if isinstance(value, dt.datetime):
        # A text takes the type of the column that it is compared with.
        return f"'{value.isoformat(sep=' ')}'"
    if isinstance(value, dt.date):
        return f"'{value.isoformat()}'"
    if isinstance(value, str):
        return None if "\0" in value else "'" + value.replace("'", "''") + "'"
    return None
