"""Arrow rows as frames of pandas and polars."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from strandline.errors import Unavailable
from strandline.model import types as schemas


def to_pandas(rows: pa.Table) -> Any:
    """Rows as a pandas frame. Integers with nulls get pandas' own nullable type: as floats, large ones would change."""
    import pandas

    exact = {pa.int8(): "Int8", pa.int16(): "Int16", pa.int32(): "Int32", pa.int64(): "Int64"}
    frame = rows.to_pandas()
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if pt.is_integer(column.type) and column.null_count:
            frame[name] = column.to_pandas(types_mapper=lambda kind: pandas.array([], dtype=exact[kind]).dtype)
    return frame


def to_polars(rows: pa.Table) -> Any:
    """Rows as a polars frame, JSON as text; `Unavailable` when polars is not installed."""
    try:
        import polars
    except ImportError as error:
        raise Unavailable(
            "polars is not installed", hint="Install it: pip install polars. Or use to_pandas() or to_arrow()."
        ) from error
    return polars.from_arrow(schemas.conform(rows, schemas.storage_schema(rows.schema)))
