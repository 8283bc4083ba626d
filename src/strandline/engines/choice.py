"""The one choice between the driver and Spark: how much work this process does itself, with DuckDB.

Spark takes about ten seconds to start. Until then the driver is done with whatever is within a limit.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DriverLimit:
    """How many rows, and how many bytes of them in memory, the driver takes at most."""

    rows: int
    raw_bytes: int

    def holds(self, *, rows: int = 0, raw_bytes: int = 0) -> bool:
        return rows <= self.rows and raw_bytes <= self.raw_bytes


# Rows that go from files to files: DuckDB merges and sorts them in columns, and spills what memory does not hold.
BULK = DriverLimit(2_000_000, 512 << 20)
# Rows that go to a sink: a lane encodes them one by one and waits for the destination. Spark runs many lanes at once.
DELIVERY = DriverLimit(200_000, 64 << 20)
