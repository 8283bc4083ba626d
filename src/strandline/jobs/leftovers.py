"""Files outside the tables of the catalog that nothing needs: unfinished files, tables that were dropped or never
finished, pins that expired long ago.

While the catalog may be damaged nothing is a leftover, because it may not show all tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strandline.crash import crash_point
from strandline.errors import Corrupt, NotFound, StrandlineError
from strandline.storage.delta import DeltaLog
from strandline.storage.open import FileInfo, Storage
from strandline.tables import pins
from strandline.tables.catalog import IMPORTED, IMPORTING, Catalog, Generations, is_later_commit
from strandline.tables.log import DROPPED, Log

_MAKING_S = 3600.0
_EXPIRED_S = 86400.0
_COMPARE = "Compare catalog/ with a backup before you remove anything."
_SET_BACK = f"The catalog may be older than the lake. {_COMPARE}"
_LOST = f"The last catalog entry may be lost, or a backup to this place did not finish. {_COMPARE}"
_IMPORTED = "If no import is running, and the catalog/ of a backup does not name this table, the folder can be removed."


@dataclass(frozen=True)
class Leftover:
    """Files of one folder or one kind. With `advice`, a person has to decide about them. `is_lost`: they belong to a
    table that the catalog does not know. `is_dropped`: they belong to a dropped table."""

    table: str | None
    what: str
    where: str
    infos: tuple[FileInfo, ...]
    advice: str = ""
    is_lost: bool = False
    is_dropped: bool = False

    @property
    def is_deletable(self) -> bool:
        return not self.advice

    @property
    def bytes(self) -> int:
        return sum(info.size for info in self.infos)

    def to_dict(self) -> dict[str, Any]:
        facts = {"table": self.table, "what": self.what, "where": self.where}
        return {**facts, "files": len(self.infos), "bytes": self.bytes, "is_deletable": self.is_deletable}


def leftovers(storage: Storage, *, now_s: float, grace_s: float) -> list[Leftover]:
    """Files that nothing needs and that are older than the grace time; `Corrupt` when the catalog is damaged."""
    before_s = now_s - grace_s
    # List first: a table that is registered later is not in the list, so it is not taken for a leftover.
    listing = list(storage.list(""))
    lives = Catalog(storage).generations()
    pinned, expired = _find_pinned(storage, listing, now_s)
    found = _find_unfinished(storage, listing, lives, before_s)
    if expired:
        found.append(Leftover(None, "of pins that have expired", pins.FOLDER, tuple(expired)))
    folders: dict[str, list[FileInfo]] = defaultdict(list)
    for info in listing:
        parts = info.path.split("/")
        if len(parts) > 3 and parts[0] == "tables" and "/".join(parts[:3]) not in lives.live:
            folders["/".join(parts[:3])].append(info)
    for folder, infos in sorted(folders.items()):
        is_pinned = folder.rsplit("/", 1)[1] in pinned
        lifeless = _examine_folder(storage, folder, infos, lives, before_s, now_s)
        found += [each for each in lifeless if not (is_pinned and each.is_deletable)]
    return found


def sweep(storage: Storage, found: Sequence[Leftover]) -> None:
    """Delete leftovers, data files before the commit files that describe them. The catalog is read again first. A
    dropped table is claimed by a commit of its log: after that nobody can bring it back."""
    live = Catalog(storage).generations().live
    for leftover in found:
        if not leftover.is_deletable or leftover.where in live:
            continue
        paths = [info.path for info in leftover.infos]
        if leftover.is_dropped:
            if not _claim_dropped(storage, leftover.where):
                continue
            crash_point("sweep.claimed")
            paths = [info.path for info in storage.list(leftover.where)]
        storage.delete(sorted(paths, key=lambda path: (not _is_data(path), path)))


def _claim_dropped(storage: Storage, folder: str) -> bool:
    """Whether a dropped table may be deleted; False when it was brought back meanwhile."""
    try:
        return Log(storage, f"{folder}/log").mark_deleted()
    except (Corrupt, NotFound):
        # Without its log nobody can bring it back.
        return True


def _find_unfinished(
    storage: Storage, listing: Sequence[FileInfo], lives: Generations, before_s: float
) -> list[Leftover]:
    """Temporary files that a crash left behind."""
    marks = {f"{folder}/{IMPORTING}" for folder in lives.live}
    found = [info for info in listing if info.path.startswith("_check/") or info.path in marks]
    old = [info for info in (*storage.temporaries(""), *found) if info.modified_s < before_s]
    return [Leftover(None, "that were never finished", "", tuple(old))] if old else []


def _find_pinned(storage: Storage, listing: Sequence[FileInfo], now_s: float) -> tuple[set[str], list[FileInfo]]:
    """The generations that someone has pinned, and the pins that expired long ago."""
    infos = {info.path: info for info in listing if info.path.startswith(f"{pins.FOLDER}/")}
    pinned, expired = set(), []
    for generation in {path.split("/")[1] for path in infos}:
        try:
            found = pins.Pins(storage, generation).all()
        except StrandlineError:
            # The pins cannot be read, so what they hold stays.
            pinned.add(generation)
            continue
        if any(pin.expires_s > now_s for pin in found):
            pinned.add(generation)
        paths = [f"{pins.FOLDER}/{generation}/{pin.name}.json" for pin in found if pin.expires_s < now_s - _EXPIRED_S]
        expired += [infos[path] for path in paths if path in infos]
    return pinned, expired


def _examine_folder(
    storage: Storage, folder: str, infos: Sequence[FileInfo], lives: Generations, before_s: float, now_s: float
) -> list[Leftover]:
    """Leftovers in the folder of a generation that is not in the catalog: it was dropped, or never registered."""
    _, name, generation = folder.split("/")
    is_quiet = all(info.modified_s < before_s for info in infos)
    if generation in lives.dropped:
        # Both catalog and log must say that it was dropped: a wrong catalog must not cost a table.
        if not _is_dropped(storage, folder) and any(_is_data(info.path) for info in infos):
            what = "of a table that the catalog calls dropped, but its own log does not"
            return [Leftover(name, what, folder, tuple(infos), _SET_BACK)]
        is_due = lives.dropped[generation].at_ms < before_s * 1000
        found = Leftover(name, "of a dropped table", folder, tuple(infos), is_dropped=True)
        return [found] if is_due and is_quiet else []
    later = {info.path for info in infos if is_later_commit(info.path)}
    if later == {f"{folder}/{IMPORTED}"} and f"{folder}/{IMPORTING}" in {info.path for info in infos}:
        what = "of an import that did not finish"
        return [Leftover(name, what, folder, tuple(infos), _IMPORTED)] if is_quiet else []
    if later:
        what = "that holds commits, but the catalog does not know it"
        return [Leftover(name, what, folder, tuple(infos), _LOST, is_lost=True)]
    # A table that is being created looks the same. Creating one takes far less than this time.
    is_left = is_quiet and all(info.modified_s < now_s - _MAKING_S for info in infos)
    return [Leftover(name, "of a table that was never finished", folder, tuple(infos))] if is_left else []


def _is_dropped(storage: Storage, folder: str) -> bool:
    try:
        return DROPPED in DeltaLog(storage, f"{folder}/log").refresh().configuration
    except StrandlineError:
        return False


def _is_data(path: str) -> bool:
    return path.endswith(".parquet") and "/_delta_log/" not in path
