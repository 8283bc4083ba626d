"""One export at a time to a destination: a file that names who is at work there.

A lock is never taken from a live process. When its holder is gone, the next holder is the process that first creates a
file named after the dead lock's id. So one of several processes wins, and none can delete the lock of another.

After a crash: the lock stays and names a process that is gone.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from dataclasses import dataclass
from weakref import WeakSet

from strandline.engines.process import is_gone, this_process
from strandline.errors import Conflict, StrandlineError
from strandline.sinks.files import read_note
from strandline.storage.open import Storage

LOCK = "_export.lock"
_HINT = "If no export is running there, delete that file and try again."


@dataclass(frozen=True)
class _Active:
    """A running export, by its id."""

    id: str


# The running exports of this process: a lock of this process with any other id is left over. The set is weak, so an
# export that was interrupted leaves it, wherever the interrupt came.
_active: WeakSet[_Active] = WeakSet()
_log = logging.getLogger("strandline.jobs")


@dataclass(frozen=True)
class Lock:
    """A lock that is held, and the ids of the dead locks before it."""

    storage: Storage
    active: _Active
    dead: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.active.id

    def release(self) -> None:
        """Delete the lock files, the first one first: until then nobody else can begin."""
        _active.discard(self.active)
        try:
            self.storage.delete([LOCK, *(_successor_path(id_) for id_ in self.dead)])
        except (OSError, StrandlineError) as error:
            # The export counts. This process may export again; on another machine the lock has to be deleted first.
            _log.warning("%s could not be released: %s", self.storage.url(LOCK), error)


def acquire(storage: Storage, id_: str) -> Lock:
    """Take the lock. `Conflict` when its holder is alive, or died on another machine."""
    facts = {"id": id_, "holder": this_process(), "since": dt.datetime.now(dt.UTC).isoformat(timespec="seconds")}
    dead: list[str] = []
    active = _Active(id_)
    _active.add(active)
    try:
        path = LOCK
        while not storage.put_new(path, json.dumps(facts).encode()):
            held = read_note(storage, path, lambda note: (note["holder"], note["since"], note["id"]), _HINT)
            if held is None:
                # It was released just now: start again.
                path, dead = LOCK, []
                continue
            holder, since, other = held
            if other == id_:
                # The file was created, but the answer got lost.
                break
            if not is_gone(holder) and not (holder == this_process() and _Active(other) not in _active):
                raise Conflict(
                    f"{holder} has been exporting to {storage.uri} since {since}",
                    hint=f"If that process is gone, delete {storage.url(path)} and try again.",
                    path=path,
                )
            dead.append(other)
            path = _successor_path(other)
    except BaseException:
        _active.discard(active)
        raise
    return Lock(storage, active, tuple(dead))


def is_lock(path: str) -> bool:
    return path.startswith(LOCK)


def _successor_path(id_: str) -> str:
    return f"{LOCK}-{id_}"
