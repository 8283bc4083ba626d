"""The statistics of a file as Delta keeps them in an add action: counts, and bounds that hold for every row."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from strandline.model.types import is_json

_STATS_COLUMNS = 32
_STATS_CHARS = 64


def bounded_columns(schema: pa.Schema) -> list[str] | bool:
    """The leaves that get bounds in the footer, as a Parquet writer takes them: all but floats. Bounds of floats leave
    out NaN, which counts as larger than every number: a reader that relies on them would lose rows, or take a
    condition to hold for all of them."""
    leaves = [leaf for field in schema for leaf in _leaves(field.name, field.type)]
    return True if all(is_bounded for _, is_bounded in leaves) else [name for name, is_bounded in leaves if is_bounded]


def _leaves(name: str, kind: pa.DataType) -> Iterator[tuple[str, bool]]:
    if pt.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{name}.{field.name}", field.type)
    elif pt.is_map(kind):
        yield from _leaves(f"{name}.key_value.key", kind.key_type)
        yield from _leaves(f"{name}.key_value.value", kind.item_type)
    elif pt.is_list(kind):
        yield from _leaves(f"{name}.list.element", kind.value_type)
    else:
        yield name, not pt.is_floating(kind)


def file_stats(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """Row count, minima, maxima and null counts, as Delta keeps them in an add action."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()
    wanted = {f.name for f in list(schema)[:_STATS_COLUMNS] if not pt.is_nested(f.type) and not is_json(f.type)}
    leaves = [
        (index, name) for index in range(metadata.num_columns) if (name := metadata.schema.column(index).path) in wanted
    ]
    for group in range(metadata.num_row_groups):
        chunks = metadata.row_group(group)
        for index, name in leaves:
            stats = chunks.column(index).statistics
            if stats is None:
                unknown.add(name)
                continue
            if stats.has_null_count:
                nulls[name] = nulls.get(name, 0) + stats.null_count
            if stats.has_min_max:
                try:
                    low, high = stats.min, stats.max
                except (ValueError, OverflowError):
                    # A time outside of Python's years.
                    unknown.add(name)
                    continue
                lows[name] = min(lows.get(name, low), low)
                highs[name] = max(highs.get(name, high), high)
            elif stats.null_count != chunks.num_rows:
                unknown.add(name)
    low_texts = {
        n: v for n in lows if n not in unknown and (v := _low_bound(lows[n], schema.field(n).type)) is not None
    }
    high_texts = {
        n: v for n in highs if n not in unknown and (v := _high_bound(highs[n], schema.field(n).type)) is not None
    }
    return {
        "numRecords": metadata.num_rows,
        "minValues": low_texts,
        "maxValues": high_texts,
        "nullCount": {n: c for n, c in nulls.items() if n not in unknown},
    }


def _low_bound(value: Any, kind: pa.DataType) -> Any:
    return value[:_STATS_CHARS] if pt.is_string(kind) else _bound_text(value, kind)


def _high_bound(value: Any, kind: pa.DataType) -> Any:
    """An upper bound; none for a long string, which has no short one."""
    if pt.is_string(kind):
        return value if len(value) <= _STATS_CHARS else None
    return _bound_text(value, kind)


def _bound_text(value: Any, kind: pa.DataType) -> Any:
    if pt.is_binary(kind) or pt.is_boolean(kind) or pt.is_decimal(kind):
        return None
    if pt.is_timestamp(kind):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + ("Z" if kind.tz else "")
    if isinstance(value, dt.date):
        return value.isoformat()
    return value
