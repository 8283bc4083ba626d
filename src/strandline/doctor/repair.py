"""Put right what was found, after looking again whether it is still so.

After a crash: what was deleted is gone and what was not is found again by the next examination. Data files go
before the commit files that describe them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from strandline.catalog import Catalog
from strandline.doctor.deltas import DeltaExam
from strandline.doctor.finding import Finding
from strandline.storage import Storage
from strandline.storage.delta import DeltaLog


def repaired(storage: Storage, finding: Finding) -> Finding:
    """The finding, marked if it could be repaired."""
    if finding.repair == "delete":
        storage.delete(list(_deletable(storage, finding.paths)))
        return replace(finding, is_repaired=True)
    if finding.repair == "checkpoint":
        return replace(finding, is_repaired=_write_checkpoint(storage, finding.paths[0]))
    return finding


def _deletable(storage: Storage, paths: tuple[str, ...]) -> Iterator[str]:
    """The paths that still nothing claims: a commit, or the catalog, may have taken some of them meanwhile."""
    live = {entry.folder for entry in Catalog(storage).refresh().tables.values()}
    claimed: dict[str, set[str] | None] = {}
    for path in paths:
        parts = path.split("/")
        is_loose = parts[0] != "tables" or parts[-1].startswith(".")
        if is_loose or "/".join(parts[:3]) not in live:
            yield path
            continue
        folder, name = "/".join(parts[:4]), "/".join(parts[4:])
        if folder not in claimed:
            claimed[folder] = _exam(storage, folder).claimed()
        known = claimed[folder]
        if known is not None and name not in known:
            yield path


def _write_checkpoint(storage: Storage, folder: str) -> bool:
    """Replace the checkpoints of a Delta table by one made from its commit files, all of which must be there."""
    before = _exam(storage, folder)
    if not before.commits or not before.is_complete:
        return False
    checkpoints = [name for name in before.names("_delta_log/") if name.endswith(".checkpoint.parquet")]
    storage.delete(f"{folder}/{name}" for name in ["_delta_log/_last_checkpoint", *checkpoints])
    DeltaLog(storage, folder).checkpoint()
    after = _exam(storage, folder)
    after.check_checkpoints()
    return after.snapshot is not None and not after.findings


def _exam(storage: Storage, folder: str) -> DeltaExam:
    return DeltaExam(storage, folder, folder, {info.path: info for info in storage.list(folder)})
