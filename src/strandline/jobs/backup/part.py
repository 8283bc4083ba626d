"""One Delta table of a table (its log, its baseline or its refused rows): the files that the target lacks.

Comparing writes nothing and reads only the files of both sides, so after a crash it finds what is still missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from strandline.jobs.backup.refusal import cleaned, corrupt
from strandline.jobs.backup.run import CopyRun
from strandline.storage.commits import Action, CommitFile
from strandline.storage.delta_files import CommitChain
from strandline.storage.open import FileInfo
from strandline.storage.snapshot import DataFile, Snapshot, data_file


@dataclass(frozen=True)
class FileToCopy:
    """A data file, as a commit describes it, or a checkpoint, which may be rewritten at any time."""

    info: FileInfo
    is_live: bool
    file: DataFile | None = None

    @property
    def is_data(self) -> bool:
        return self.file is not None


@dataclass(frozen=True)
class CommitToCopy:
    """A commit file. `upto` is the highest seq that the baseline has folded up to this commit."""

    info: FileInfo
    version: int
    upto: int


@dataclass(frozen=True)
class DeltaToCopy:
    """The files to copy of a Delta table up to a fixed version; the target has `skipped` files already.

    `is_gapless`: with these commits the target has every commit from its last checkpoint to `version`."""

    folder: str
    version: int
    data: Sequence[FileToCopy]
    checkpoints: Sequence[FileToCopy]
    commits: Sequence[CommitToCopy]
    pointer: bytes | None
    skipped: int
    is_gapless: bool

    @property
    def bytes(self) -> int:
        files: list[FileToCopy | CommitToCopy] = [*self.data, *self.checkpoints, *self.commits]
        return sum(file.info.size for file in files) + len(self.pointer or b"")


def compare(
    run: CopyRun,
    table: str,
    folder: str,
    snapshot: Snapshot,
    here: Mapping[str, FileInfo],
    there: Mapping[str, FileInfo],
) -> DeltaToCopy:
    """Compare the source, with the files `here`, and the target, with the files `there`. A commit file that both have
    must be the same in both."""
    chain = CommitChain(run.source, folder)
    commits, checkpoints = _find_chain(*chain.files(), snapshot.version)
    their_chain = CommitChain(run.target, folder)
    theirs, _ = their_chain.files()
    # Another copy may have brought the target past the fixed state, but never past the source.
    run.each(run.read_same, [info.path for version, info in theirs.items() if version > snapshot.version])

    def read(version: int) -> CommitFile:
        path = commits[version].path
        return chain.commits.check(version, run.read_same(path) if version in theirs else run.read(path))

    needed = dict(snapshot.files)
    missing = []
    upto = 0
    before: str | None = None
    for (version, info), commit in zip(commits.items(), run.each(read, commits), strict=True):
        chain.commits.check_follows(version, commit, commit.previous if before is None else before)
        before = commit.digest
        added = (data_file(action["add"]) for action in commit.actions if "add" in action)
        needed |= {file.path: file for file in added}
        upto = max(upto, *_folded_seqs(commit.actions))
        if version not in theirs:
            missing.append(CommitToCopy(info, version, upto))
    if 0 not in commits:
        # The commits that added the files of the first checkpoint were deleted.
        first = chain.checkpoints.read(min(checkpoints, default=-1))
        if first is None:
            raise cleaned(run.source, folder)
        needed |= first.snapshot.files
    for file in snapshot.files.values():
        found = here.get(f"{folder}/{file.path}")
        if found is None or found.size != file.size:
            what = "is missing" if found is None else f"has {found.size} bytes; its commit says {file.size}"
            raise corrupt(run.source, f"{folder}/{file.path}", table, what)

    def lacking(infos: Iterable[FileInfo]) -> list[FileInfo]:
        """Files that the target lacks. A name is never used twice, so a file of the same size is the same."""
        return [info for info in infos if info.path not in there or there[info.path].size != info.size]

    # A file of an older state may be deleted; then the source can no longer read that state.
    data = [here[path] for name in sorted(needed) if (path := f"{folder}/{name}") in here]
    names = {info.path: info.path.removeprefix(f"{folder}/") for info in data}
    streamed = [FileToCopy(i, names[i.path] in snapshot.files, needed[names[i.path]]) for i in lacking(data)]
    sound = set(checkpoints) - _find_damaged(run, chain, [v for v in sorted(checkpoints) if lacking([checkpoints[v]])])
    checkpoints = {version: info for version, info in checkpoints.items() if version in sound}
    digests = [here[path] for version in checkpoints if (path := chain.checkpoints.digest_path(version)) in here]
    known = [*checkpoints.values(), *digests]
    new_checkpoints = [FileToCopy(info, False) for info in lacking(known)]
    told = their_chain.checkpoints.pointed_version()
    pointed, newest = -1 if told is None else told, max(checkpoints, default=-1)
    return DeltaToCopy(
        folder,
        snapshot.version,
        streamed,
        new_checkpoints,
        missing,
        chain.checkpoints.pointer_bytes(newest) if newest > pointed else None,
        len(data) + len(known) + len(commits) - len(streamed) - len(new_checkpoints) - len(missing),
        is_gapless=all(version in commits or version in theirs for version in range(pointed + 1, snapshot.version + 1)),
    )


def _folded_seqs(actions: Iterable[Action]) -> list[int]:
    """The seqs up to which a commit folds vnodes, and 0."""
    return [0, *(a["txn"]["version"] for a in actions if "txn" in a and a["txn"]["appId"].startswith("fold/"))]


def _find_chain(
    commits: Mapping[int, FileInfo], checkpoints: Mapping[int, FileInfo], version: int
) -> tuple[dict[int, FileInfo], dict[int, FileInfo]]:
    """The commits that lead to `version` without a gap, in order, and the checkpoints from which they lead there.

    Commits before a gap are of no use: a vacuum left them, or, in a copy, they are from before it skipped versions."""
    first = version + 1
    while first - 1 in commits:
        first -= 1
    return (
        {at: commits[at] for at in range(first, version + 1)},
        {at: info for at, info in checkpoints.items() if first - 1 <= at <= version},
    )


def _find_damaged(run: CopyRun, chain: CommitChain, versions: Sequence[int]) -> set[int]:
    """The damaged ones of these checkpoints; they are not copied. `Corrupt` when commits and older checkpoints cannot
    replace one of them."""
    found = dict(zip(versions, run.each(chain.try_checkpoint, versions), strict=True))
    for version, (_, damage) in found.items():
        if damage is not None and not chain.leads_to(version):
            raise damage
    return {version for version, (_, damage) in found.items() if damage is not None}
