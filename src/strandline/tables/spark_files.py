"""The files of a table as Spark DataFrames: their rows, the keys that changes in them decide, and their checks.

`spark_read` makes the rows of a read from them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from strandline.engines.lanes import CheckLane, ReadLane
from strandline.engines.scan import Inside, ScanFile, by_schema, listed, spark_schema, spark_type
from strandline.engines.spark import collect, run_lane
from strandline.engines.spark_settings import planning, sending_rows
from strandline.errors import Corrupt
from strandline.model.change import DELETE, HASH, OP, SEQ, UPSERT
from strandline.model.definition import TableDef
from strandline.model.keys import shift_for
from strandline.model.names import backticked, caseless_name
from strandline.model.stored_names import stored_name, stored_schema
from strandline.model.types import canonical_field
from strandline.storage import digest, os_errors
from strandline.storage.open import Storage
from strandline.storage.snapshot import DataFile
from strandline.tables.live_rows import LiveRows
from strandline.tables.log import LogState
from strandline.tables.merge import Files, TableAt

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# Reads need these options, whatever the session's settings are, now and when a lazy DataFrame runs.
_EXACT = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}
# Up to this many files, a CASE over their names is quicker than a join.
_CASES = 64
_NAME = "_sl_name"


def fold_frame(spark: SparkSession, fold: pa.Table) -> DataFrame:
    """The shared fold (see `winners_sql`) as a DataFrame, which is sent to Spark here, once."""
    # By default Spark reads local times in its session's zone, where some do not exist.
    columns = pa.schema([canonical_field(field) for field in fold.schema])
    with sending_rows(spark, fold.num_rows):
        return spark.createDataFrame(fold.combine_chunks(), schema=spark_schema(columns))


def winners_sql(name: str, definition: TableDef) -> str:
    """SQL for the columns of a fold that Spark needs: key and `_sl_winner`, the winning seq, or -1 for a delete."""
    more = ", _sl_reset, _sl_version" if definition.version else ""
    winner = f"CASE WHEN {OP} = '{UPSERT}' THEN {SEQ} ELSE -1 END AS _sl_winner"
    return f"SELECT {listed(definition.key)}, {winner}{more} FROM {name}"


def find_winners(
    spark: SparkSession,
    merge: TableAt,
    files: Sequence[tuple[int, DataFile]],
    marks: Sequence[int],
    *,
    wanted: int | None = None,
) -> DataFrame:
    """The columns of `winners_sql` for the changes in log files after `marks`, computed by Spark; with `wanted`, those
    for the keys with this hash."""
    from pyspark.sql import functions as F

    definition = merge.definition
    key = list(definition.key)
    inside = [*key, HASH, OP, *([definition.version] if definition.version else [])]
    changes = drop_folded(log_scan(spark, merge.log, files, inside), marks)
    changes = changes if wanted is None else changes.where(F.col(HASH) == wanted)
    keys = [F.col(name) for name in _quote_names(key)]
    if definition.version is None:
        winner = F.when(F.max_by(OP, SEQ) == UPSERT, F.max(SEQ)).otherwise(-1)
        return changes.groupBy(*keys).agg(winner.alias("_sl_winner"))
    version = F.col(backticked(definition.version))
    deletes = changes.where(F.col(OP) == DELETE).groupBy(*keys).agg(F.max(SEQ).alias("_sl_deleted"))
    best = (
        changes.where(F.col(OP) == UPSERT)
        .join(deletes, on=key, how="left")
        .where(F.col(SEQ) > F.coalesce("_sl_deleted", F.lit(-1)))
        .groupBy(*keys)
        .agg(
            F.max_by(SEQ, F.struct(version, SEQ)).alias("_sl_winner"),
            F.max(version).alias("_sl_version"),
            F.max("_sl_deleted").isNotNull().alias("_sl_reset"),
        )
    )
    gone = deletes.join(best, on=key, how="left_anti").drop("_sl_deleted")
    gone = gone.withColumns({"_sl_winner": F.lit(-1).cast("long"), "_sl_reset": F.lit(True)})
    return best.unionByName(gone, allowMissingColumns=True)


def changed_keys(spark: SparkSession, merge: TableAt, files: Sequence[tuple[int, DataFile]]) -> DataFrame:
    """The keys that have a change in log files."""
    return (
        log_scan(spark, merge.log, files, list(merge.definition.key))
        .select(*_quote_names(merge.definition.key))
        .distinct()
    )


def _quote_names(names: Sequence[str]) -> list[str]:
    return list(map(backticked, names))


def base_scan(
    spark: SparkSession, merge: TableAt, files: Sequence[DataFile], columns: Sequence[str], *, number_as: str | None
) -> DataFrame:
    scans = merge.baseline.scans(files)
    return spark_scan(spark, merge.log.storage, scans, merge.baseline_schemas, columns, number_as=number_as)


def log_scan(
    spark: SparkSession, log: LogState, files: Sequence[tuple[int, DataFile]], columns: Sequence[str]
) -> DataFrame:
    """The changes in log files, with their `_seq`."""
    return spark_scan(spark, log.storage, log.scans(files), log.definition.log_schemas, columns, number_as=SEQ)


def live_scan(spark: SparkSession, merge: TableAt, files: Files, columns: Sequence[str], live: LiveRows) -> DataFrame:
    """The rows that count, of baseline and log in one scan."""
    scans = live.files(merge, files)
    # Inside of a log file there are the columns of a baseline file, and hidden ones.
    schemas = merge.definition.log_schemas
    return spark_scan(spark, merge.log.storage, scans, schemas, columns, number_as=None, live=live)


def equal_keys(left: str, right: str, key: Sequence[str]) -> Column:
    from pyspark.sql import functions as F

    return reduce(
        lambda a, b: a & b, (F.col(f"{left}.{backticked(k)}") == F.col(f"{right}.{backticked(k)}") for k in key)
    )


def drop_folded(log: DataFrame, marks: Sequence[int]) -> DataFrame:
    from pyspark.sql import functions as F

    if len(set(marks)) == 1:
        return log.where(F.col(SEQ) > marks[0])
    mark = F.element_at(
        F.array(*[F.lit(m) for m in marks]),
        (F.shiftright(F.col(HASH), shift_for(len(marks))) + 1).cast("int"),
    )
    return log.where(F.col(SEQ) > mark)


def spark_scan(
    spark: SparkSession,
    storage: Storage,
    files: Sequence[ScanFile],
    schemas: Sequence[pa.Schema],
    columns: Sequence[str],
    *,
    number_as: str | None,
    live: LiveRows | None = None,
) -> DataFrame:
    """A DataFrame over files of any of `schemas`: by Spark's own reader, or by ours where Spark has no client. With
    `live`, which needs Spark's own reader, the rows that count."""
    fields = [schemas[-1].field(name) for name in columns]
    wanted = pa.schema([*fields, *([pa.field(number_as, pa.int64())] if number_as else [])])
    if not files:
        return spark.createDataFrame([], schema=spark_schema(wanted))
    if not storage.is_local:
        lane = ReadLane(storage, tuple(schemas), tuple(columns), number_as)
        return run_lane(listing(spark, files, 64), lane, spark_schema(wanted))
    for file in files:
        # Spark would read an empty file as a file without rows.
        if _file_size(file.url) != file.size:
            raise Corrupt(f"file {file.url} is missing or does not have its {file.size} bytes", path=file.path)
    groups = _group_by_columns(files, schemas, fields)
    return reduce(lambda a, b: a.union(b), (_native_scan(spark, *group, fields, number_as, live) for group in groups))


def _group_by_columns(
    files: Sequence[ScanFile], schemas: Sequence[pa.Schema], fields: Sequence[pa.Field]
) -> list[tuple[list[ScanFile], pa.Schema]]:
    """The files of each scan, and the wanted columns inside them. Files of several schemas are one scan, unless a
    wanted column has another type in some: a column that a file lacks is null there. Packs are not scanned with files
    of one number, nor with packs that are limited to another range."""
    found: dict[tuple[Inside | None, frozenset[tuple[str, str]]], tuple[list[ScanFile], dict[str, pa.Field]]] = {}
    for schema_id, some in by_schema(files):
        columns = schemas[schema_id]
        inside = {field.name: columns.field(field.name) for field in fields if field.name in columns.names}
        differing = {(name, str(field.type)) for name, field in inside.items() if field.type != _type_in(fields, name)}
        # Another column of this file may have the name inside files that a wanted column has in others.
        taken = {caseless_name(stored_name(field)) for field in columns}
        lacking = [field for field in fields if field.name not in inside]
        differing |= {(field.name, "") for field in lacking if caseless_name(stored_name(field)) in taken}
        group, known = found.setdefault((some[0].inside, frozenset(differing)), ([], {}))
        group += some
        known |= inside
    return [(group, pa.schema(list(known.values()))) for group, known in found.values()]


def _type_in(fields: Sequence[pa.Field], name: str) -> pa.DataType:
    return next(field.type for field in fields if field.name == name)


def _file_size(url: str) -> int | None:
    with os_errors.translate_errors(url, "read"):
        try:
            return os.stat(url).st_size
        except FileNotFoundError:
            return None


def listing(spark: SparkSession, files: Sequence[ScanFile], tasks: int) -> DataFrame:
    """The input rows of a `ReadLane`, spread over at most `tasks` tasks."""
    rows = [(file.path, file.schema_id, file.number, *inside_of(file)) for file in files]
    named = spark.createDataFrame(rows, ReadLane.INPUT)
    return named.repartition(max(1, min(len(files), tasks)))


def inside_of(file: ScanFile) -> tuple[str | None, int | None, int | None]:
    """The last three columns of an input row."""
    own = file.inside
    return (None, None, None) if own is None else (own.column, own.after, own.upto)


def check_files(
    spark: SparkSession,
    storage: Storage,
    files: Iterable[tuple[str, DataFile]],
    columns: Sequence[str] | None = None,
) -> None:
    """`Corrupt` when one of these files is damaged: `digest.check` by Spark tasks."""
    by_path = dict(files)
    if not by_path:
        return
    lane = CheckLane(storage, by_path, columns)
    named = spark.createDataFrame([(path,) for path in by_path], "path string")
    named = named.repartition(max(1, min(len(by_path), 64)))
    name = "check 1 file" if len(by_path) == 1 else f"check {len(by_path)} files"
    for row in collect(run_lane(named, lane, CheckLane.OUTPUT), name):
        raise pickle.loads(row["error"]) if row["error"] else digest.corrupt(storage, row["path"], row["fault"])


def _native_scan(
    spark: SparkSession,
    files: Sequence[ScanFile],
    inside: pa.Schema,
    fields: Sequence[pa.Field],
    number_as: str | None,
    live: LiveRows | None,
) -> DataFrame:
    from pyspark.sql import functions as F

    urls = [file.url for file in files]
    own = files[0].inside
    stored_columns = pa.schema([*stored_schema(inside), *([pa.field(own.column, pa.int64())] if own else [])])
    with planning(spark, len(urls)):
        frame = spark.read.options(**_EXACT).schema(spark_schema(stored_columns)).parquet(*urls)
    if own is not None and own.condition:
        frame = frame.where(own.condition)
    if live is not None:
        frame = live.keep(frame, files)
    kinds = {field.name: field.type for field in inside}
    exprs = []
    for field in fields:
        name, stored = backticked(field.name), backticked(stored_name(field))
        value = stored if field.name in kinds else "NULL"
        value = value if kinds.get(field.name) == field.type else f"CAST({value} AS {spark_type(field.type)})"
        exprs.append(value if value == name else f"{value} AS {name}")
    if number_as and own is not None:
        exprs.append(f"{own.column} AS {number_as}")
    elif number_as and len({file.number for file in files}) == 1:
        exprs.append(f"{files[0].number}L AS {number_as}")
    elif number_as:
        names = [file.url.rsplit("/", 1)[1] for file in files]
        numbers = [file.number for file in files]
        # The table may have a column `_metadata` of its own.
        frame = frame.withColumn(_NAME, frame.metadataColumn("_metadata")["file_name"])
        if len(files) <= _CASES:
            # Without an ELSE, Spark would look for nulls, row by row.
            cases = " ".join(f"WHEN '{name}' THEN {number}L" for name, number in zip(names, numbers, strict=True))
            exprs.append(f"CASE {_NAME} {cases} ELSE -1L END AS {number_as}")
        else:
            named = spark.createDataFrame(pa.table({_NAME: names, number_as: numbers}))
            frame = frame.join(F.broadcast(named), on=_NAME)
            exprs.append(number_as)
    return frame.selectExpr(*exprs)
