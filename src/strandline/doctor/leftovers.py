"""What lies in a lake that nothing needs: orphans, unfinished files, tables that were dropped or never finished."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.doctor.deltas import DeltaExam, is_old
from strandline.doctor.finding import Finding
from strandline.doctor.tables import TableExam
from strandline.log import DROPPED
from strandline.storage import FileInfo, Storage


@dataclass(frozen=True)
class Lives:
    """The generations that the catalog knows: those that are tables now, by folder, and when the others ended."""

    live: Mapping[str, str]
    dropped_ms: Mapping[str, int]


def leftovers_of(exam: TableExam, grace_s: float) -> list[Finding]:
    """Files of a living table that no version of it refers to."""
    found = []
    for part in exam.parts:
        storage = part.storage
        orphans = part.orphans(grace_s)
        if orphans:
            found.append(_deletable(storage, exam.entry.name, "that no commit claims", part.folder, orphans))
        strangers = part.strangers()
        if strangers:
            what = f"{_counted(len(strangers))} that Strandline did not make, such as {strangers[0]}"
            found.append(Finding("note", exam.entry.name, what, storage.url(part.folder)))
    return found


def unfinished(storage: Storage, grace_s: float) -> list[Finding]:
    """Temporary files that a crash left behind."""
    old = [info for info in storage.temporaries("") if is_old(info, grace_s)]
    old += [info for info in storage.list("_check") if is_old(info, grace_s)]
    return [_deletable(storage, None, "that were never finished", "", old)] if old else []


def lifeless(storage: Storage, lives: Lives, listing: Mapping[str, FileInfo], grace_s: float) -> list[Finding]:
    """Folders of generations that are no table: dropped, or never registered."""
    folders: dict[str, list[FileInfo]] = defaultdict(list)
    for path, info in listing.items():
        parts = path.split("/")
        if len(parts) > 3 and parts[0] == "tables" and "/".join(parts[:3]) not in lives.live:
            folders["/".join(parts[:3])].append(info)
    return [
        finding
        for folder, infos in sorted(folders.items())
        if (finding := _lifeless(storage, folder, infos, lives, grace_s)) is not None
    ]


def _lifeless(storage: Storage, folder: str, infos: Sequence[FileInfo], lives: Lives, grace_s: float) -> Finding | None:
    _, name, generation = folder.split("/")
    exam = DeltaExam(storage, name, f"{folder}/log", {info.path: info for info in infos})
    is_quiet = all(is_old(info, grace_s) for info in infos)
    if generation in lives.dropped_ms:
        # Both the catalog and the log itself must say so: a catalog that was set back must not cost a table.
        snapshot = exam.snapshot if exam.names("_delta_log/") else None
        is_ended = snapshot is not None and DROPPED in snapshot.configuration
        if not is_ended and any(_is_data(info.path) for info in infos):
            return _kept(storage, name, folder, infos, "is dropped, but its log does not say so")
        is_due = lives.dropped_ms[generation] < (time.time() - grace_s) * 1000
        return _deletable(storage, name, "of a dropped table", folder, infos) if is_due and is_quiet else None
    if any(version > 0 for version in exam.commits):
        return _kept(storage, name, folder, infos, "holds commits, but the catalog does not know it")
    return _deletable(storage, name, "of a table that was never finished", folder, infos) if is_quiet else None


def _is_data(path: str) -> bool:
    return path.endswith(".parquet") and "/_delta_log/" not in path


def _deletable(storage: Storage, table: str | None, what: str, where: str, infos: Sequence[FileInfo]) -> Finding:
    size = sum(info.size for info in infos)
    return Finding(
        "note",
        table,
        f"{_counted(len(infos))} {what}, {size:,} bytes",
        storage.url(where) if where else storage.uri,
        "delete",
        tuple(sorted((info.path for info in infos), key=lambda path: (not _is_data(path), path))),
    )


def _kept(storage: Storage, table: str, folder: str, infos: Sequence[FileInfo], what: str) -> Finding:
    return Finding("note", table, f"a folder of {_counted(len(infos))} {what}; delete it by hand", storage.url(folder))


def _counted(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"
