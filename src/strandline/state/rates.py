"""How fast a person lets each consumer send, by name: rows and bytes a second, and whether its history waits.

A rate outlasts the lives of a consumer, and may come before the first one. A runner reads it before every batch, so a
change by another process holds from the next batch on. The last batch under a rate is kept here too: so the next
runner waits as long as the same one would have.

After a crash: a rate holds, or it left nothing. A batch counts from before its first row is sent.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from sqlalchemy import BigInteger, Boolean, Column, Double, Table, Text, bindparam, select, update

from strandline.errors import Invalid, Unavailable
from strandline.state.consumers import check_consumer_name
from strandline.state.database import Database, insert_missing, metadata, now_s

rates = Table(
    "strandline_rates",
    metadata,
    Column("name", Text, primary_key=True),
    Column("rows_per_s", Double),
    Column("bytes_per_s", Double),
    Column("is_stopped", Boolean, nullable=False),
)
sent = Table(
    "strandline_sent",
    metadata,
    Column("name", Text, primary_key=True),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("owed_s", Double, nullable=False),
    Column("began_s", Double, nullable=False),
)
_set_rate = update(rates).where(rates.c.name == bindparam("which"))
_set_sent = update(sent).where(sent.c.name == bindparam("which"))


@dataclass(frozen=True)
class Rate:
    """The most rows and bytes a second that a consumer sends, None for no limit. While it `is_stopped`, it delivers no
    history, only the changes of rows that it has delivered."""

    rows_per_s: float | None = None
    bytes_per_s: float | None = None
    is_stopped: bool = False

    @property
    def is_limited(self) -> bool:
        return bool(self.rows_per_s or self.bytes_per_s)

    def owed_s(self, rows: int, size: int) -> float:
        """How long sending so much takes at least."""
        found = ((rows, self.rows_per_s), (size, self.bytes_per_s))
        return max((amount / rate for amount, rate in found if rate), default=0.0)


NO_RATE = Rate()


@dataclass(frozen=True)
class Sent:
    """The last batch of a consumer: its rows and bytes, how long it had to take at least by the rate of then, and when
    it began, by this process's clock that never goes back."""

    rows: int = 0
    bytes: int = 0
    owed_s: float = 0.0
    began_s: float = -math.inf

    def free_s(self, rate: Rate) -> float:
        """When the next batch may begin at this rate. A slower one holds for what is sent from now on."""
        return self.began_s + min(self.owed_s, rate.owed_s(self.rows, self.bytes))


NONE_SENT = Sent()


class Rates:
    """The rates of one state."""

    def __init__(self, state: Database) -> None:
        self._state = state
        # A state of an earlier version that may only be read has no rates.
        with suppress(Unavailable):
            state.ensure(rates)
            state.ensure(sent)

    def all(self) -> dict[str, Rate]:
        """The consumers with a rate."""
        if not self._state.has(rates):
            return {}
        with self._state.reading() as connection:
            return {
                row.name: Rate(row.rows_per_s, row.bytes_per_s, row.is_stopped)
                for row in connection.execute(select(rates))
            }

    def get(self, name: str) -> Rate:
        """The rate of a consumer; `NO_RATE` when none was set."""
        if not self._state.has(rates):
            return NO_RATE
        with self._state.reading() as connection:
            row = connection.execute(select(rates).where(rates.c.name == name)).one_or_none()
        return NO_RATE if row is None else Rate(row.rows_per_s, row.bytes_per_s, row.is_stopped)

    def set_rate(self, name: str, rows_per_s: float | None, bytes_per_s: float | None) -> Rate:
        """Set both rates, None for no limit; a rate of 0 stops the history, any other rate lets it go on."""
        is_zero = 0 in (_check_rate("rows", rows_per_s), _check_rate("bytes", bytes_per_s))
        was = self.get(name)
        if is_zero:
            return self._put(name, replace(was, is_stopped=True))
        return self._put(name, Rate(rows_per_s, bytes_per_s))

    def set_stopped(self, name: str, is_stopped: bool) -> Rate:
        """Let the history of a consumer wait, or go on at its earlier rate."""
        return self._put(name, replace(self.get(name), is_stopped=is_stopped))

    def last_sent(self, name: str) -> Sent:
        """The last batch that a consumer sent under a rate, in any process."""
        if not self._state.has(sent):
            return NONE_SENT
        with self._state.reading() as connection:
            row = connection.execute(select(sent).where(sent.c.name == name)).one_or_none()
            if row is None:
                return NONE_SENT
            ago_s = max(0.0, now_s(connection) - row.began_s)
        return Sent(row.rows, row.bytes, row.owed_s, time.monotonic() - ago_s)

    def note_sent(self, name: str, last: Sent) -> None:
        """Keep the last batch of a consumer."""
        self._state.ensure(sent)
        with self._state.transaction() as connection:
            began_s = now_s(connection) - (time.monotonic() - last.began_s)
            insert_missing(connection, sent, name=name, rows=0, bytes=0, owed_s=0.0, began_s=began_s)
            facts = {"rows": last.rows, "bytes": last.bytes, "owed_s": last.owed_s, "began_s": began_s}
            connection.execute(_set_sent, {"which": name, **facts})

    def _put(self, name: str, rate: Rate) -> Rate:
        check_consumer_name(name)
        self._state.ensure(rates)
        with self._state.transaction() as connection:
            insert_missing(connection, rates, name=name, is_stopped=False)
            connection.execute(_set_rate, {"which": name, **vars(rate)})
        return rate


def _check_rate(what: str, rate: float | None) -> float | None:
    if rate is None:
        return None
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if not is_number or not math.isfinite(rate) or rate < 0:
        expected = f"expected {what} a second, 0 or more"
        raise Invalid(f"the rate in {what} is {rate!r}; {expected}", hint="0 stops the history.")
    return rate
