"""Which rows of a table's files count at a seq: for Spark, a bit for each row that does not.

The driver looks up the keys of its fold in the files of the table, once a seq, and finds the rows that are replaced,
deleted or no upserts. Spark then reads all files in one scan and drops these rows by their number in the file. It reads
no key for that, joins nothing and broadcasts nothing.

The bits of all files are one array of longs, the only value of a local relation, which a scalar subquery hands to the
filter. The array begins with a directory of the places where the bits of each file begin. A file is found there by its
size, which costs less for each row than its name; files of one size are found by the hashes of their names.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from strandline.engines.choice import KEYS
from strandline.engines.scan import PLACE, PLACE_ROW, Inside, ScanFile, duck_scan, has_places, listed
from strandline.model.change import HASH, OP, SEQ, UPSERT
from strandline.tables.fold import LogFiles, mark_sql
from strandline.tables.merge import Files, TableAt, beats_base_sql, winning_sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_WORD = 64
_WORDS = "_sl_words"
# Slots for 1,000 files: 2 MiB.
_MOST_SLOT_BITS = 18


@dataclass(frozen=True)
class Slots:
    """A slot for each of some numbers: some bits of the number, which differ from those of the others."""

    shift: int
    bits: int

    @staticmethod
    def find(numbers: np.ndarray) -> Slots | None:
        """The fewest slots for these numbers; None when they would be too many."""
        widest = int(numbers.max(initial=0)).bit_length()
        for bits in range(len(numbers).bit_length(), _MOST_SLOT_BITS + 1):
            for shift in range(max(0, widest - bits) + 1):
                slots = Slots(shift, bits)
                if len(np.unique(slots.of(numbers))) == len(numbers):
                    return slots
        return None

    @property
    def count(self) -> int:
        return 1 << self.bits

    def of(self, numbers: np.ndarray) -> np.ndarray:
        return (numbers >> self.shift) & (self.count - 1)

    def column(self, number: Column) -> Column:
        from pyspark.sql import functions as F

        return F.shiftright(number, self.shift).bitwiseAND(self.count - 1).cast("int")


@dataclass(frozen=True)
class LiveRows:
    """The rows that count, of all files of a table at a seq. `sizes` and `names` are the slots of the directory; those
    of the names, which follow, are for files of one size. Files outside of `partial` have no row that does not count,
    those in `dead` no other."""

    words: DataFrame
    sizes: Slots
    names: Slots | None
    partial: frozenset[str]
    dead: frozenset[str]

    def files(self, merge: TableAt, files: Files) -> list[ScanFile]:
        """The files to scan, without those that have no row that counts. Packs are scanned as a whole."""
        scans = _scan_all(merge, files.baseline, files.log)
        return [replace(scan, inside=None) for scan in scans if _name(scan) not in self.dead]

    def keep(self, frame: DataFrame, files: Iterable[ScanFile]) -> DataFrame:
        """The rows of a scan of these files that count."""
        from pyspark.sql import functions as F

        if self.partial.isdisjoint(map(_name, files)):
            return frame
        # The table may have a column `_metadata` of its own.
        place, words = frame.metadataColumn("_metadata"), self.words.scalar()
        row = place["row_index"]
        begin = F.get(words, self.sizes.column(place["file_size"]))
        if self.names is not None:
            by_name = self.names.column(F.crc32(place["file_name"].cast("binary"))) + self.sizes.count
            begin = F.coalesce(begin, F.get(words, by_name))
        word = F.get(words, (begin + F.shiftright(row, 6)).cast("int"))
        bit = F.getbit(word, row.bitwiseAND(_WORD - 1).cast("int"))
        return frame.where(F.coalesce(bit, F.lit(0)) == 0)


def may_mark_rows(merge: TableAt) -> bool:
    """Whether the driver looks up the rows that count: for tables of moderate size on a disk, where Spark's own reader
    tells the number of each row."""
    files = merge.files()
    is_held = KEYS.holds(rows=sum(file.rows for file in files), files=len(files))
    is_told = merge.log.storage.is_local and has_places([*merge.definition.log_schemas, *merge.baseline_schemas])
    return is_held and is_told and merge.only is None


def find_live_rows(spark: SparkSession, cursor: Any, merge: TableAt, fold: str) -> LiveRows | None:
    """The rows of the table that count; `fold` names the fold in DuckDB. None when the directory would be too large."""
    base, log = merge.base_files(), merge.log_files()
    scans = _scan_all(merge, base, log)
    hashes = np.array([zlib.crc32(_name(scan).encode()) for scan in scans], dtype=np.int64)
    distinct, which, files = np.unique([scan.size for scan in scans], return_inverse=True, return_counts=True)
    is_tied = files[which] > 1
    sizes, names = Slots.find(distinct), Slots.find(hashes[is_tied])
    if sizes is None or names is None:
        return None
    counts = np.array([file.rows for file in (*base, *(file for _, file in log))], dtype=np.int64)
    begins = np.concatenate([[0], np.cumsum(-(-counts // _WORD))])
    found = cursor.sql(dead_rows_sql(merge, fold)).to_arrow_table()
    place, row = (found[name].to_numpy() for name in (PLACE, PLACE_ROW))
    bits = np.zeros(int(begins[-1]) * _WORD, dtype=bool)
    bits[begins[place] * _WORD + row] = True
    gone = np.array([int(bits[a * _WORD : b * _WORD].sum()) for a, b in pairwise(begins)])
    first = sizes.count + names.count
    words = np.concatenate([np.zeros(first, "<i8"), np.packbits(bits, bitorder="little").view("<i8")])
    at = np.where(is_tied, sizes.count + names.of(hashes), sizes.of(distinct[which]))
    # Files of which all rows count begin behind the end of the array, where there is no bit.
    words[at] = np.where(gone > 0, first + begins[:-1], len(words))
    is_null = np.zeros(len(words), dtype=bool)
    is_null[sizes.of(distinct[files > 1])] = True
    return LiveRows(
        _send_words(spark, pa.array(words, mask=is_null)),
        sizes,
        names if is_tied.any() else None,
        frozenset(_name(scan) for scan, count in zip(scans, gone, strict=True) if count),
        frozenset(_name(scan) for scan, count, rows in zip(scans, gone, counts, strict=True) if count == rows),
    )


def _send_words(spark: SparkSession, words: pa.Array) -> DataFrame:
    from pyspark.sql.types import ArrayType, LongType, StructField, StructType

    # For an array that may have nulls, Spark would look for one before each access.
    kind = pa.list_(pa.field("element", pa.int64(), words.null_count > 0))
    column = pa.ListArray.from_arrays(pa.array([0, len(words)], pa.int32()), words, type=kind)
    schema = StructType([StructField(_WORDS, ArrayType(LongType(), words.null_count > 0), False)])
    return spark.createDataFrame(pa.table({_WORDS: column}), schema=schema)


def dead_rows_sql(merge: TableAt, fold: str) -> str:
    """SQL for the places (see `duck_scan`) of all rows that do not count. Files are numbered in the order of the table:
    those of the baseline, then those of the log."""
    definition = merge.definition
    base, log = merge.base_files(), merge.log_files()
    places = {scan.url: at for at, scan in enumerate(_scan_all(merge, base, log))}
    deciding = [*definition.key, *([definition.version] if definition.version else [])]
    place, beaten = f"SELECT {PLACE}, {PLACE_ROW} FROM", f"SEMI JOIN {fold} f ON {beats_base_sql(definition)}"
    parts = []
    if base:
        scan = duck_scan(merge.baseline.scans(base), merge.baseline_schemas, deciding, places=places)
        parts.append(f"{place} ({scan}) b {beaten}")
    first, later = merge.split(log)
    if first:
        parts.append(f"{place} ({_log_sql(merge, first, deciding, places)}) b {beaten}")
        other = f"{OP} <> '{UPSERT}' OR {SEQ} <= {mark_sql(merge.baseline.marks)}"
        parts.append(f"{place} ({_log_sql(merge, first, [HASH, OP], places)}) WHERE {other}")
    key = listed([*definition.key, SEQ])
    won = winning_sql(merge, fold, Files(base, log))
    parts.append(f"{place} ({_log_sql(merge, later, definition.key, places)}) ANTI JOIN ({won}) USING ({key})")
    return " UNION ALL ".join(parts)


def _log_sql(merge: TableAt, files: LogFiles, columns: Sequence[str], places: Mapping[str, int]) -> str:
    scans = _scan_all(merge, [], files)
    return duck_scan(scans, merge.definition.log_schemas, columns, number_as=SEQ, places=places)


def _scan_all(merge: TableAt, base: Iterable[Any], log: LogFiles) -> list[ScanFile]:
    """The files as a whole: changes in a pack that lie outside of the range are not in the fold."""
    packs = (replace(s, inside=s.inside and Inside(s.inside.column)) for s in merge.log.scans(log))
    return [*merge.baseline.scans(base), *packs]


def _name(file: ScanFile) -> str:
    return file.url.rsplit("/", 1)[1]
