"""The rows of a table that changed between two seqs: as they were, and as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from strandline.engines.scan import listed
from strandline.model.change import OP
from strandline.tables import fold as folds
from strandline.tables.merge import TableAt, duck_sql
from strandline.tables.store import TableStore


@dataclass(frozen=True)
class Difference:
    """`before` are the rows at the first seq of the keys that changed since, `after` those at the second one. A row
    that is the same at both may be in both."""

    before: pa.Table
    after: pa.Table


def difference(table: TableStore, after: int, upto: int, columns: Sequence[str]) -> Difference:
    """The difference in these columns. `NotRetained` when the log or the table at the first seq is gone."""
    then, now = table.merge(after), table.merge(upto)
    definition = now.definition
    log, start, end = table.change_range(after, upto)
    inside = list(dict.fromkeys([*definition.key, *columns]))
    if not definition.is_keyed:
        alive = now.filter(None)
        needed = list(dict.fromkeys([*columns, *(alive.columns if alive else ())]))
        changes = folds.changes_sql(log, log.files(start, end), [OP, *needed], None)
        where = f" WHERE {alive.duckdb}" if alive else ""
        rows = table.duck.table(f"SELECT {listed(columns)} FROM ({changes}){where}")
        return Difference(rows.slice(0, 0), rows)
    changes = folds.changes_sql(log, log.files(start, end), [OP, *definition.key], None)
    keys = table.duck.table(f"SELECT DISTINCT {listed(definition.key)} FROM ({changes})")
    before, later = (_rows_of(table, merge, keys, inside).select(list(columns)) for merge in (then, now))
    return Difference(before, later)


def _rows_of(table: TableStore, merge: TableAt, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The rows of a table with these keys, as readers see them."""
    key = listed(merge.definition.key)
    with table.duck.transaction() as cursor:
        fold = table.pinned_fold(cursor, merge)
        cursor.register("_keys", keys)
        try:
            rows = f"SELECT * FROM ({duck_sql(merge, fold, columns)}) SEMI JOIN _keys USING ({key})"
            return cursor.sql(rows).to_arrow_table()
        finally:
            cursor.unregister("_keys")
