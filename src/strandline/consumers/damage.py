"""Find the damaged files behind a failed fold, and the vnodes that cannot be folded because of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from strandline.errors import Conflict, Unavailable
from strandline.model.change import VNODE
from strandline.storage import digest
from strandline.storage.open import Storage
from strandline.storage.snapshot import DataFile
from strandline.tables.merge import TableAt, vnodes_of
from strandline.tables.store import TableStore


@dataclass(frozen=True)
class DegradedVnode:
    """A vnode that could not be folded, and the damaged file; other vnodes can still be read."""

    vnode: int
    path: str
    message: str


def find_damage(table: TableStore, part: TableAt, error: Exception) -> dict[int, DegradedVnode]:
    """The vnodes that cannot be folded, each with its damaged file; empty when no file is damaged.

    `Conflict` when such a file is no longer part of the table: another process folded and cleaned up first."""
    if isinstance(error, Conflict | Unavailable):
        return {}
    files: list[tuple[str, DataFile, Collection[int]]] = [
        *((part.baseline.folder, f, {int(f.partition[VNODE] or 0)}) for f in part.base_files()),
        *((part.log.folder, f, vnodes_of(f, part.baseline.vnodes)) for _, f in part.log_files()),
    ]
    by_path = {f"{folder}/{file.path}": (file, vnodes) for folder, file, vnodes in files}
    now = table.merge()
    live = {*now.log.snapshot.files, *now.baseline.snapshot.files}
    degraded = {}
    for path, fault in damaged_files(part.log.storage, {path: file for path, (file, _) in by_path.items()}, error):
        file, vnodes = by_path[path]
        if file.path not in live:
            raise Conflict("another process compacted the table; nothing was changed") from error
        for vnode in set(vnodes) & set(part.only or ()):
            degraded[vnode] = DegradedVnode(vnode, part.log.storage.url(path), fault)
    if degraded:
        table.forget_folds()
    return degraded


def damaged_files(storage: Storage, files: Mapping[str, DataFile], error: Exception) -> Iterator[tuple[str, str]]:
    """The paths of the damaged files among those that a failed job read, each with its fault."""
    named = set(re.findall(r"[^\s/'\"]+\.parquet", str(error)))
    # Without a file name in the error, every file is suspect.
    suspects = [path for path in files if path.rsplit("/", 1)[1] in named] or list(files)
    return ((path, fault) for path in suspects if (fault := digest.find_fault(storage, path, files[path])))
