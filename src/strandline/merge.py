"""Baseline and log as one table at a seq: as SQL for DuckDB and as a DataFrame for Spark.

Both read the baseline's rows whose keys did not change since, plus the winning upserts of those that did, and take
both facts from the same fold, so they give the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from strandline.baseline import BaselineState
from strandline.change import HASH, OP, ROW, SEQ, UPSERT, VNODE
from strandline.definitions import TableDef
from strandline.dialect import ScanFile, by_schema, duck_scan, listed, quoted, spark_schema, spark_type
from strandline.fold import changes_sql
from strandline.lanes import ReadLane
from strandline.log import LogState
from strandline.predicate import Predicate
from strandline.schema import conform_column
from strandline.spark import run_lane
from strandline.storage import Storage
from strandline.storage.delta import DataFile
from strandline.vnode import hash_keys, shift_for, vnode_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Merge:
    """A table at `seq`: a baseline that holds nothing after it, and the log from there."""

    log: LogState
    baseline: BaselineState
    seq: int

    @property
    def definition(self) -> TableDef:
        return self.log.definition

    def log_files(self) -> list[tuple[int, DataFile]]:
        return self.log.files(min(self.baseline.marks), self.seq)

    @property
    def baseline_schemas(self) -> list[pa.Schema]:
        return [self.definition.baseline_schema(i) for i in range(len(self.definition.schemas))]

    @property
    def log_schemas(self) -> list[pa.Schema]:
        return [self.definition.log_schema(i) for i in range(len(self.definition.schemas))]

    def candidates(self, predicate: Predicate | None) -> tuple[list[DataFile], list[tuple[int, DataFile]]]:
        """Baseline and log files that may hold rows fulfilling the predicate."""
        base, log = self.baseline.files(), self.log_files()
        if predicate is None:
            return base, log
        key = predicate.key_values(self.definition.key)
        if key is not None:
            vnode = str(vnode_of(_hash_of(key, self.definition), self.baseline.vnodes))
            base = [f for f in base if f.partition[VNODE] == vnode]
        return (
            [f for f in base if predicate.may_match(f.stats)],
            [pair for pair in log if predicate.may_match(pair[1].stats)],
        )


def _hash_of(key: Sequence[object], definition: TableDef) -> int:
    columns = [
        conform_column(pa.chunked_array([pa.array([value])]), definition.schema.field(name).type)
        for name, value in zip(definition.key, key, strict=True)
    ]
    return int(hash_keys(columns)[0].as_py())


def duck_sql(
    merge: Merge,
    fold: str | None,
    columns: Sequence[str],
    predicate: Predicate | None = None,
    *,
    hidden: bool = False,
) -> str:
    """SQL for the merged rows. `fold` names the fold's table, None when no log file is in range.

    `hidden` adds what folding needs: `_vnode`, and `_seq` and `_row` of a table without a key."""
    definition = merge.definition
    base_files, log_files = merge.candidates(predicate)
    needed = _needed(definition, columns, predicate)
    stored = [] if definition.is_keyed else [SEQ, ROW]
    base = duck_scan(merge.baseline.scans(base_files), merge.baseline_schemas, [*needed, *stored], number_as=VNODE)
    log = changes_sql(
        merge.log,
        log_files,
        [*needed, HASH, *(set(stored) - {SEQ})],
        None if definition.is_keyed else merge.baseline.marks,
    )
    log = f"SELECT *, {HASH} >> {shift_for(merge.baseline.vnodes)} AS {VNODE} FROM ({log})"
    base, log = _keyed_sql(merge, fold, base, log) if fold else (f"({base})", f"({log})")
    inner = listed([*needed, *stored, VNODE])
    both = f"SELECT {inner} FROM {base}" + (f" UNION ALL SELECT {inner} FROM {log}" if log_files else "")
    where = f" WHERE {predicate.duckdb}" if predicate else ""
    return f"SELECT {listed([*columns, *([*stored, VNODE] if hidden else [])])} FROM ({both}){where}"


def _needed(definition: TableDef, columns: Sequence[str], predicate: Predicate | None) -> list[str]:
    """The columns to read: those asked for, those filtered by, and those that decide which row wins."""
    deciding = [*definition.key, *([definition.version] if definition.version else [])]
    return list(dict.fromkeys([*columns, *(sorted(predicate.columns) if predicate else ()), *deciding]))


def _keyed_sql(merge: Merge, fold: str, base: str, log: str) -> tuple[str, str]:
    """FROM clauses: the baseline without the keys that changed, the log without the changes that lost."""
    definition = merge.definition
    key = listed(definition.key)
    if definition.version is None:
        return (
            f"({base}) ANTI JOIN {fold} USING ({key})",
            f"({log}) SEMI JOIN (SELECT {key}, {SEQ} FROM {fold} WHERE {OP} = '{UPSERT}') USING ({key}, {SEQ})",
        )
    # A baseline row stands against older versions in the log, unless a delete lies between.
    version = quoted(definition.version)
    equal = " AND ".join(f"f.{quoted(k)} = b.{quoted(k)}" for k in definition.key)
    every = duck_scan(
        merge.baseline.scans(merge.baseline.files()),
        merge.baseline_schemas,
        [*definition.key, definition.version],
    )
    return (
        f"({base}) b ANTI JOIN {fold} f ON {equal} AND (f._reset OR f._version >= b.{version})",
        f"({log}) SEMI JOIN (SELECT {key}, {SEQ} FROM {fold} f ANTI JOIN ({every}) b"
        f" ON {equal} AND NOT f._reset AND b.{version} > f._version WHERE {OP} = '{UPSERT}')"
        f" USING ({key}, {SEQ})",
    )


def spark_frame(
    spark: SparkSession,
    merge: Merge,
    fold: pa.Table | None,
    columns: Sequence[str],
    predicate: Predicate | None = None,
    *,
    hidden: bool = False,
) -> DataFrame:
    """The merged rows as a DataFrame. `fold` is the shared fold's content: it is broadcast."""
    from pyspark.sql import functions as F

    definition = merge.definition
    base_files, log_files = merge.candidates(predicate)
    needed = _needed(definition, columns, predicate)
    stored = [] if definition.is_keyed else [SEQ, ROW]
    frame = spark_scan(
        spark,
        merge.log.storage,
        merge.baseline.scans(base_files),
        merge.baseline_schemas,
        [*needed, *stored],
        number_as=VNODE,
    )
    if log_files:
        log = spark_scan(
            spark,
            merge.log.storage,
            merge.log.scans(log_files),
            merge.log_schemas,
            [*needed, HASH, *(set(stored) - {SEQ})],
            number_as=SEQ,
        ).withColumn(VNODE, F.shiftright(HASH, shift_for(merge.baseline.vnodes)))
        if not definition.is_keyed:
            log = _after_marks(log, merge.baseline.marks)
        elif fold is not None:
            frame, log = _spark_keyed(spark, merge, fold, frame, log)
        names = [f"`{name}`" for name in [*needed, *stored, VNODE]]
        frame = frame.select(*names).unionByName(log.select(*names))
    if predicate is not None:
        frame = frame.where(F.expr(predicate.spark))
    return frame.select(*[f"`{name}`" for name in [*columns, *([*stored, VNODE] if hidden else [])]])


def _spark_keyed(
    spark: SparkSession, merge: Merge, fold: pa.Table, base: DataFrame, log: DataFrame
) -> tuple[DataFrame, DataFrame]:
    from pyspark.sql import functions as F

    definition = merge.definition
    key = list(definition.key)
    changed = spark.createDataFrame(fold.drop_columns([HASH]))
    upserts = changed.where(F.col(OP) == UPSERT)
    if definition.version is None:
        base = base.join(F.broadcast(changed.select(*key)), on=key, how="left_anti")
    else:
        versions = spark_scan(
            spark,
            merge.log.storage,
            merge.baseline.scans(merge.baseline.files()),
            merge.baseline_schemas,
            [*key, definition.version],
            number_as=None,
        )
        base = base.alias("b").join(
            F.broadcast(changed.select(*key, "_reset", "_version").alias("f")),
            on=_equal("b", "f", key)
            & (F.col("f._reset") | (F.col("f._version") >= F.col(f"b.`{definition.version}`"))),
            how="left_anti",
        )
        upserts = upserts.alias("f").join(
            versions.alias("b"),
            on=_equal("b", "f", key) & ~F.col("f._reset") & (F.col(f"b.`{definition.version}`") > F.col("f._version")),
            how="left_anti",
        )
    return base, log.join(F.broadcast(upserts.select(*key, SEQ)), on=[*key, SEQ], how="left_semi")


def _equal(left: str, right: str, key: Sequence[str]) -> object:
    from pyspark.sql import functions as F

    return reduce(lambda a, b: a & b, (F.col(f"{left}.`{k}`") == F.col(f"{right}.`{k}`") for k in key))


def _after_marks(log: DataFrame, marks: Sequence[int]) -> DataFrame:
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
) -> DataFrame:
    """A DataFrame over files written under any of `schemas`: Spark's own reader, or ours where it has no client."""
    fields = [schemas[-1].field(name) for name in columns]
    wanted = pa.schema([*fields, *([pa.field(number_as, pa.int64())] if number_as else [])])
    if not files:
        return spark.createDataFrame([], schema=spark_schema(wanted))
    if not storage.is_local:
        rows = [(file.path, file.schema_id, file.number) for file in files]
        listing = spark.createDataFrame(rows, "path string, schema_id int, number long")
        lane = ReadLane(storage, tuple(schemas), tuple(columns), number_as)
        return run_lane(listing.repartition(min(len(files), 64)), lane, spark_schema(wanted))
    groups = (_native_scan(spark, group, schemas[id_], fields, number_as) for id_, group in by_schema(files))
    return reduce(lambda a, b: a.unionByName(b), groups)


def _native_scan(
    spark: SparkSession,
    files: Sequence[ScanFile],
    inside: pa.Schema,
    fields: Sequence[pa.Field],
    number_as: str | None,
) -> DataFrame:
    from pyspark.sql import functions as F

    frame = spark.read.schema(spark_schema(inside)).parquet(*[file.url for file in files])
    exprs = [
        (F.col(f"`{f.name}`") if f.name in inside.names else F.lit(None)).cast(spark_type(f.type)).alias(f.name)
        for f in fields
    ]
    if number_as and len({file.number for file in files}) == 1:
        exprs.append(F.lit(files[0].number).cast("long").alias(number_as))
    elif number_as:
        named = spark.createDataFrame(
            [(file.url.rsplit("/", 1)[1], file.number) for file in files], f"_name string, {number_as} long"
        )
        frame = frame.withColumn("_name", F.col("_metadata.file_name")).join(F.broadcast(named), on="_name")
        exprs.append(F.col(number_as))
    return frame.select(*exprs)
