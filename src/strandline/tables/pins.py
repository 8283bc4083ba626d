"""Pins: claims that keep files from being cleaned away. A pin is a small file in the lake, valid until it expires.

A pin names the seq that must stay readable, the versions of log and baseline whose files its holder reads, and the
time since which its holder writes files that no commit claims yet. It expires when it is not renewed for `length_s`, by
the store's own clock, so holders and cleaners on different machines agree. Short work needs no pin: cleaning deletes
only files that have been unneeded for the table's grace time.

After a crash: the pin is not renewed and expires.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from strandline.engines.background import run_beside
from strandline.engines.process import is_gone, this_process
from strandline.errors import Invalid, NotRetained, StrandlineError
from strandline.storage.open import Storage

FOLDER = "pins"
LENGTH_S = 300.0
QUIET_S = 30.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
_log = logging.getLogger("strandline.tables")


@dataclass(frozen=True)
class Pin:
    """One claim on a table. `seq` must stay readable (None claims none); `vnodes` are being folded."""

    name: str
    why: str
    length_s: float
    seq: int | None = None
    log_version: int | None = None
    baseline_version: int | None = None
    writes_since_s: float | None = None
    vnodes: tuple[int, ...] = ()
    holder: str = ""
    expires_s: float = 0.0

    @property
    def until(self) -> dt.datetime:
        """When the pin expires, unless it is renewed."""
        return dt.datetime.fromtimestamp(self.expires_s, dt.UTC)


class Pins:
    """The pins of one table."""

    def __init__(self, storage: Storage, generation: str) -> None:
        self._storage = storage
        self._folder = f"{FOLDER}/{generation}"

    def put(self, pin: Pin) -> None:
        """Set or renew a pin."""
        if not _NAME.match(pin.name):
            raise Invalid(f"pin name {pin.name!r} is not allowed", hint="Use letters, digits, '_', '.' and '-'.")
        facts = {name: value for name, value in asdict(pin).items() if name != "expires_s"}
        with self._storage.output(self._path(pin.name)) as stream:
            stream.write(json.dumps(facts).encode())

    def release(self, name: str) -> None:
        self._storage.delete([self._path(name)])

    def all(self, *, is_strict: bool = True) -> list[Pin]:
        """Every pin, expired ones included. An unreadable pin is `Invalid`, and left out without `is_strict`."""
        found = []
        for info in self._storage.list(self._folder):
            try:
                facts = json.loads(self._storage.read(info.path))
                facts["vnodes"] = tuple(facts["vnodes"])
                found.append(replace(Pin(**facts), expires_s=info.modified_s + float(facts["length_s"])))
            except FileNotFoundError:
                continue
            except (ValueError, TypeError, KeyError) as error:
                if not is_strict:
                    continue
                # Its claim is not known: nothing may be deleted until a person has looked.
                raise Invalid(
                    f"pin {self._storage.url(info.path)} is not readable: {error}",
                    hint="Ask who pinned this table before you remove that file: someone may still need that data.",
                    path=info.path,
                ) from error
        return sorted(found, key=lambda pin: pin.name)

    def live(self, now_s: float) -> list[Pin]:
        return [pin for pin in self.all() if pin.expires_s > now_s]

    @contextmanager
    def held(self, pin: Pin, *, quiet_s: float = QUIET_S) -> Iterator[None]:
        """Hold a pin while the block runs. It is written when the block has lasted `quiet_s`, at once for 0, and then
        renewed. A thread writes, renews and releases it while the block's lock is taken: an interrupt at any place
        releases that lock and leaves no pin behind."""
        # Not an event: after an interrupted wait, setting it may fail in the thread.
        first: SimpleQueue[Exception | None] = SimpleQueue()

        def keep(is_over: Callable[[float], bool]) -> None:
            if quiet_s > 0 and is_over(quiet_s):
                return
            while True:
                failed: Exception | None = None
                try:
                    self.put(pin)
                except Exception as error:
                    failed = error
                    _log.warning("pin %s could not be written: %s", pin.name, error)
                if first.empty():
                    first.put(failed)
                if is_over(pin.length_s / 3):
                    break
            try:
                self.release(pin.name)
            except (OSError, StrandlineError) as error:
                _log.warning("pin %s could not be released and will expire: %s", pin.name, error)

        with run_beside(keep):
            if quiet_s <= 0 and (failed := first.get()) is not None:
                raise failed
            yield

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}.json"


def is_abandoned(pin: Pin) -> bool:
    return is_gone(pin.holder)


def new_pin(why: str, *, name: str | None = None, length_s: float = LENGTH_S, **claims: Any) -> Pin:
    return Pin(name or uuid.uuid4().hex, why, length_s, holder=this_process(), **claims)


@dataclass
class HeldPin:
    """A user's pin: renewed and released by hand, or held by a `with` block that renews it."""

    pin: Pin
    pins: Pins
    check: Callable[[], object]
    _holding: AbstractContextManager[None] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def seq(self) -> int:
        """The seq that stays readable."""
        assert self.pin.seq is not None
        return self.pin.seq

    def renew(self) -> None:
        """Start its time again; `NotRetained` when the pin had expired and its seq is gone."""
        self.pins.put(self.pin)
        try:
            self.check()
        except NotRetained:
            self.release()
            raise

    def release(self) -> None:
        # An interrupted block may have left it set: nothing renews the pin from here on.
        self._holding = None
        self.pins.release(self.pin.name)

    def __enter__(self) -> HeldPin:
        holding = self.pins.held(self.pin, quiet_s=0)
        holding.__enter__()
        self._holding = holding
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        holding, self._holding = self._holding, None
        if holding is not None:
            holding.__exit__(kind, error, trace)


def least(values: Sequence[int | None], default: int) -> int:
    """The lowest of `default` and the values that are not None."""
    return min([default, *(value for value in values if value is not None)])
