"""Write a batch of changes to a table's log: in this process, or by Spark tasks when it is large or a DataFrame.

Either way the files come first and one commit claims them all, so a batch is in the table whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pyarrow as pa

from strandline.crash import crash_point
from strandline.engines.choice import BULK, DriverLimit
from strandline.engines.lanes import RECEIPT, files_of
from strandline.engines.log_lane import LogLane
from strandline.engines.scan import spark_dtype, spark_type
from strandline.engines.spark import collect, run_lane, session
from strandline.engines.vnode_partitions import by_vnode
from strandline.errors import Invalid
from strandline.model.change import HASH, ROW, UPSERT, Commit, Op
from strandline.model.definition import TableDef
from strandline.model.keys import shift_for, spark_hash
from strandline.model.names import backticked
from strandline.tables.log import Amend, Log
from strandline.tables.overflow import OverflowFiles
from strandline.tables.pins import new_pin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The names of jobs in the Spark UI.
_JOBS: dict[Op | None, str] = {"upsert": "upsert into", "delete": "delete from", None: "restore into"}


def write(
    log: Log,
    pieces: Iterator[pa.Table],
    definition: TableDef,
    op: Op,
    *,
    tokens: Sequence[str],
    spark: SparkSession | None,
    limit: DriverLimit = BULK,
    amend: Amend | None = None,
) -> Commit:
    """Commit checked rows. Rows of more bytes than `limit` go to Spark through files that keep their order. The limit
    on their number does not apply: they are in columns already."""
    held: list[pa.Table] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += piece.nbytes
        if not limit.holds(raw_bytes=size):
            with _pin_writes(log), OverflowFiles(log.storage, log.folder) as spool:
                spool.add_all(held, pieces)
                return write_frame(
                    log,
                    spool.frame(session(spark)),
                    definition,
                    op,
                    order_by=OverflowFiles.ORDER,
                    tokens=tokens,
                    amend=amend,
                )
    if not sum(piece.num_rows for piece in held):
        return log.empty_commit(tokens)
    return log.append(pa.concat_tables(held), definition, op, tokens=tokens, amend=amend)


def _pin_writes(log: Log) -> AbstractContextManager[None]:
    """Protects files that no commit claims yet from a vacuum, however long the write takes."""
    return log.pins.held(new_pin("write", writes_since_s=log.storage.now_s()))


def write_frame(
    log: Log,
    frame: DataFrame,
    definition: TableDef,
    op: Op | None,
    *,
    order_by: str | None,
    tokens: Sequence[str],
    amend: Amend | None = None,
) -> Commit:
    """Commit the rows of a DataFrame that has the table's columns. Spark tasks write them, each the rows of some
    vnodes. Without `op`, each row has its own in `_op`."""
    from pyspark.sql import functions as F

    session(frame.sparkSession)
    if definition.is_keyed:
        frame = frame.withColumn(HASH, spark_hash(definition.schema, definition.key))
        # A null key has no hash; its lane refuses it.
        vnode = F.coalesce(F.shiftright(HASH, shift_for(definition.vnodes)), F.lit(0)).cast("int")
        frame = by_vnode(frame, vnode, definition.vnodes)
        if order_by and not (order_by == definition.version and op == UPSERT):
            # The lane's own sort by key keeps this order among equal keys.
            frame = frame.sortWithinPartitions(backticked(order_by))
    else:
        frame = frame.withColumn(ROW, F.monotonically_increasing_id())
    lane = LogLane(log.storage, log.folder, definition, op, is_ordered=order_by is not None)
    with _pin_writes(log):
        name = f"{_JOBS[op]} {log.delta.refresh().metadata.get('name')}"
        files, failure = files_of(collect(run_lane(frame, lane, RECEIPT), name))
        if failure is not None:
            log.discard(files)
            raise failure
        if not files:
            return log.empty_commit(tokens)
        crash_point("log.lanes_written")
        return log.commit(files, operation=(op or "restore").upper(), tokens=tokens, amend=amend)


def check_frame(frame: DataFrame, schema: pa.Schema, order_by: str | None) -> DataFrame:
    """`frame` with exactly the columns of `schema`; the table's types must hold its types without loss.

    Lanes check the values later."""
    from pyspark.sql import functions as F

    found = dict(frame.dtypes)
    for name in found:
        if frame.columns.count(name) > 1:
            raise Invalid(f"the DataFrame has more than one column {name!r}", column=name)
    if order_by is not None and order_by not in found:
        raise Invalid(f"order_by is {order_by!r}; the DataFrame has: {', '.join(found)}", column=order_by)
    for name in found:
        if name not in schema.names and name != order_by:
            raise Invalid(f"the DataFrame's column {name!r} is not in the table", column=name)
    exprs = []
    for field in schema:
        kind = spark_type(field.type)
        if field.name not in found:
            if not field.nullable:
                raise Invalid(f"the DataFrame has no column {field.name!r}; a value is required", column=field.name)
            exprs.append(F.lit(None).cast(kind).alias(field.name))
        elif not fits_type(found[field.name], field.type):
            raise Invalid(
                f"the DataFrame's column {field.name!r} is {found[field.name]}; the table's is {kind}",
                hint="Cast it first, so that you decide what happens to values that do not fit.",
                column=field.name,
            )
        else:
            exprs.append(F.col(backticked(field.name)).cast(kind).alias(field.name))
    if order_by is not None and order_by not in schema.names:
        exprs.append(F.col(backticked(order_by)))
    return frame.select(*exprs)


_WIDER = {
    "tinyint": {"smallint", "int", "bigint"},
    "smallint": {"int", "bigint"},
    "int": {"bigint"},
    "float": {"double"},
    "void": set(),
}


def fits_type(found: str, kind: pa.DataType) -> bool:
    wanted = spark_dtype(kind)
    return found in (wanted, "void") or wanted in _WIDER.get(found, ())
