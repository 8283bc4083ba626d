"""Forget a consumer: its marks, open intents, receipts, dead letters, its pause and its rate.

Its lives stay on record, as retired ones: a later consumer of the name begins a newer life, which a destination can
tell from the old ones.

After a crash: everything is forgotten, or nothing.
"""

from __future__ import annotations

from sqlalchemy import delete, select, update

from strandline.state.consumers import consumers, find_current, generations, raise_not_found
from strandline.state.database import Database
from strandline.state.intents import intents
from strandline.state.key_positions import positions
from strandline.state.leases import check_fence
from strandline.state.letters import deadletters
from strandline.state.marks import marks
from strandline.state.pauses import pauses
from strandline.state.rates import rates, sent
from strandline.state.receipts import receipts


def forget_consumer(state: Database, name: str, lease: str, fence: int) -> None:
    """Forget the consumer of that name; the caller holds its lease."""
    state.ensure(consumers, generations, intents, marks, positions, receipts, deadletters, pauses, rates, sent)
    with state.transaction() as connection:
        check_fence(connection, lease, fence)
        if find_current(connection, name, is_locking=True) is None:
            raise_not_found(connection, name)
        lives = select(generations.c.generation).where(generations.c.name == name)
        for table in (marks, positions, intents, receipts):
            connection.execute(delete(table).where(table.c.generation.in_(lives)))
        connection.execute(delete(deadletters).where(deadletters.c.consumer == name))
        for table in (pauses, rates, sent):
            connection.execute(delete(table).where(table.c.name == name))
        connection.execute(update(generations).where(generations.c.name == name).values(is_retired=True))
        connection.execute(delete(consumers).where(consumers.c.name == name))
