"""The smallest change of a state database, and its file."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import make_url, select, update

from strandline.state.database import Database, meta


def epoch_of(state: Database) -> int:
    with state.reading() as connection:
        return int(connection.execute(select(meta.c.epoch)).scalar_one())


def raise_epoch(state: Database, to: int) -> int:
    """A change of the state, of the kind that every other one is: lock a row, decide, write."""
    with state.transaction() as connection:
        found = int(connection.execute(select(meta.c.epoch).with_for_update()).scalar_one())
        if found < to:
            connection.execute(update(meta).values(epoch=to))
    return max(found, to)


def path_of(url: str) -> Path:
    return Path(str(make_url(url).database))
