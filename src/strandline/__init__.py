"""Strandline: incremental lakehouse tables on Apache Spark. A table is a baseline plus a log."""

from __future__ import annotations

# Not from `typing`: this module loads before the command line hears Ctrl-C. Type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from strandline.consumers.contract import Receipt
    from strandline.consumers.log_consumer import LogConsumer
    from strandline.consumers.work import Work
    from strandline.errors import (
        Conflict,
        Corrupt,
        Internal,
        Invalid,
        NotFound,
        NotRetained,
        StrandlineError,
        Unavailable,
    )
    from strandline.lake import Lake
    from strandline.model.change import Commit
    from strandline.model.json_text import JsonText, json_values
    from strandline.pipeline import graph as graph
    from strandline.pipeline.report import TickReport
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
    "JsonText",
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
    "graph",
    "json_values",
]

_HOMES = {
    "Commit": "strandline.model.change",
    "Conflict": "strandline.errors",
    "Corrupt": "strandline.errors",
    "DeltaSink": "strandline.sinks.delta",
    "HistoryEntry": "strandline.table",
    "HttpSink": "strandline.sinks.http",
    "IcebergSink": "strandline.sinks.iceberg",
    "Internal": "strandline.errors",
    "Invalid": "strandline.errors",
    "JsonText": "strandline.model.json_text",
    "Lake": "strandline.lake",
    "LogConsumer": "strandline.consumers.log_consumer",
    "NotFound": "strandline.errors",
    "NotRetained": "strandline.errors",
    "ParquetSink": "strandline.sinks.parquet",
    "Receipt": "strandline.consumers.contract",
    "StrandlineError": "strandline.errors",
    "Table": "strandline.table",
    "TickReport": "strandline.pipeline.report",
    "Unavailable": "strandline.errors",
    "Work": "strandline.consumers.work",
    "json_values": "strandline.model.json_text",
}


def __getattr__(name: str) -> object:
    """Load a name when it is asked for: `import strandline` costs a millisecond, and Spark tasks, which import parts of
    this package, need only pyarrow."""
    from importlib import import_module

    if name == "graph":
        return import_module("strandline.pipeline.graph")
    if name not in _HOMES:
        raise AttributeError(f"module 'strandline' has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
