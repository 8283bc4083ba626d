"""Put right what was found.

After a crash: a table without its later checkpoints is read from the one that stands alone, or from its first commit.
All commit files from there on exist.
"""

from __future__ import annotations

from dataclasses import replace

from strandline.doctor.deltas import DeltaExam
from strandline.doctor.finding import Finding
from strandline.storage import Storage
from strandline.storage.delta import DeltaLog


def repaired(storage: Storage, finding: Finding) -> Finding:
    """The finding, marked if it could be repaired."""
    if finding.repair == "checkpoint":
        return replace(finding, is_repaired=_write_checkpoint(storage, finding.paths[0]))
    return finding


def _write_checkpoint(storage: Storage, folder: str) -> bool:
    """Replace the checkpoints of a Delta table by one made from its commit files, all of which must be there; but for
    those that the checkpoint stands for from which they lead on."""
    before = _exam(storage, folder)
    if not before.commits or not before.is_complete:
        return False
    kept = f"{before.base.version:020d}.checkpoint."
    checkpoints = [n for n in before.names("_delta_log/") if ".checkpoint." in n and kept not in n]
    storage.delete(f"{folder}/{name}" for name in ["_delta_log/_last_checkpoint", *checkpoints])
    DeltaLog(storage, folder).checkpoint()
    after = _exam(storage, folder)
    after.check_checkpoints()
    return after.snapshot is not None and not after.findings


def _exam(storage: Storage, folder: str) -> DeltaExam:
    return DeltaExam(storage, folder, folder, {info.path: info for info in storage.list(folder)})
