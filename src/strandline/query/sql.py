"""SQL over the lake's tables, safe for untrusted users.

A statement is one SELECT. `guard` lets it read only the lake's tables. It runs in a read-only transaction of a DuckDB
that can open nothing outside the lake (see `duck`). `watch` stops it on Ctrl-C and after its timeout. Its result
arrives in batches and is refused as soon as it is too large.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing
from typing import Any

import duckdb
import pyarrow as pa

from strandline.engines.duck import query_error
from strandline.engines.stoppable import StoppableWork, run_stoppable
from strandline.errors import Invalid, StrandlineError
from strandline.query.guard import GuardedQuery, TableRead, guard_query
from strandline.query.listing import listing_sql
from strandline.tables.collection import Tables
from strandline.tables.fold import KEPT_FOLDS
from strandline.tables.merge import TableAt, duck_sql
from strandline.tables.store import At, TableStore

# A batch is in memory before it is counted, so it is small: as many rows as DuckDB works on at a time.
_BATCH_ROWS = 2048
_MESSAGE_CHARS = 1500  # of an error, which may repeat values


def run(
    lake: Tables,
    statement: str,
    *,
    at: At = None,
    timeout_s: float | None = None,
    max_rows: int | None = None,
    max_bytes: int | None = None,
) -> pa.Table:
    """The result of `statement` over the lake. The seq of each table is fixed before it runs: the one of its AT, else
    of `at`, else its head."""
    for name, limit in (("timeout_s", timeout_s), ("max_rows", max_rows), ("max_bytes", max_bytes)):
        is_number = isinstance(limit, int | float if name == "timeout_s" else int) and not isinstance(limit, bool)
        if limit is not None and not (is_number and 0 < limit < 1 << 62):
            raise Invalid(f"{name} is {limit!r}; expected a number above 0, or None")
    most_bytes = lake.duck.result_bytes if max_bytes is None else max_bytes
    return run_stoppable(
        lambda work: _run_query(lake, statement, at, max_rows, most_bytes, work), timeout_s, lake.duck.cache_bytes
    )


def _run_query(
    lake: Tables, statement: str, at: At, max_rows: int | None, max_bytes: int, work: StoppableWork[pa.Table]
) -> pa.Table:
    query = guard_query(lake.duck, statement, lake.tables())
    work.check()
    try:
        with lake.duck.transaction(read_only=True) as cursor, work.holding(cursor):
            _make_views(lake, query, at, cursor)
            found = _read_result(cursor, query.sql, max_rows, max_bytes)
    except StrandlineError as error:
        message = query.unmask(error.message.partition("\n\nLINE ")[0])
        short = message if len(message) <= _MESSAGE_CHARS else f"{message[:_MESSAGE_CHARS]}…"
        raise type(error)(short, hint=error.hint, **error.fields) from None
    return found.rename_columns([query.unmask(name) for name in found.column_names])


def _make_views(lake: Tables, query: GuardedQuery, at: At, cursor: Any) -> None:
    with ExitStack() as locks:
        tables = {name: lake.table(name) for name in sorted({read.table for read in query.views})}
        _check_at(at, {read.table for read in query.views if read.at is None})
        for table in tables.values():
            locks.enter_context(table.lock)
        reads = [
            (name, tables[read.table], _merge_at(tables[read.table], read, at)) for read, name in query.views.items()
        ]
        # A table may be folded between two looks, and there is one fold for a table at a seq.
        merges = {(table.name, merge.seq): merge for _, table, merge in reads}
        reads = [(name, table, merges[table.name, merge.seq]) for name, table, merge in reads]
        # The newest first: a fold grows with a later seq, and is made anew for an earlier one.
        reads.sort(key=lambda read: -read[2].seq)
        _check_moments(reads)
        folds = [table.fold_name(merge) for _, table, merge in reads]
        # The transaction sees the folds as they are at its first query; later refreshes do not change them.
        for fold in filter(None, folds):
            cursor.execute(f"SELECT 1 FROM {fold} LIMIT 0").fetchall()
    views = {
        name: duck_sql(merge, fold, merge.definition.schema.names)
        for (name, _, merge), fold in zip(reads, folds, strict=True)
    }
    for what, name in query.listings.items():
        views[name] = listing_sql(lake, what)
    for name, rows in views.items():
        cursor.execute(f"CREATE TEMP VIEW {name} AS {rows}").fetchall()


def _merge_at(table: TableStore, read: TableRead, at: At) -> TableAt:
    return table.merge(at if read.at is None else read.at)


def _check_at(at: At, names: Collection[str]) -> None:
    """Refuse a seq for several tables: each table counts its own."""
    if isinstance(at, int) and len(names) > 1:
        raise Invalid(
            f"at is the seq {at}, and the query reads {', '.join(sorted(names))}: each table has its own seqs",
            hint="Give a time instead, or in the query each table's own seq: FROM t AT (VERSION => 5).",
        )


def _check_moments(reads: Sequence[tuple[str, TableStore, TableAt]]) -> None:
    """Refuse a table at more past seqs than it keeps folds of."""
    for table in {table for _, table, _ in reads}:
        seqs = {merge.seq for _, each, merge in reads if each is table}
        if len(seqs) > KEPT_FOLDS:
            raise Invalid(
                f"the query reads {table.name!r} at {len(seqs)} seqs; it may read it at {KEPT_FOLDS}",
                hint="Ask for its history with table.changes(after, upto).",
                table=table.name,
            )


def _read_result(cursor: Any, sql: str, max_rows: int | None, max_bytes: int) -> pa.Table:
    batches, rows, size = [], 0, 0
    try:
        found = cursor.sql(sql).to_arrow_reader(_BATCH_ROWS)
    except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
        # The query is wrong, also when the message is about a file.
        raise query_error(error) from error
    # Close the reader before the cursor rolls back: an open reader keeps the cursor busy.
    with closing(found) as reader:
        for batch in reader:
            rows += batch.num_rows
            size += batch.nbytes
            if max_rows is not None and rows > max_rows:
                raise Invalid(
                    f"the result has more rows than its limit of {max_rows:,}",
                    hint="Ask for less (LIMIT, WHERE, GROUP BY), or raise max_rows (--max-rows).",
                    max_rows=max_rows,
                )
            if size > max_bytes:
                raise Invalid(
                    f"the result is larger than its limit of {max_bytes:,} bytes: {rows:,} rows take {size:,}",
                    hint="Ask for less (LIMIT, WHERE, fewer columns), or raise max_bytes (--max-bytes)."
                    " Without one, the limit is a quarter of the lake's cache_bytes.",
                    max_bytes=max_bytes,
                )
            batches.append(batch)
        return pa.Table.from_batches(batches, reader.schema)
