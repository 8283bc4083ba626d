"""Hash keys to vnodes, equally in Python and in Spark.

The hash of a key is crc32 of its canonical text: each field as `<length in bytes>:<text>`, integers in decimal,
dates as days and times as microseconds since 1970, booleans as true/false, binary in lower-case hex. Spark
computes it natively; the golden vectors in the tests keep both sides equal for ever, because stored files depend
on it. A vnode is the hash's top bits.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from strandline.model.names import backticked

if TYPE_CHECKING:
    from pyspark.sql import Column

HASH_BITS = 32
_PIECE_ROWS = 8192


def hash_keys(keys: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Array:
    """The hash of each row's key fields, as int64."""
    fields = [_key_text(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column) for column in keys]
    parts: list[pa.Array] = []
    for field in fields:
        parts += [pc.cast(pc.binary_length(field), pa.string()), pa.scalar(":"), field]
    if len(fields[0]) == 0:
        return pa.array([], pa.int64())
    joined = pc.binary_join_element_wise(
        *(pc.cast(p, pa.large_string()) for p in parts), pa.scalar("", pa.large_string())
    )
    crc32, texts = zlib.crc32, joined.cast(pa.large_binary())
    # Python objects take many times the memory of the texts, so few exist at once.
    pieces = (texts.slice(at, _PIECE_ROWS).to_pylist() for at in range(0, len(texts), _PIECE_ROWS))
    return pa.array([crc32(text) for piece in pieces for text in piece], pa.int64())


def _key_text(column: pa.Array) -> pa.Array:
    kind = column.type
    if pt.is_timestamp(kind):
        column = column.cast(pa.int64())
    elif pt.is_date32(kind):
        column = column.cast(pa.int32())
    elif pt.is_binary(kind):
        return pa.array([None if v is None else v.hex() for v in column.to_pylist()], pa.string())
    return column.cast(pa.string())


def spark_hash(schema: pa.Schema, keys: Sequence[str]) -> Column:
    """The same hash as a Spark expression over the key columns."""
    from pyspark.sql import functions as F

    parts: list[Column] = []
    for name in keys:
        column, kind = F.col(backticked(name)), schema.field(name).type
        if pt.is_timestamp(kind):
            if kind.tz:
                column = F.unix_micros(column)
            else:
                # Not timestamp_diff: that goes through the session's time zone, where some local times do not exist.
                # Not a difference of times: its type depends on a setting of the session.
                days = F.unix_date(column.cast("date")).cast("bigint")
                minutes = (days * 24 + F.hour(column)) * 60 + F.minute(column)
                seconds = F.extract(F.lit("SECOND"), column).cast("decimal(8, 6)")
                column = minutes * 60_000_000 + (seconds * 1_000_000).cast("bigint")
        elif pt.is_date32(kind):
            column = F.unix_date(column)
        elif pt.is_binary(kind):
            column = F.lower(F.hex(column))
        text = column.cast("string")
        parts += [F.octet_length(text).cast("string"), F.lit(":"), text]
    return F.crc32(F.concat(*parts).cast("binary"))


def shift_for(vnodes: int) -> int:
    """How far to shift a hash right to get its vnode; `vnodes` is a power of two."""
    return HASH_BITS - (vnodes.bit_length() - 1)


def hash_condition(vnodes: Iterable[int], of: int) -> str:
    """SQL for the condition that a hash lies in one of these vnodes, out of `of`; neighbours are one range."""
    shift, ranges = shift_for(of), list[list[int]]()
    for vnode in sorted(vnodes):
        if ranges and ranges[-1][1] == vnode:
            ranges[-1][1] = vnode + 1
        else:
            ranges.append([vnode, vnode + 1])
    parts = [f"_hash >= {first << shift} AND _hash < {end << shift}" for first, end in ranges]
    return parts[0] if len(parts) == 1 else f"({' OR '.join(f'({part})' for part in parts) or 'false'})"


def vnode_of(hash_: int, vnodes: int) -> int:
    return hash_ >> shift_for(vnodes)


def same_as_next(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """For each row of a sorted table, whether the next row has equal values in `names`."""
    if rows.num_rows < 2:
        return pa.array([False] * rows.num_rows, pa.bool_())
    same = None
    for name in names:
        column = rows.column(name).combine_chunks()
        equal = pc.equal(column.slice(0, len(column) - 1), column.slice(1))
        same = equal if same is None else pc.and_(same, equal)
    return pa.concat_arrays([same, pa.array([False])])
