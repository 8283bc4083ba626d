"""One export at a time to a destination: a file that names who is at work there.

A lock is never taken from anyone alive. When its holder is gone, whoever first creates the file that is named after the
dead lock's id is the next holder; so of several that find it one wins, and none can remove the lock of another.

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
_HINT = "If no export is at work there, delete that file and try again."


@dataclass(frozen=True)
class _Active:
    """An export at work, by its id."""

    id: str


# What this process is at work on: a lock of ours with an id that is not among them is left over. An export that was
# interrupted leaves the set by itself, wherever the interrupt fell.
_active: WeakSet[_Active] = WeakSet()
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lock:
    """A lock that is held, and the ids of the dead ones before it."""

    storage: Storage
    active: _Active
    dead: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.active.id

    def release(self) -> None:
        """From the first on: while the first is there, nobody else can begin."""
        _active.discard(self.active)
        try:
            self.storage.delete([LOCK, *(_after(id_) for id_ in self.dead)])
        except (OSError, StrandlineError) as error:
            # What was exported counts. This process may go on; for another machine the lock has to be deleted.
            _log.warning("%s could not be released: %s", self.storage.url(LOCK), error)


def acquire(storage: Storage, id_: str) -> Lock:
    """`Conflict` when someone else is at work, or died on another machine."""
    facts = {"id": id_, "holder": this_process(), "since": dt.datetime.now(dt.UTC).isoformat(timespec="seconds")}
    dead: list[str] = []
    active = _Active(id_)
    _active.add(active)
    try:
        path = LOCK
        while not storage.put_new(path, json.dumps(facts).encode()):
            held = read_note(storage, path, lambda note: (note["holder"], note["since"], note["id"]), _HINT)
            if held is None:
                # Released just now: from the start.
                path, dead = LOCK, []
                continue
            holder, since, other = held
            if other == id_:
                # It was created, and the answer got lost on the way.
                break
            if not is_gone(holder) and not (holder == this_process() and _Active(other) not in _active):
                raise Conflict(
                    f"{storage.uri} is being exported to by {holder} since {since}",
                    hint=f"If that process is gone, delete {storage.url(path)} and try again.",
                    path=path,
                )
            dead.append(other)
            path = _after(other)
    except BaseException:
        _active.discard(active)
        raise
    return Lock(storage, active, tuple(dead))


def is_lock(path: str) -> bool:
    return path.startswith(LOCK)


def _after(id_: str) -> str:
    return f"{LOCK}-{id_}"
