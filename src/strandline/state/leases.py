"""Leases: who works on something, until when, by the database's clock; and fences, which stop a late owner.

A name has one holder at a time. A lease that expired may be taken over; at once if its owner was a process of this
machine that has ended (the name that `this_worker` gives an owner identifies its process). Each grant has a higher
fence than every earlier grant of that name, even after a release. A change under a lease carries its fence, and
`check_fence` refuses the change, in the same transaction, once a higher fence was granted. So an owner that stalls and
wakes up late changes nothing.

After a crash: the lease expires and is taken over; on the same machine it is taken over at once.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Double, Row, Table, Text, bindparam, select, update

from strandline.engines.background import run_beside
from strandline.engines.process import is_gone, this_process
from strandline.errors import Conflict, Invalid, StrandlineError, Unavailable
from strandline.model.text import check_text
from strandline.state.database import Database, insert_missing, metadata, now_s

LENGTH_S = 60.0
_log = logging.getLogger("strandline.state")

leases = Table(
    "strandline_leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("owner", Text),
    Column("fence", BigInteger, nullable=False),
    Column("since_s", Double, nullable=False),
    Column("expires_s", Double, nullable=False),
)
_select_lease = select(leases).where(leases.c.name == bindparam("name"))
_lock_lease = _select_lease.with_for_update()
_give_back = (
    update(leases)
    .where(leases.c.name == bindparam("which"), leases.c.fence == bindparam("own"))
    .values(owner=None, expires_s=0.0)
)
_share_lease = _select_lease.with_for_update(read=True)


@dataclass(frozen=True)
class Lease:
    """A grant of `name` to `owner`. Its times are the database's."""

    name: str
    owner: str
    fence: int
    expires_s: float


class Leases:
    """The leases of one state."""

    def __init__(self, state: Database) -> None:
        self._state = state
        state.ensure(leases)

    def acquire(self, name: str, owner: str, length_s: float, *, title: str | None = None) -> Lease:
        """Take a lease; `Conflict` while another owner holds it. An owner that holds it already gets a new fence, which
        ends the old one: so `owner` names one worker, not one program. `title` names the subject in messages."""
        check_text("lease name", name)
        check_text("owner", owner)
        _check_length(length_s)
        with self._state.transaction() as connection:
            found = _find_locked(connection, name)
            if found is None:
                insert_missing(connection, leases, name=name, fence=0, since_s=0.0, expires_s=0.0)
                found = _find_locked(connection, name)
            now = now_s(connection)
            if found.owner not in (None, owner) and found.expires_s > now and not is_dead(found.owner):
                raise Conflict(
                    f"{title or name} is worked on by {place_of(found.owner)} since {_format_time(found.since_s)}, at"
                    f" least until {_format_time(found.expires_s)}",
                    hint="Wait for it, or end that process: the next one finishes its batch.",
                    lease=name,
                    owner=found.owner,
                    since_s=found.since_s,
                    expires_s=found.expires_s,
                )
            lease = Lease(name, owner, found.fence + 1, now + length_s)
            _update_row(connection, name, owner=owner, fence=lease.fence, since_s=now, expires_s=lease.expires_s)
        return lease

    def renew(self, lease: Lease, length_s: float) -> Lease:
        """Extend a lease from now, also an expired one; `Conflict` when it was taken over."""
        _check_length(length_s)
        with self._state.transaction() as connection:
            _check_row(lease.name, lease.fence, _find_locked(connection, lease.name))
            renewed = Lease(lease.name, lease.owner, lease.fence, now_s(connection) + length_s)
            _update_row(connection, lease.name, expires_s=renewed.expires_s)
        return renewed

    def release(self, lease: Lease) -> None:
        """Give a lease back; no effect when it was taken over."""
        with self._state.transaction() as connection:
            release(connection, lease)

    def find(self, name: str) -> Lease | None:
        """The unexpired lease of that name."""
        with self._state.reading() as connection:
            found = connection.execute(_select_lease, {"name": name}).one_or_none()
            if found is None or found.owner is None or found.expires_s <= now_s(connection) or is_dead(found.owner):
                return None
        return Lease(name, found.owner, found.fence, found.expires_s)

    @contextmanager
    def hold(
        self, name: str, owner: str, length_s: float = LENGTH_S, *, title: str | None = None
    ) -> Iterator[HeldLease]:
        """Hold a lease while the block runs: renewed in a thread at a third of its length, then released."""
        asked_s = time.monotonic()
        held = HeldLease(self, self.acquire(name, owner, length_s, title=title), length_s, asked_s)
        with run_beside(held.keep):
            yield held


class HeldLease:
    """A lease that is being renewed. `check` between two effects stops an owner that lost it; the fence stops its marks
    for certain."""

    def __init__(self, leases: Leases, lease: Lease, length_s: float, asked_s: float) -> None:
        self.lease = lease
        self._leases = leases
        self._length_s = length_s
        # Counted on this machine's steady clock from before the request: it ends here before it ends in the database.
        self._deadline_s = asked_s + length_s
        self._lost: StrandlineError | None = None
        self.is_given_back = False
        """Whether another transaction has given it back already."""

    @property
    def fence(self) -> int:
        return self.lease.fence

    def check(self) -> None:
        """`Conflict` when it was taken over, `Unavailable` when it was not renewed in time. It stays lost."""
        if self._lost is None and time.monotonic() >= self._deadline_s:
            self._lost = Unavailable(
                f"the lease of {self.lease.name} was not renewed in {self._length_s:g} s: another may work there now",
                hint="Nothing more is done under it; try again.",
                lease=self.lease.name,
                owner=self.lease.owner,
                fence=self.lease.fence,
            )
        if self._lost is not None:
            raise type(self._lost)(self._lost.message, hint=self._lost.hint, **self._lost.fields)

    def keep(self, is_over: Callable[[float], bool]) -> None:
        """Renew the lease until the work is over, then release it; runs in a thread."""
        self.renew_until(is_over)
        if self.is_given_back:
            return
        try:
            self._leases.release(self.lease)
        except StrandlineError as error:
            _log.warning("lease %s could not be released and will expire: %s", self.lease.name, error)

    def renew_until(self, is_over: Callable[[float], bool]) -> None:
        wait_s = self._length_s / 3
        while not is_over(wait_s) and not self.is_given_back:
            asked_s = time.monotonic()
            try:
                self.check()
                self.lease = self._leases.renew(self.lease, self._length_s)
                self._deadline_s = asked_s + self._length_s
                wait_s = self._length_s / 3
            except Conflict as error:
                self._lost = error
            except StrandlineError as error:
                _log.warning("lease %s could not be renewed: %s", self.lease.name, error)
                wait_s = self._length_s / 12
            if self._lost is not None:
                wait_s = math.inf


def this_worker() -> str:
    """A unique name for one worker: its process and a random part."""
    return f"{this_process()}:{uuid.uuid4().hex[:8]}"


def is_dead(owner: str) -> bool:
    """Whether an owner that `this_worker` named was a process of this machine that has certainly ended."""
    return is_gone(place_of(owner))


def check_fence(connection: Connection, name: str, fence: int) -> None:
    """`Conflict` unless this fence is the newest of its name and was not given back. The lease cannot change hands
    until the transaction ends. An expired lease is valid until someone takes it over."""
    _check_row(name, fence, connection.execute(_share_lease, {"name": name}).one_or_none())


def release(connection: Connection, lease: Lease) -> None:
    """Give a lease back inside a transaction; no effect when it was taken over."""
    connection.execute(_give_back, {"which": lease.name, "own": lease.fence})


def _check_row(name: str, fence: int, found: Row[Any] | None) -> None:
    if found is not None and found.owner is not None and found.fence == fence:
        return
    if found is None or found.fence < fence:
        what = "was never granted here"
    elif found.fence == fence or found.owner is None:
        what = "was given back"
    else:
        what = f"was taken over by {place_of(found.owner)} at {_format_time(found.since_s)}"
    raise Conflict(
        f"the lease of {name} with fence {fence} {what}",
        hint="Nothing was changed. Acquire it again and reload.",
        lease=name,
        fence=fence,
        found=None if found is None else found.fence,
        owner=None if found is None else found.owner,
    )


def _find_locked(connection: Connection, name: str) -> Any:
    return connection.execute(_lock_lease, {"name": name}).one_or_none()


def _update_row(connection: Connection, name: str, **values: Any) -> None:
    connection.execute(update(leases).where(leases.c.name == name).values(**values))


def place_of(owner: str) -> str:
    """The part of an owner's name that people can use: host and process."""
    return owner.rpartition(":")[0] or owner


def _check_length(length_s: float) -> None:
    is_number = isinstance(length_s, (int, float)) and not isinstance(length_s, bool)
    if not is_number or not math.isfinite(length_s) or length_s <= 0:
        raise Invalid(f"the length of a lease is {length_s!r}; expected seconds above 0")


def _format_time(at_s: float) -> str:
    return dt.datetime.fromtimestamp(at_s, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
