"""The consumers that a person has paused, by name.

A pause outlasts the lives of a consumer, and may come before the first one. A paused consumer keeps its marks, so its
table's log is kept for it.

After a crash: a pause holds, or it left nothing.
"""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import Column, Double, Table, Text, delete, select

from strandline.errors import Unavailable
from strandline.state.consumers import check_consumer_name
from strandline.state.database import Database, insert_missing, metadata, now_s

pauses = Table(
    "strandline_pauses",
    metadata,
    Column("name", Text, primary_key=True),
    Column("since_s", Double, nullable=False),
)


class Pauses:
    """The paused consumers of one state."""

    def __init__(self, state: Database) -> None:
        self._state = state
        # A state of an earlier version that may only be read has no pauses.
        with suppress(Unavailable):
            state.ensure(pauses)

    def all(self) -> dict[str, float]:
        """The paused consumers, and since when."""
        if not self._state.has(pauses):
            return {}
        with self._state.reading() as connection:
            return {row.name: row.since_s for row in connection.execute(select(pauses))}

    def add(self, name: str) -> None:
        """Pause a consumer; one that is paused stays so."""
        check_consumer_name(name)
        self._state.ensure(pauses)
        with self._state.transaction() as connection:
            insert_missing(connection, pauses, name=name, since_s=now_s(connection))

    def end(self, name: str) -> bool:
        """Let a consumer go on; returns whether it was paused."""
        if name not in self.all():
            return False
        with self._state.transaction() as connection:
            return connection.execute(delete(pauses).where(pauses.c.name == name)).rowcount > 0
