"""Dead letters: rows that a destination refused for good, kept by their keys until someone replays or drops them.

A letter's id comes from the consumer's generation, the intent and the position of its first row, so a repeated run
saves nothing twice. A letter holds keys, not rows: a replay sends each key's current row.

After a crash: the letters of one `save` are complete or absent; the repeated run saves them again.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Integer,
    LargeBinary,
    Row,
    Table,
    Text,
    delete,
    func,
    select,
    update,
)

from strandline.errors import Corrupt, Invalid, NotFound
from strandline.model.change import SEQ, RefusedRows
from strandline.model.scrub import scrub_text
from strandline.model.text import check_text
from strandline.state.consumers import ConsumerRecord
from strandline.state.database import Database, insert_missing, metadata, now_s
from strandline.state.values import check_int

LIMIT = 100
REASON_CHARACTERS = 2000
ERASED = "… the words of the refusal were erased with a purged row"
"""The reason of a letter that lost keys to a purge: the destination's message may quote a purged row."""
_SHOWN = 5

deadletters = Table(
    "strandline_deadletters",
    metadata,
    Column("id", Text, primary_key=True),
    Column("consumer", Text, nullable=False, index=True),
    Column("generation", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("table_generation", Text, nullable=False, index=True),
    Column("vnode", Integer, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("key_bytes", LargeBinary, nullable=False),
    Column("reason", Text, nullable=False),
    Column("status", Integer),
    Column("created_s", Double, nullable=False),
    Column("attempts", Integer, nullable=False),
)


@dataclass(frozen=True)
class DeadLetter:
    """Rows of one consumer that were refused. `at` is the position (vnode, seq, index) of the first one, `keys` their
    identities as an Arrow IPC stream, `attempts` how many replays were refused as well."""

    id: str
    consumer: str
    generation: str
    table: str
    table_generation: str
    at: tuple[int, int, int]
    rows: int
    keys: bytes
    reason: str
    status: int | None
    created_s: float
    attempts: int

    @property
    def key_table(self) -> pa.Table:
        return _read_keys(self.id, self.keys)

    @property
    def is_by_key(self) -> bool:
        """Whether its rows are identified by keys; without a key they are identified by seq and row number."""
        return SEQ not in self.key_table.column_names

    @property
    def created_at(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self.created_s, dt.UTC)

    def to_dict(self) -> dict[str, Any]:
        facts = {name: value for name, value in vars(self).items() if name not in ("keys", "created_s")}
        return {**facts, "created_at": self.created_at}


class DeadLetters:
    """The dead letters of one state."""

    def __init__(self, state: Database) -> None:
        self._state = state
        state.ensure(deadletters)

    def save(self, consumer: ConsumerRecord, intent_id: str, dead: Sequence[RefusedRows]) -> None:
        """Keep the rows that were refused under an intent; letters that exist already stay unchanged."""
        check_text("intent", intent_id)
        if not dead:
            return
        with self._state.transaction() as connection:
            now = now_s(connection)
            for each in dead:
                vnode, seq, index = each.at
                insert_missing(
                    connection,
                    deadletters,
                    id=_id_of(consumer.generation, intent_id, each),
                    consumer=consumer.name,
                    generation=consumer.generation,
                    table_name=consumer.table,
                    table_generation=consumer.table_generation,
                    vnode=vnode,
                    seq=seq,
                    position=index,
                    rows=each.rows,
                    key_bytes=each.keys,
                    reason=_clean_reason(each.reason),
                    status=each.status,
                    created_s=now,
                    attempts=0,
                )

    def all(self, name: str | None = None, limit: int | None = LIMIT) -> list[DeadLetter]:
        """The letters of one consumer or of all, the newest first; with `limit` None every one."""
        query = select(deadletters) if name is None else select(deadletters).where(deadletters.c.consumer == name)
        newest = (deadletters.c.created_s.desc(), deadletters.c.vnode, deadletters.c.seq, deadletters.c.position)
        query = query.order_by(*newest).limit(None if limit is None else check_int("limit", limit))
        with self._state.reading() as connection:
            return [_to_letter(row) for row in connection.execute(query)]

    def get(self, id: str) -> DeadLetter:
        """The letter with that id. The first characters of an id will do when no other id begins with them."""
        begins = deadletters.c.id.startswith(check_text("id", id).lower(), autoescape=True)
        query = select(deadletters).where(begins)
        with self._state.reading() as connection:
            found = connection.execute(query.order_by(deadletters.c.id).limit(_SHOWN + 1)).all()
        if not found:
            raise NotFound(f"no dead letter {id!r}", hint="See: strandline deadletter list", deadletter=id)
        if len(found) > 1:
            candidates = [row.id for row in found[:_SHOWN]]
            more = ", …" if len(found) > _SHOWN else ""
            raise Invalid(
                f"{id!r} begins the ids of several dead letters: {', '.join(candidates)}{more}",
                hint="Give more of the id.",
                deadletter=id,
                candidates=candidates,
            )
        return _to_letter(found[0])

    def drop(self, ids: Collection[str]) -> int:
        """Delete these letters; returns how many there were."""
        if not ids:
            return 0
        with self._state.transaction() as connection:
            return connection.execute(delete(deadletters).where(deadletters.c.id.in_(sorted(ids)))).rowcount

    def count_refusal(self, id: str, reason: str, status: int | None = None) -> None:
        """Count a refused replay, and keep its reason."""
        counted = {"attempts": deadletters.c.attempts + 1, "reason": _clean_reason(reason), "status": status}
        with self._state.transaction() as connection:
            if not connection.execute(update(deadletters).where(deadletters.c.id == id).values(**counted)).rowcount:
                raise NotFound(f"no dead letter {id!r}", hint="It was dropped meanwhile.", deadletter=id)

    def counts(self) -> dict[str, int]:
        """The number of letters by generation of their consumer."""
        query = select(deadletters.c.generation, func.count()).group_by(deadletters.c.generation)
        with self._state.reading() as connection:
            return {generation: count for generation, count in connection.execute(query)}

    def forget(self, table_generation: str, keys: pa.Table) -> int:
        """Take these keys of a table out of every letter, for a purge; returns how many were found. A letter without
        keys is deleted; a letter that keeps other keys loses its reason, which may quote a purged row."""
        gone = 0
        mine = deadletters.c.table_generation == table_generation
        going = set(_key_values(keys, keys.column_names))
        with self._state.transaction() as connection:
            ids = connection.execute(select(deadletters.c.id).where(mine).order_by(deadletters.c.id)).scalars().all()
            for id in ids:
                which = deadletters.c.id == id
                found = connection.execute(select(deadletters.c.key_bytes).where(which).with_for_update()).scalar()
                if found is None:
                    continue
                held = _read_keys(id, found)
                if not set(keys.column_names) <= set(held.column_names):
                    continue
                stays = [value not in going for value in _key_values(held, keys.column_names)]
                gone += len(stays) - sum(stays)
                if not any(stays):
                    connection.execute(delete(deadletters).where(which))
                elif not all(stays):
                    kept = held.filter(pa.array(stays))
                    left = {"key_bytes": _to_bytes(kept), "rows": kept.num_rows, "reason": ERASED}
                    connection.execute(update(deadletters).where(which).values(**left))
        return gone


def _id_of(generation: str, intent_id: str, dead: RefusedRows) -> str:
    """The same rows have the same id. A refusal of more rows from the same first row on has another."""
    place = "/".join(map(str, (generation, intent_id, *dead.at, dead.rows)))
    return hashlib.sha256(place.encode()).hexdigest()[:32]


def _clean_reason(reason: str) -> str:
    """A destination's message as text that every database can keep and every terminal can show."""
    return scrub_text(reason, most=REASON_CHARACTERS)


def _to_letter(row: Row[Any]) -> DeadLetter:
    return DeadLetter(
        id=row.id,
        consumer=row.consumer,
        generation=row.generation,
        table=row.table_name,
        table_generation=row.table_generation,
        at=(row.vnode, row.seq, row.position),
        rows=row.rows,
        keys=bytes(row.key_bytes),
        reason=_clean_reason(row.reason),
        status=row.status,
        created_s=row.created_s,
        attempts=row.attempts,
    )


def _key_values(keys: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Keys as comparable values; times as numbers, since Python does not support every year."""
    columns = [keys.column(name) for name in names]
    plain = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in columns]
    return list(zip(*(column.to_pylist() for column in plain), strict=True))


def _read_keys(id: str, kept: bytes) -> pa.Table:
    try:
        with pa.ipc.open_stream(kept) as stream:
            return stream.read_all()
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(
            f"the keys of the dead letter {id} cannot be read: {error}",
            hint=f"Restore the state from a backup, or drop the letter: strandline deadletter drop {id}",
            deadletter=id,
        ) from error


def _to_bytes(keys: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as writer:
        writer.write_table(keys)
    return bytes(sink.getvalue())
