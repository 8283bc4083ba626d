"""Checks on the files of all tasks together, before a commit claims them: one change a key, and no lost values.

DuckDB reads the keys of the files, and spills what does not fit into memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from strandline.engines.scan import duck_scan, listed
from strandline.errors import Invalid
from strandline.model.change import HASH, OP, UPSERT
from strandline.model.checked_rows import CheckedRows
from strandline.model.types import conform_batches
from strandline.spark_source.incoming import Incoming
from strandline.storage.snapshot import DataFile
from strandline.tables.log import scan_file
from strandline.tables.partial import refuse_losses
from strandline.tables.store import TableStore

_PIECE_ROWS = 500_000


def check_files(table: TableStore, incoming: Incoming, files: Sequence[DataFile]) -> None:
    """`Invalid` when two rows have one key, or when the commit would replace values by null unasked."""
    definition = incoming.definition
    if not definition.is_keyed:
        return
    scans = [scan_file(table.log.storage, table.log.folder, file, 0) for file in files]
    sql = duck_scan(scans, definition.log_schemas, [HASH, OP, *definition.key])
    with table.duck.transaction() as cursor:
        if _overlap(files):
            _refuse_twins(cursor, sql, incoming)
        if incoming.lacking and not incoming.may_lose:
            columns = pa.schema([definition.schema.field(name) for name in definition.key])
            keys = f"SELECT {listed(definition.key)} FROM ({sql}) WHERE {OP} = '{UPSERT}'"
            with cursor.sql(keys).to_arrow_reader(_PIECE_ROWS) as reader:
                for batch in conform_batches(reader, columns):
                    piece = CheckedRows.of_columns(pa.Table.from_batches([batch]), incoming.lacking)
                    for _ in refuse_losses(table, definition, [piece], where="the DataFrame"):
                        pass


def _overlap(files: Sequence[DataFile]) -> bool:
    """Whether two files may hold one key: each is sorted and holds no key twice."""
    ranges = sorted((file.stats["minValues"][HASH], file.stats["maxValues"][HASH]) for file in files)
    return any(low <= high for (_, high), (low, _) in pairwise(ranges))


def _refuse_twins(cursor: Any, sql: str, incoming: Incoming) -> None:
    key = listed(incoming.definition.key)
    cursor.execute(
        f"CREATE TEMP TABLE _twins AS SELECT {HASH} FROM ({sql}) GROUP BY {HASH} HAVING count(*) > 1"
    ).fetchall()
    found = cursor.execute(
        f"SELECT {key} FROM ({sql}) SEMI JOIN _twins USING ({HASH}) GROUP BY {key} HAVING count(*) > 1 LIMIT 1"
    ).fetchone()
    cursor.execute("DROP TABLE _twins").fetchall()
    if found is not None:
        values = dict(zip(incoming.definition.key, found, strict=True))
        names = ", ".join(repr(name) for name in incoming.definition.key)
        raise Invalid(
            f"the DataFrame holds the key {values} more than once",
            hint=f"Choose which row wins: df.repartition({names}) and .option('orderBy', 'column'), where the highest"
            " value wins; or table.upsert(df, order_by='column').",
            column=incoming.definition.key[0],
            table=incoming.table,
        )
