"""The choice between the driver and Spark: how much work this process does itself, with DuckDB.

Spark takes about ten seconds to start. The driver finishes work within these limits sooner than that. The environment
variable `STRANDLINE_ENGINE` (`driver` or `spark`) decides for every job of the process instead.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from strandline.errors import Invalid

ENGINE = "STRANDLINE_ENGINE"


@dataclass(frozen=True)
class DriverLimit:
    """The most rows, and the most bytes of rows in memory, that the driver takes."""

    rows: int
    raw_bytes: int

    def holds(self, *, rows: int = 0, raw_bytes: int = 0) -> bool:
        return rows <= self.rows and raw_bytes <= self.raw_bytes

    def takes(self, *, rows: int = 0, raw_bytes: int = 0) -> bool:
        """Whether the driver does this work: as the environment says, else when the limit holds it."""
        forced = os.environ.get(ENGINE, "auto")
        if forced not in ("auto", "driver", "spark"):
            raise Invalid(f"{ENGINE} is {forced!r}; expected auto, driver or spark")
        return forced == "driver" or (forced == "auto" and self.holds(rows=rows, raw_bytes=raw_bytes))


# Rows from files to files: DuckDB merges and sorts them in columns, and spills to disk.
BULK = DriverLimit(2_000_000, 512 << 20)
# Rows to a sink: a lane encodes them one by one and waits for the destination. Spark runs many lanes at once.
DELIVERY = DriverLimit(200_000, 64 << 20)
