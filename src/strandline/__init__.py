"""Strandline: incremental lakehouse tables on Apache Spark. A table is a baseline plus a log."""

from strandline.change import Commit
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
from strandline.table import HistoryEntry, Table

__version__ = "0.1.0"
__all__ = [
    "Commit",
    "Conflict",
    "Corrupt",
    "HistoryEntry",
    "Internal",
    "Invalid",
    "Lake",
    "NotFound",
    "NotRetained",
    "StrandlineError",
    "Table",
    "Unavailable",
]
