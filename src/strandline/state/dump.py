"""A state as one JSON document: for a backup, whatever database holds it.

Taken: the sinks and other consumers with all their lives, marks, unfinished batches, pauses and rates, the dead
letters, and the hashes of tokens. Left out: leases, receipts and the last batches under a rate, which belong to
running processes and to the past. Secrets are in no state, so they are in no dump.

After a crash: `load_state` has loaded everything, or nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from sqlalchemy import LargeBinary, Table, delete, insert, select, update

from strandline.errors import Conflict, Corrupt, Invalid
from strandline.state.consumers import consumers, generations
from strandline.state.database import Database, meta
from strandline.state.epoch import renewals
from strandline.state.intents import intents
from strandline.state.key_positions import positions
from strandline.state.leases import leases
from strandline.state.letters import deadletters
from strandline.state.marks import marks
from strandline.state.pauses import pauses
from strandline.state.rates import rates
from strandline.state.receipts import receipts
from strandline.state.tokens import tokens

FORMAT = 1
TAKEN = (consumers, generations, marks, positions, intents, deadletters, pauses, rates, tokens)


def dump_state(state: Database) -> dict[str, Any]:
    """The state as of one moment."""
    there = [table for table in TAKEN if state.has(table)]
    with state.reading() as connection:
        own = connection.execute(select(meta.c.lake_id, meta.c.pending)).one()
        rows = {table.name: [_encode(row._asdict()) for row in connection.execute(select(table))] for table in there}
    return {"format": FORMAT, "lake_id": own.lake_id, "pending": own.pending, "tables": rows}


def load_state(state: Database, facts: Mapping[str, Any], *, may_replace: bool) -> None:
    """Fill an empty state with a dump. `Conflict` for a state that is in use, unless it is of the same lake and
    `may_replace`."""
    found = int(facts["format"])
    if found > FORMAT:
        raise Invalid(
            f"the state of the backup has format {found}; this version of Strandline reads up to {FORMAT}",
            hint="Upgrade: pip install -U strandline",
            format=found,
        )
    state.ensure(*TAKEN, leases, receipts, renewals)
    with state.transaction() as connection:
        lake_id = connection.execute(select(meta.c.lake_id).with_for_update()).scalar_one()
        if lake_id is not None and not (may_replace and lake_id == facts["lake_id"]):
            raise _used_conflict(state)
        for table in TAKEN:
            connection.execute(delete(table))
            if rows := [_decode(table, row) for row in facts["tables"].get(table.name, ())]:
                connection.execute(insert(table), rows)
        pending = facts["pending"]
        connection.execute(update(meta).values(lake_id=facts["lake_id"], epoch=pending, pending=pending))


def check_free(state: Database) -> None:
    """`Conflict` for a state that is in use."""
    if state.lake_id() is not None:
        raise _used_conflict(state)


def _used_conflict(state: Database) -> Conflict:
    hint = "Name another database or file; its schema may be a new one in the same database."
    return Conflict(f"{state.shown} is the state of a lake already", hint=hint, state=state.shown)


def _encode(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes | memoryview) else value
        for name, value in row.items()
    }


def _decode(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for the table; columns of a later version are left out."""
    try:
        return {
            column.name: base64.b64decode(row[column.name])
            if isinstance(column.type, LargeBinary)
            else row[column.name]
            for column in table.columns
        }
    except (KeyError, ValueError, TypeError) as error:
        raise Corrupt(f"the state of the backup lacks a part of {table.name}: {error!r}") from error
