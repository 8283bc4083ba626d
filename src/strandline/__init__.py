"""Strandline: incremental lakehouse tables on Apache Spark. A table is a baseline plus a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strandline.errors import Conflict, Corrupt, Internal, Invalid, NotFound, NotRetained, StrandlineError, Unavailable
from strandline.model.change import Commit

if TYPE_CHECKING:
    from strandline.consumers.contract import Receipt
    from strandline.consumers.log_consumer import LogConsumer
    from strandline.consumers.work import Work
    from strandline.lake import Lake
    from strandline.pipeline.runner import TickReport
    from strandline.sinks.delta import DeltaSink
    from strandline.sinks.http import HttpSink
    from strandline.sinks.iceberg import IcebergSink
    from strandline.sinks.parquet import ParquetSink
    from strandline.table import HistoryEntry, Table

__version__ = "0.1.0"
__all__ = [
    "Commit",
    "Conflict",
    "Corrupt",
    "DeltaSink",
    "HistoryEntry",
    "HttpSink",
    "IcebergSink",
    "Internal",
    "Invalid",
    "Lake",
    "LogConsumer",
    "NotFound",
    "NotRetained",
    "ParquetSink",
    "Receipt",
    "StrandlineError",
    "Table",
    "TickReport",
    "Unavailable",
    "Work",
]

_HOMES = {
    "DeltaSink": "strandline.sinks.delta",
    "HistoryEntry": "strandline.table",
    "HttpSink": "strandline.sinks.http",
    "IcebergSink": "strandline.sinks.iceberg",
    "Lake": "strandline.lake",
    "LogConsumer": "strandline.consumers.log_consumer",
    "ParquetSink": "strandline.sinks.parquet",
    "Receipt": "strandline.consumers.contract",
    "Table": "strandline.table",
    "TickReport": "strandline.pipeline.runner",
    "Work": "strandline.consumers.work",
}


def __getattr__(name: str) -> Any:
    """Load the front when it is asked for: Spark tasks import parts of this package and need only pyarrow."""
    if name not in _HOMES:
        raise AttributeError(f"module 'strandline' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
