"""A `where=` expression: it means the same to DuckDB and to Spark, and tells which files can be skipped.

The expression is SQL over the table's columns: comparisons, AND/OR/NOT, IN, BETWEEN, LIKE, IS NULL, arithmetic,
casts and a few functions. Subqueries, other functions and unknown columns are refused.
"""

from __future__ import annotations

import pyarrow as pa

from strandline.errors import Invalid
from strandline.model.condition import Predicate
from strandline.model.sql_limits import check_sql_size, too_deep


def parse(text: str, schema: pa.Schema) -> Predicate:
    """The condition of an expression over the columns of `schema`; `Invalid` names what is not allowed."""
    if not isinstance(text, str) or not text.strip():
        raise Invalid(f"where is {text!r}; expected an SQL expression such as \"date >= '2026-01-01'\"")
    check_sql_size("where", text)
    # sqlglot takes a while to load, and most processes read no condition.
    from strandline.model.where_tree import parse_tree

    try:
        return parse_tree(text, schema)
    except RecursionError:
        raise too_deep("where") from None
