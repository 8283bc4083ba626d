"""The choice between the driver and Spark: how much work this process does itself, with DuckDB.

Spark takes about ten seconds to start. The driver finishes work within these limits sooner than that. The environment
variable `STRANDLINE_ENGINE` (`driver` or `spark`) decides for every job of the process instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, get_args

from strandline.errors import Invalid

ENGINE = "STRANDLINE_ENGINE"
Engine = Literal["auto", "driver", "spark"]

_chosen: ContextVar[Engine | None] = ContextVar("engine", default=None)


def chosen_engine() -> Engine:
    """The engine that the current call asked for, else the one of the environment."""
    chosen = _chosen.get()
    return check_engine(os.environ.get(ENGINE, "auto"), ENGINE) if chosen is None else chosen


def check_engine(engine: str, where: str = "engine") -> Engine:
    """The name of an engine, checked."""
    if engine not in get_args(Engine):
        raise Invalid(f"{where} is {engine!r}; expected auto, driver or spark")
    return engine  # type: ignore[return-value]


@contextmanager
def engine_of_call(engine: Engine | None) -> Iterator[None]:
    """Choose the engine for the jobs of a block; None leaves the choice to the environment."""
    token = _chosen.set(None if engine is None else check_engine(engine))
    try:
        yield
    finally:
        _chosen.reset(token)


@dataclass(frozen=True)
class DriverLimit:
    """The most rows, the most bytes of rows in memory, and the most files to read, that the driver takes."""

    rows: int
    raw_bytes: int
    files: int = sys.maxsize

    def holds(self, *, rows: int = 0, raw_bytes: int = 0, files: int = 0) -> bool:
        return rows <= self.rows and raw_bytes <= self.raw_bytes and files <= self.files

    def takes(self, *, rows: int = 0, raw_bytes: int = 0, files: int = 0) -> bool:
        """Whether the driver does this work: as the caller or the environment says, else when the limit holds it."""
        engine = chosen_engine()
        return engine == "driver" or (engine == "auto" and self.holds(rows=rows, raw_bytes=raw_bytes, files=files))

    @property
    def is_forced(self) -> bool:
        """Whether the caller or the environment has chosen the engine."""
        return chosen_engine() != "auto"


# Rows from files to files: DuckDB merges and sorts them in columns, and spills to disk.
BULK = DriverLimit(2_000_000, 512 << 20)
# Rows to a sink: a lane encodes them one by one and waits for the destination. Spark runs many lanes at once.
DELIVERY = DriverLimit(200_000, 64 << 20)
# Other people's files, whose rows are not counted: the bytes of their text.
INGEST = DriverLimit(sys.maxsize, 512 << 20, 5_000)
# Rows of a table whose keys the driver looks up to find those that no longer count, once a seq.
KEYS = DriverLimit(16_000_000, sys.maxsize, 1_000)
