"""How many rows a table has: by the statistics of its files when they suffice, else by its keys."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.model.change import OP, UPSERT
from strandline.model.condition import Predicate
from strandline.storage.snapshot import DataFile
from strandline.tables.horizon import expired_rows
from strandline.tables.merge import TableAt
from strandline.tables.store import TableStore


def bound_rows(merge: TableAt) -> tuple[int, bool]:
    """The number of rows by statistics, and whether it is exact. If not, it is an upper bound: each change of a key
    counts."""
    definition, base, log = merge.definition, merge.base_files(), merge.log_files()
    log_rows = sum(file.rows for _, file in log)
    rows = sum(file.rows for file in base) + log_rows
    # Where vnodes are folded to different seqs, a log file may hold rows that the baseline has as well.
    is_level = len(set(merge.baseline.marks)) == 1
    # A pack that reaches beyond the range has rows that do not count.
    is_whole = not definition.is_keyed and not any(file.within for _, file in log)
    is_plain = is_level and (is_whole or (definition.is_keyed and rows == log_rows and _is_one_batch_of_upserts(log)))
    is_settled = not log and not any(expired_rows(file, definition, merge.horizon) for file in base)
    return rows, (is_plain or not log) and (merge.horizon is None or is_settled)


def count_rows(table: TableStore, merge: TableAt, predicate: Predicate | None = None) -> int:
    """The exact number of rows, or of those that fulfil a condition."""
    rows, is_exact = bound_rows(merge)
    if predicate is None and is_exact:
        return rows
    names = merge.definition.key or merge.definition.schema.names[:1]
    with table.reading(merge, names, predicate) as relation:
        return int(relation.aggregate("count(*)").fetchall()[0][0])


def _is_one_batch_of_upserts(log: Sequence[tuple[int, DataFile]]) -> bool:
    """Whether all changes are upserts of one commit, by statistics. A commit holds a key once, so they count rows."""
    ops = {file.stats.get(side, {}).get(OP) for _, file in log for side in ("minValues", "maxValues")}
    return len({seq for seq, _ in log}) == 1 and not any(file.pack for _, file in log) and ops == {UPSERT}
