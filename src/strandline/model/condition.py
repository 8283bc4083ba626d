"""A condition on rows as a value: its SQL for DuckDB and for Spark, and the bounds that it sets on columns.

Spark tasks load this module, so it needs nothing that parses SQL; `where` makes conditions from text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Bound:
    """A bound that every result row meets: `column <op> value`, op one of = < <= > >=."""

    column: str
    op: str
    value: Any


@dataclass(frozen=True)
class Predicate:
    duckdb: str
    spark: str
    columns: frozenset[str]
    bounds: tuple[Bound, ...]

    def may_match(self, stats: Mapping[str, Any]) -> bool:
        """False only when a file with these Delta statistics cannot hold a row that fulfils the expression."""
        lows, highs = stats.get("minValues", {}), stats.get("maxValues", {})
        for bound in self.bounds:
            low, high = lows.get(bound.column), highs.get(bound.column)
            try:
                if high is not None and bound.op in ("=", ">", ">=") and high < bound.value:
                    return False
                if low is not None and bound.op in ("=", "<", "<=") and low > bound.value:
                    return False
            except TypeError:
                continue
        return True

    def also(self, other: Predicate | None) -> Predicate:
        """Both conditions."""
        if other is None:
            return self
        return Predicate(
            f"({self.duckdb}) AND ({other.duckdb})",
            f"({self.spark}) AND ({other.spark})",
            self.columns | other.columns,
            self.bounds + other.bounds,
        )

    def key_values(self, key: tuple[str, ...]) -> tuple[Any, ...] | None:
        """The one key that the expression asks for, or None when it does not fix every key column."""
        fixed = {bound.column: bound.value for bound in self.bounds if bound.op == "="}
        return tuple(fixed[name] for name in key) if key and all(name in fixed for name in key) else None
