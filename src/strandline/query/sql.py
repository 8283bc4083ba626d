"""SQL over the lake's tables, safe to take from strangers.

A statement is one SELECT. `guard` lets it name the lake's tables and nothing else; it then runs in a read-only
transaction of a DuckDB that can open nothing outside the lake (see `duck`). `stoppable` ends it on Ctrl-C and when its
time is over. Its result arrives batch by batch and is refused as soon as it is too large.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Any

import duckdb
import pyarrow as pa

from strandline.engines.stoppable import StoppableWork, run_stoppable
from strandline.errors import Invalid, StrandlineError
from strandline.query.guard import GuardedQuery, fenced
from strandline.tables.collection import Tables
from strandline.tables.merge import duck_sql

# A batch is whole before it is counted, so it is small: as many rows as DuckDB works on at a time.
_BATCH_ROWS = 2048
_MOST_SAID = 1500  # characters of an error, which may repeat values


def run(
    lake: Tables,
    statement: str,
    *,
    timeout_s: float | None = None,
    max_rows: int | None = None,
    max_bytes: int | None = None,
) -> pa.Table:
    """The result of `statement` over the lake, with one seq per table, fixed before it runs."""
    for name, limit in (("timeout_s", timeout_s), ("max_rows", max_rows), ("max_bytes", max_bytes)):
        is_number = isinstance(limit, int | float if name == "timeout_s" else int) and not isinstance(limit, bool)
        if limit is not None and not (is_number and 0 < limit < 1 << 62):
            raise Invalid(f"{name} is {limit!r}; expected a number above 0, or None")
    most_bytes = lake.duck.result_bytes if max_bytes is None else max_bytes
    return run_stoppable(
        lambda work: _run(lake, statement, max_rows, most_bytes, work), timeout_s, lake.duck.cache_bytes
    )


def _run(lake: Tables, statement: str, max_rows: int | None, max_bytes: int, work: StoppableWork[pa.Table]) -> pa.Table:
    query = fenced(lake.duck, statement, lake.tables())
    work.check()
    try:
        with lake.duck.transaction(read_only=True) as cursor, work.holding(cursor):
            _make_views(lake, query, cursor)
            found = _read(cursor, query.sql, max_rows, max_bytes)
    except StrandlineError as error:
        message = query.unmasked(error.message.partition("\n\nLINE ")[0])
        short = message if len(message) <= _MOST_SAID else f"{message[:_MOST_SAID]}…"
        raise type(error)(short, hint=error.hint, **error.fields) from None
    return found.rename_columns([query.unmasked(name) for name in found.column_names])


def _make_views(lake: Tables, query: GuardedQuery, cursor: Any) -> None:
    with ExitStack() as locks:
        tables = [lake.table(name) for name in sorted(query.views)]
        for table in tables:
            locks.enter_context(table.lock)
        merges = [table.merge() for table in tables]
        folds = [table.fold_name(merge) for table, merge in zip(tables, merges, strict=True)]
        # The transaction sees the folds as they are at its first look; later refreshes do not disturb it.
        for name in filter(None, folds):
            cursor.execute(f"SELECT 1 FROM {name} LIMIT 0").fetchall()
    for table, merge, fold in zip(tables, merges, folds, strict=True):
        rows = duck_sql(merge, fold, merge.definition.schema.names)
        cursor.execute(f"CREATE TEMP VIEW {query.views[table.name]} AS {rows}").fetchall()


def _read(cursor: Any, sql: str, max_rows: int | None, max_bytes: int) -> pa.Table:
    batches, rows, size = [], 0, 0
    try:
        found = cursor.sql(sql).to_arrow_reader(_BATCH_ROWS)
    except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
        # The fault of the query, also when it speaks of a file.
        raise Invalid(f"the query failed: {error}") from error
    # The reader is closed before the cursor rolls back: an open one keeps it busy.
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
