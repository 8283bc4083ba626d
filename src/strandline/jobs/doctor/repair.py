"""Repair findings.

After a crash: a table without its bad checkpoints is read from a good one, or from its first commit. All commit files
after that exist.
"""

from __future__ import annotations

from dataclasses import replace

from strandline.jobs.doctor.delta_tables import DeltaExam
from strandline.jobs.doctor.finding import Finding
from strandline.storage.checkpoints import describe_difference
from strandline.storage.delta import DeltaLog
from strandline.storage.delta_files import CommitChain
from strandline.storage.open import Storage
from strandline.storage.snapshot import Snapshot


def repair_finding(storage: Storage, finding: Finding) -> Finding:
    """Repair a finding if possible; the finding, marked if it was repaired."""
    if finding.repair == "checkpoint":
        return replace(finding, is_repaired=_replace_checkpoints(storage, finding.paths[0]))
    return finding


def _replace_checkpoints(storage: Storage, folder: str) -> bool:
    """Replace the bad checkpoints of a Delta table by one made from its commit files. All of them must exist, except
    those that a good checkpoint replaces.

    A vacuum may run meanwhile: a checkpoint that is good, or that replaces commit files, stays."""
    before = _new_exam(storage, folder)
    if not before.commits or not before.is_complete:
        return False
    delta = DeltaLog(storage, folder)
    checkpoints = delta.chain.checkpoints
    state = before.base
    for version in before.checkpoints:
        state = delta.chain.extend(state, version)
        if _is_bad(delta.chain, version, state) and not checkpoints.says_alone(version):
            storage.delete([checkpoints.path(version), checkpoints.digest_path(version)])
    pointer = checkpoints.pointer_path
    if checkpoints.pointed_version() not in delta.chain.files()[1]:
        # A pointer to no checkpoint would keep a new one from being written.
        storage.delete([pointer])
    if delta.refresh().version not in delta.chain.files()[1]:
        delta.checkpoint()
    kept = delta.chain.files()[1]
    if kept and checkpoints.pointed_version() not in kept:
        with storage.output(pointer) as stream:
            stream.write(checkpoints.pointer_bytes(max(kept)))
    after = _new_exam(storage, folder)
    after.check_checkpoints()
    return after.snapshot is not None and not after.findings


def _is_bad(chain: CommitChain, version: int, state: Snapshot) -> bool:
    """Whether a checkpoint is damaged, lacks its digest file, or differs from `state`, which the commits give."""
    found, damage = chain.try_checkpoint(version)
    if found is None:
        return damage is not None
    return not found.is_verified or (state.version == version and describe_difference(found.snapshot, state) != "")


def _new_exam(storage: Storage, folder: str) -> DeltaExam:
    return DeltaExam(storage, folder, folder, {info.path: info for info in storage.list(folder)})
