"""Rows as Spark brings them to a lane, and what a lane writes of them."""

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.engines.lanes import files_of
from strandline.model.change import HASH, OP
from strandline.model.definition import TableDef
from strandline.model.keys import hash_keys
from support import ITEMS

DEFINITION = TableDef.declare(ITEMS, key=["id"], vnodes=4)
VERSIONED = TableDef.declare(ITEMS, key=["id"], vnodes=4, version="qty")


def rows_of(*triples):
    """Rows with their hashes."""
    columns = [pa.array(column, field.type) for column, field in zip(zip(*triples, strict=True), ITEMS, strict=True)]
    table = pa.Table.from_arrays(columns, schema=pa.schema([field.with_nullable(True) for field in ITEMS]))
    hashes = hash_keys([table.column("id")]) if table.column("id").null_count == 0 else pa.array([0] * len(table))
    return table.append_column(HASH, hashes).sort_by([(HASH, "ascending")])


def receipts(lane, table, batch_rows=None):
    return [row for batch in lane(iter(table.to_batches(batch_rows))) for row in batch.to_pylist()]


def written(storage, lane, table, batch_rows=None):
    files, failure = files_of(receipts(lane, table, batch_rows))
    if failure is not None:
        raise failure
    rows = [row for file in files for row in pq.read_table(storage.url(f"log/{file.path}")).to_pylist()]
    return sorted((row["id"], row["name"], row[OP]) for row in rows)
