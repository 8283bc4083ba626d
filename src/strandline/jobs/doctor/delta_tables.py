"""Examine one Delta table of a lake: its commits, its checkpoints, its files, and files that are not its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow.parquet as pq

from strandline.errors import Corrupt, StrandlineError, Unavailable
from strandline.jobs.doctor.finding import Finding, Repair, Severity
from strandline.jobs.vacuum import is_ours
from strandline.storage.checkpoints import Checkpoint, describe_difference
from strandline.storage.commits import RESTORE, CommitFile
from strandline.storage.delta import DeltaLog
from strandline.storage.open import FileInfo, Storage
from strandline.storage.snapshot import NOTHING, Snapshot
from strandline.tables.horizon import horizons

_COMMIT = re.compile(r"\d{20}\.json\Z")
_OF_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.(?:parquet|digest)\Z")
_LOG_FILE = re.compile(r"_last_checkpoint\Z|\d{20}\.(json|crc|checkpoint\.(parquet|digest))\Z")
_POINTER, _CHECKPOINT = "_delta_log/_last_checkpoint", "_delta_log/{:020d}.checkpoint.parquet"
_OF_SEQS = ("trim", "token/", "ingest/")


@dataclass
class DeltaExam:
    """The examination of the Delta table in `folder`. `listing` has the files below it. It was made before anything
    else was read, so a file that a commit claims meanwhile is not taken for an orphan."""

    storage: Storage
    table: str
    folder: str
    listing: Mapping[str, FileInfo]
    findings: list[Finding] = field(default_factory=list)
    is_complete: bool = True

    def add(self, what: str, where: str = "", *, severity: Severity = "wrong", repair: Repair | None = None) -> None:
        path = f"{self.folder}/{where}" if where else self.folder
        paths = (self.folder,) if repair else ()
        self.findings.append(Finding(severity, self.table, what, self.storage.url(path), repair, paths))

    def has_finding(self, where: str) -> bool:
        return any(finding.where == self.storage.url(f"{self.folder}/{where}") for finding in self.findings)

    def names(self, prefix: str = "") -> list[str]:
        start = f"{self.folder}/{prefix}"
        return sorted(path.removeprefix(f"{self.folder}/") for path in self.listing if path.startswith(start))

    @cached_property
    def delta(self) -> DeltaLog:
        return DeltaLog(self.storage, self.folder)

    @cached_property
    def commits(self) -> dict[int, list[dict[str, Any]]]:
        """Every commit file that can be read, by its version."""
        found: dict[int, CommitFile] = {}
        commits = self.delta.chain.commits
        versions = sorted(int(name[-25:-5]) for name in self.names("_delta_log/") if _COMMIT.search(name))
        for version in versions:
            try:
                read = commits.read(version)
                if read is None:
                    continue  # deleted after the listing
                found[version] = read
                if version - 1 in found:
                    commits.check_follows(version, read, found[version - 1].digest)
            except Corrupt as error:
                self.is_complete = False
                self.add(f"{error.message}. {error.hint}", f"_delta_log/{version:020d}.json")
        if not versions:
            self.is_complete = False
            self.add("there are no commit files. Restore them from a backup", "_delta_log")
        self._check_gaps(versions)
        return {version: commit.actions for version, commit in found.items()}

    def _check_gaps(self, versions: Sequence[int]) -> None:
        """Report missing commit files, except those that a checkpoint replaces (`is_alone`)."""
        first = max(self.base.version, 0)
        last = versions[-1] if versions else -1
        missing = sorted({*range(first, last)} - {*versions})
        self.is_complete &= not missing
        doubted = self._doubted_base(last)
        if missing and doubted is not None:
            cleaned = min(doubted, versions[0])
            if missing[0] < cleaned and doubted not in self.checkpoints:
                error = self.delta.chain.checkpoints.missing(doubted)
                self.add(f"{error.message}. {error.hint}", _CHECKPOINT.format(doubted))
            missing = [version for version in missing if version >= cleaned]
        # A checkpoint is written after the commit file of its version and never outlives it. A pointer far past the
        # last commit file is more likely wrong itself.
        signs = sorted({*self.checkpoint_traces, *({self.pointer_version} & {last + 1})})
        after = [v for v in signs if v > max(last, 0) and not self.delta.chain.commits.exists(v)]
        for lost in _runs([*missing, *after]):
            self.is_complete = False
            several = len(lost) > 1
            what = f"commits {lost[0]} to {lost[-1]} are missing" if several else f"commit {lost[0]} is missing"
            under = min((v for v in self.proved_checkpoints if v >= lost[-1]), default=None)
            if lost[-1] > last:
                ends = f"the commit files end with {last}" if versions else "there are no commit files"
                what += f": a checkpoint was written, but {ends}. {RESTORE}"
            elif under is None:
                what += f" before others. {RESTORE}"
            else:
                files = "those files" if several else "that file"
                what += f" under checkpoint {under}: newer versions are readable, older versions are lost."
                what += f" Restore {files} from a backup"
            self.add(what, f"_delta_log/{lost[0]:020d}.json")

    def _doubted_base(self, last: int) -> int | None:
        """The newest checkpoint whose digest file says that it replaces the commit files before it, or the oldest
        checkpoint, when it has no digest file."""
        says = {
            version: self.delta.chain.checkpoints.says_alone(version)
            for version in sorted({*self.checkpoint_traces, self.pointer_version})
            if 0 <= version <= last
        }
        alone = [version for version, is_alone in says.items() if is_alone]
        return max(alone) if alone else next((v for v in [*says][:1] if says[v] is None), None)

    @cached_property
    def proved_checkpoints(self) -> dict[int, Checkpoint]:
        """The checkpoints that match their digests, by version."""
        found = {version: self.delta.chain.try_checkpoint(version)[0] for version in self.checkpoints}
        return {version: each for version, each in found.items() if each is not None and each.is_verified}

    @cached_property
    def base(self) -> Snapshot:
        """The snapshot from which the commit files lead to the head: the checkpoint that replaces older ones, or
        nothing."""
        alone = [version for version, found in self.proved_checkpoints.items() if found.is_alone]
        return self.proved_checkpoints[max(alone)].snapshot if alone else NOTHING

    @cached_property
    def checkpoints(self) -> list[int]:
        """The versions that have a checkpoint now, which may differ from the listing."""
        return sorted(self.delta.chain.files()[1])

    @cached_property
    def checkpoint_traces(self) -> list[int]:
        """The versions that have, or had, a checkpoint, by the names of files."""
        return sorted({int(found.group(1)) for found in map(_OF_CHECKPOINT.search, self.names("_delta_log/")) if found})

    @cached_property
    def pointer_version(self) -> int:
        """The version that the pointer names, -1 when it names none."""
        found = self.delta.chain.checkpoints.pointed_version()
        return -1 if found is None else found

    @cached_property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot, from the commit files when they are complete."""
        _ = self.commits
        try:
            snapshot, replayed = self._replay()
            if replayed.version < snapshot.version:
                # A vacuum deleted commit files after the checkpoint `base` was read.
                for name in ("base", "proved_checkpoints", "checkpoints"):
                    vars(self).pop(name, None)
                snapshot, replayed = self._replay()
        except Unavailable:
            raise
        except StrandlineError as error:
            where = str(error.fields.get("path", self.folder)).removeprefix(self.folder).lstrip("/")
            if not self.has_finding(where):
                self.add(f"the table cannot be opened: {error.message}", where)
            return None
        if difference := describe_difference(snapshot, replayed):
            self.add(f"checkpoint and commit files disagree: {difference}", "_delta_log", repair="checkpoint")
        return replayed

    def _replay(self) -> tuple[Snapshot, Snapshot]:
        """The newest snapshot, and the same from the commit files when they are complete."""
        base = self.base
        snapshot = self.delta.refresh()
        return snapshot, self.delta.chain.extend(base, snapshot.version) if self.is_complete else snapshot

    def check_checkpoints(self) -> None:
        """Every checkpoint is as it was written, and the pointer names one that exists. A checkpoint without a digest
        file is wrong when no commits say the same: nothing else has its facts, and a flipped bit is not noticed."""
        _ = self.commits
        repair: Repair | None = "checkpoint" if self.is_complete else None
        for version in self.checkpoints:
            name = _CHECKPOINT.format(version)
            try:
                checkpoint = self.delta.chain.checkpoints.read(version)
            except Corrupt as error:
                hint = "The commit files say the same." if self.is_complete else error.hint
                is_alone = self.delta.chain.checkpoints.says_alone(version)
                self.add(f"{error.message}. {hint}", name, repair=None if is_alone else repair)
                continue
            if checkpoint is not None and not checkpoint.is_verified:
                what = f"the digest file of checkpoint {version} is missing or damaged, so damage to the checkpoint"
                what += " cannot be noticed"
                if self.delta.chain.leads_to(version):
                    self.add(what, name, severity="note", repair=repair)
                else:
                    what += ". No commit files say the same. Restore the digest file from a backup"
                    self.add(what, name.replace(".parquet", ".digest"))
        is_listed = f"{self.folder}/{_POINTER}" in self.listing
        named = self.delta.chain.checkpoints.pointed_version() if is_listed else -1
        if named is None:
            self.add("_last_checkpoint is damaged", _POINTER, repair=repair)
        elif named not in (-1, *self.checkpoints) and not self._has_checkpoint(named):
            last = max(self.commits, default=-1)
            what = f"_last_checkpoint names version {named}, which has no checkpoint"
            if named > last:
                what += f"; the commit files end with {last}. If there were later ones, restore them first"
            self.add(what, _POINTER, repair=repair)

    def _has_checkpoint(self, version: int) -> bool:
        """Whether a checkpoint is there that the list of files lacks: another finding names it, or it is new."""
        name = _CHECKPOINT.format(version)
        return self.has_finding(name) or self.delta.storage.exists(f"{self.folder}/{name}")

    def check_transactions(self, limit: int | None) -> None:
        """Transactions only move forward; none may be greater than the seq `limit`. A horizon may lie before 1970."""
        at: dict[str, int] = {}
        for version, actions in self.commits.items():
            for txn in (action["txn"] for action in actions if "txn" in action):
                lowest = txn["version"] if horizons({txn["appId"]: 0}) else -1
                if txn["version"] < at.get(txn["appId"], lowest):
                    self.add(f"commit {version} moves the transaction {txn['appId']!r} back to {txn['version']}")
                at[txn["appId"]] = txn["version"]
        for app, value in (self.snapshot.txns if self.snapshot else {}).items():
            if limit is not None and value > limit and app.startswith(_OF_SEQS):
                self.add(f"the transaction {app!r} stands at {value}, past the head {limit}")

    def check_files(self) -> Iterable[tuple[str, pq.FileMetaData]]:
        """Each live file exists, its size and number of rows are those of its commit, and its footer is readable."""
        for file in self.snapshot.files.values() if self.snapshot else ():
            path = f"{self.folder}/{file.path}"
            info = self.listing.get(path)
            # A file that was written after the listing is not in it.
            if info is None and not self.storage.exists(path):
                self.add("a file that the table needs is missing", file.path)
                continue
            if info is not None and info.size != file.size:
                self.add(f"the file has {info.size} bytes; its commit says {file.size}", file.path)
            try:
                with pq.ParquetFile(self.storage.input(path)) as opened:
                    footer = opened.metadata
            except (OSError, ValueError) as error:
                self.add(f"the file is not readable: {str(error).splitlines()[0]}", file.path)
                continue
            if footer.num_rows != file.rows:
                self.add(f"the file holds {footer.num_rows} rows; its commit says {file.rows}", file.path)
            yield file.path, footer

    def foreign_files(self) -> list[str]:
        """Files that Strandline did not make."""
        names = [n for n in self.names() if not n.startswith("_delta_log/") and not is_ours(n)]
        return names + [n for n in self.names("_delta_log/") if not _LOG_FILE.search(n)]


def _runs(versions: Iterable[int]) -> list[list[int]]:
    """The versions in groups of consecutive numbers."""
    runs: list[list[int]] = []
    for version in versions:
        if runs and runs[-1][-1] == version - 1:
            runs[-1].append(version)
        else:
            runs.append([version])
    return runs
