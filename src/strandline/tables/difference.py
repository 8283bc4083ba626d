"""The rows of a table that changed between two seqs: as they were, and as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from strandline.engines.scan import listed
from strandline.model.change import OP, SEQ, UPSERT
from strandline.tables import fold as folds
from strandline.tables.merge import duck_sql
from strandline.tables.store import TableStore


@dataclass(frozen=True)
class Difference:
    """`before` are the rows at the first seq of the keys that changed since, `after` those at the second one. A row
    that is the same at both may be in both."""

    before: pa.Table
    after: pa.Table


def difference(table: TableStore, after: int, upto: int, columns: Sequence[str]) -> Difference:
    """The difference in these columns. `NotRetained` when the log or the table at the first seq is gone."""
    then = table.merge(after)
    definition = then.definition
    log, start, end = table.change_range(after, upto)
    key, names = listed(definition.key), listed(columns)
    wanted = [OP, *dict.fromkeys([*definition.key, *columns])]
    changes = folds.changes_sql(log, log.files(start, end), wanted, None)
    if not definition.is_keyed:
        rows = table.duck.table(f"SELECT {names} FROM ({changes})")
        return Difference(rows.slice(0, 0), rows)
    with table.duck.transaction() as cursor:
        # Before the transaction's first statement: it would not see a fold that is made later.
        fold = table.pinned_fold(cursor, then)
        last = f"SELECT * FROM ({changes}) QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY {SEQ} DESC) = 1"
        cursor.execute(f"CREATE TEMP TABLE _changed AS {last}").fetchall()
        rows = duck_sql(then, fold, list(dict.fromkeys([*definition.key, *columns])))
        was = cursor.sql(f"SELECT {names} FROM ({rows}) SEMI JOIN _changed USING ({key})").to_arrow_table()
        now = cursor.sql(f"SELECT {names} FROM _changed WHERE {OP} = '{UPSERT}'").to_arrow_table()
    return Difference(was, now)
