"""Vacuum a lake: its tables, and the files outside of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from strandline.jobs.leftovers import Leftover, leftovers, sweep
from strandline.jobs.vacuum import VacuumReport, vacuum
from strandline.model import duration
from strandline.model.settings import TableSettings
from strandline.progress import Progress, silent
from strandline.tables.broken import BrokenTable, try_table
from strandline.tables.collection import Tables


@dataclass(frozen=True)
class LakeVacuum:
    """What a vacuum of a lake did: each table's report, and the leftovers outside of tables."""

    tables: tuple[VacuumReport | BrokenTable, ...]
    leftovers: tuple[Leftover, ...]
    is_dry_run: bool

    def to_dict(self) -> dict[str, Any]:
        gone = [found for found in self.leftovers if found.is_deletable]
        return {
            "tables": [table.to_dict() for table in self.tables],
            "leftovers": [found.to_dict() for found in self.leftovers],
            "leftover_files": sum(len(found.infos) for found in gone),
            "leftover_bytes": sum(found.bytes for found in gone),
            "is_dry_run": self.is_dry_run,
        }


def vacuum_lake(
    lake: Tables,
    names: Sequence[str],
    *,
    grace: object | None = None,
    keep: object | None = None,
    with_leftovers: bool,
    dry_run: bool = False,
    progress: Progress = silent,
) -> LakeVacuum:
    """Vacuum these tables, and with `with_leftovers` the files outside of tables. A broken table stops no other."""
    grace_s = None if grace is None else duration.seconds(grace, "grace")
    keep_s = None if keep is None else duration.seconds(keep, "keep")

    def act(name: str) -> VacuumReport:
        return vacuum(lake.table(name), grace_s=grace_s, keep_s=keep_s, dry_run=dry_run, progress=progress)

    tables = tuple(try_table(name, partial(act, name)) for name in names)
    found: list[Leftover] = []
    if with_leftovers:
        outside_s = duration.seconds(TableSettings().grace, "grace") if grace_s is None else grace_s
        found = leftovers(lake.storage, now_s=lake.storage.now_s(), grace_s=outside_s)
        if not dry_run:
            sweep(lake.storage, found)
    return LakeVacuum(tables, tuple(found), dry_run)
