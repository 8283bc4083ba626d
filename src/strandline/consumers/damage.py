"""When a fold fails: which file is at fault, and which vnodes cannot be folded because of it."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from strandline import encode
from strandline.change import VNODE
from strandline.errors import Conflict, Unavailable
from strandline.merge import Merge, vnodes_of
from strandline.storage.snapshot import DataFile

if TYPE_CHECKING:
    from strandline.table import Table


@dataclass(frozen=True)
class Degraded:
    """A vnode that could not be folded, and the file at fault; reads of other vnodes go on."""

    vnode: int
    path: str
    message: str


def damage(table: Table, part: Merge, error: Exception) -> dict[int, Degraded]:
    """The vnodes that a failed fold cannot do, each with the file at fault; empty when no file is.

    `Conflict` when a file at fault is no longer the table's: someone folded and cleaned faster than we read."""
    if isinstance(error, Conflict | Unavailable):
        return {}
    files: list[tuple[str, DataFile, Collection[int]]] = [
        *((part.baseline.folder, f, {int(f.partition[VNODE] or 0)}) for f in part.base_files()),
        *((part.log.folder, f, vnodes_of(f, part.baseline.vnodes)) for _, f in part.log_files()),
    ]
    named = set(re.findall(r"[^\s/'\"]+\.parquet", str(error)))
    # An error that names no file may still come from one.
    suspects = [found for found in files if found[1].path in named] or files
    now = table.merge()
    live = {*now.log.snapshot.files, *now.baseline.snapshot.files}
    degraded = {}
    for folder, file, vnodes in suspects:
        fault = _fault(part, folder, file)
        if fault and file.path not in live:
            raise Conflict("the table was folded meanwhile; nothing was changed") from error
        for vnode in set(vnodes) & set(part.only or ()) if fault else ():
            degraded[vnode] = Degraded(vnode, part.log.storage.url(f"{folder}/{file.path}"), fault)
    return degraded


def _fault(part: Merge, folder: str, file: DataFile) -> str:
    """Why a file cannot be read; empty when it can."""
    try:
        with pq.ParquetFile(part.log.storage.input(f"{folder}/{file.path}")) as opened:
            for _ in opened.iter_batches(encode.batch_rows([file])):
                pass
    except FileNotFoundError:
        return "the file is missing"
    except (OSError, ValueError) as error:
        return str(error).splitlines()[0]
    return ""
