"""The consumers of a lake, and the lives (generations) of each name.

Another destination, another kind or a recreated table is a new life, without marks, and says so. Old lives stay on
record. A retired consumer holds nothing and moves no mark; to revive it is to begin a new life.

After a crash: a consumer is registered or retired, or it is as it was.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Double,
    Integer,
    Row,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    func,
    insert,
    select,
    update,
)

from strandline.errors import Conflict, Invalid, NotFound
from strandline.model.text import check_text
from strandline.state.database import Database, insert_missing, metadata, now_s
from strandline.state.intents import Intent, intents, open_intents
from strandline.state.leases import check_fence, leases
from strandline.state.values import check_int, from_json, to_json

UNDECIDED = "undecided"
_APART_S = 0.002
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")

# One row a name: which generation it is now. It is locked by whatever changes something of the consumer.
consumers = Table(
    "strandline_consumers",
    metadata,
    Column("name", Text, primary_key=True),
    Column("generation", Text),
)
generations = Table(
    "strandline_generations",
    metadata,
    Column("generation", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("life", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("table_generation", Text, nullable=False, index=True),
    Column("destination", Text, nullable=False),
    Column("definition", Text, nullable=False),
    Column("is_retired", Boolean, nullable=False),
    Column("created_s", Double, nullable=False),
    UniqueConstraint("name", "life"),
)
_current = select(consumers.c.generation).where(consumers.c.name == bindparam("name"))
_current_locked = _current.with_for_update()
_life = select(generations).where(generations.c.generation == bindparam("generation"))
_all_current = (
    select(generations).where(generations.c.generation == consumers.c.generation).order_by(generations.c.name)
)


@dataclass(frozen=True)
class ConsumerRecord:
    """One life of a name that reads a table. `destination` is a text that identifies where its effect goes; `life`
    counts the generations of the name, from 1."""

    name: str
    kind: str
    table: str
    table_generation: str
    destination: str
    generation: str
    life: int
    definition: Mapping[str, Any] = field(hash=False)
    is_retired: bool
    created_s: float

    @property
    def lease(self) -> str:
        return lease_of(self.name)

    def to_dict(self) -> dict[str, Any]:
        facts = {name: value for name, value in vars(self).items() if name != "created_s"}
        return {**facts, "created_at": dt.datetime.fromtimestamp(self.created_s, dt.UTC)}

    @property
    def undecided(self) -> str | None:
        """Why nobody knows where it goes on, when its marks were lost: it waits, retired, for a person to say it."""
        found = self.definition.get(UNDECIDED)
        return None if found is None else str(found)

    def decided(self) -> ConsumerRecord:
        """The same, when a person has said what becomes of it."""
        kept = {name: value for name, value in self.definition.items() if name != UNDECIDED}
        return replace(self, definition=kept)

    @property
    def began_ms(self) -> int:
        """When this life began. It rises from one life to the next, also after the state was put back from a copy that
        does not know the last ones, whose numbers (`life`) are then given again."""
        return round(self.created_s * 1000)

    @property
    def title(self) -> str:
        """How it is called in a sentence."""
        return f"{self.kind} {self.name!r}"


@dataclass(frozen=True)
class Registered:
    """What `register` found or made; `why` says in words what is not as it was before."""

    consumer: ConsumerRecord
    is_new: bool
    why: str


class Registry:
    """The consumers of one state."""

    def __init__(self, state: Database) -> None:
        self._state = state
        state.ensure(consumers, generations, intents, leases)

    def register(
        self,
        name: str,
        *,
        kind: str,
        table: str,
        table_generation: str,
        destination: str,
        definition: Mapping[str, Any],
        revive: bool = False,
        after_ms: int = 0,
    ) -> Registered:
        """Make a consumer known, or find it with its marks.

        The same kind, destination and table generation keep the generation; a changed definition keeps it too, and
        open intents keep theirs. Anything else is a new generation. A retired consumer stays as it is,
        whatever is told, since a person said so and the log may be gone, unless `revive` starts a new generation.
        A new generation begins later than `after_ms`, the newest life that its destination knows."""
        told = _told(name, kind, table, table_generation, destination, definition)
        with self._state.transaction() as connection:
            insert_missing(connection, consumers, name=name)
            found = current(connection, name, is_locking=True)
            under_way = [] if found is None else open_intents(connection, [found.generation])
            decided = _decided(found, under_way, told, revive)
            if decided.is_new:
                life, created_s = _next_life(connection, name, after_ms / 1000)
                new = replace(told, generation=uuid.uuid4().hex, life=life, created_s=created_s)
                decided = replace(decided, consumer=new)
                _insert(connection, new)
                _point(connection, name, new.generation)
            elif found is not None and _facts(decided.consumer) != _facts(found):
                _update(connection, decided.consumer)
        return decided

    def retire(self, name: str) -> ConsumerRecord:
        """Let a consumer hold nothing and move no mark any more. Its marks and intents stay on record."""
        with self._state.transaction() as connection:
            found = current(connection, name, is_locking=True) or not_found(connection, name)
            now: ConsumerRecord = replace(found.decided(), is_retired=True)
            _update(connection, now)
        return now

    def get(self, name: str) -> ConsumerRecord:
        with self._state.reading() as connection:
            return current(connection, name) or not_found(connection, name)

    def all(self) -> list[ConsumerRecord]:
        """Every consumer as it is now, by name, also the retired."""
        with self._state.reading() as connection:
            return all_current(connection)

    def history(self, name: str) -> list[ConsumerRecord]:
        """Every generation of a name, the newest last."""
        query = select(generations).where(generations.c.name == name)
        with self._state.reading() as connection:
            return [_consumer(row) for row in connection.execute(query.order_by(generations.c.life))]


# --- inside a transaction ---------------------------------------------------------------------------------------


def guard(connection: Connection, name: str, generation: str, fence: int) -> ConsumerRecord:
    """Lock a consumer; `Conflict` unless the fence is the newest and this generation is the living one."""
    check_fence(connection, lease_of(name), check_int("fence", fence))
    found: ConsumerRecord = current(connection, name, is_locking=True) or not_found(connection, name)
    is_current = found.generation == generation
    if not is_current or found.is_retired:
        raise Conflict(
            f"{name!r} was {'retired' if is_current else 'registered anew'} meanwhile",
            hint="Nothing was changed. Get the consumer again.",
            consumer=name,
            generation=generation,
            found=found.generation,
        )
    return found


def current(connection: Connection, name: str, *, is_locking: bool = False) -> ConsumerRecord | None:
    """The life that a name has now."""
    generation = connection.execute(_current_locked if is_locking else _current, {"name": name}).scalar()
    # A statement of its own: one that joins would look for the generation that the name had before it waited.
    return None if generation is None else by_generation(connection, generation)


def by_generation(connection: Connection, generation: str) -> ConsumerRecord | None:
    row = connection.execute(_life, {"generation": generation}).one_or_none()
    return None if row is None else _consumer(row)


def all_current(connection: Connection) -> list[ConsumerRecord]:
    return [_consumer(row) for row in connection.execute(_all_current)]


def put_life(connection: Connection, consumer: ConsumerRecord) -> ConsumerRecord:
    """Let a life with a given generation be the current one of its name, whose row is locked; it as it is on record."""
    found = by_generation(connection, consumer.generation)
    if found is not None and found.name != consumer.name:
        raise Conflict(
            f"the generation {consumer.generation} is one of {found.name!r}, not of {consumer.name!r}",
            consumer=consumer.name,
            generation=consumer.generation,
        )
    if found is not None:
        kept = replace(consumer, life=found.life, created_s=found.created_s)
        _update(connection, kept)
    else:
        taken = _lives(connection, consumer.name)
        kept = replace(consumer, life=max(taken) + 1 if consumer.life in taken else consumer.life)
        _insert(connection, kept)
    _point(connection, consumer.name, consumer.generation)
    return kept


def not_found(connection: Connection, name: str) -> Any:
    names = connection.execute(select(consumers.c.name).order_by(consumers.c.name)).scalars().all()
    raise NotFound(
        f"no consumer {name!r} in this state", hint=f"Consumers: {', '.join(names) or 'none yet'}", consumer=name
    )


def _next_life(connection: Connection, name: str, after_s: float) -> tuple[int, float]:
    """The number of a new life, and when it begins: after the ones before it, whatever the clock says."""
    query = select(func.max(generations.c.life), func.max(generations.c.created_s)).where(generations.c.name == name)
    life, created_s = connection.execute(query).one()
    return (life or 0) + 1, max(now_s(connection), (created_s or 0) + _APART_S, after_s + _APART_S)


def _lives(connection: Connection, name: str) -> list[int]:
    return list(connection.execute(select(generations.c.life).where(generations.c.name == name)).scalars())


def _insert(connection: Connection, new: ConsumerRecord) -> None:
    connection.execute(
        insert(generations).values(
            generation=new.generation, name=new.name, life=new.life, created_s=new.created_s, **_facts(new)
        )
    )


def _update(connection: Connection, now: ConsumerRecord) -> None:
    connection.execute(update(generations).where(generations.c.generation == now.generation).values(**_facts(now)))


def _facts(consumer: ConsumerRecord) -> dict[str, Any]:
    return {
        "kind": consumer.kind,
        "table_name": consumer.table,
        "table_generation": consumer.table_generation,
        "destination": consumer.destination,
        "definition": to_json("definition", dict(consumer.definition)),
        "is_retired": consumer.is_retired,
    }


def _point(connection: Connection, name: str, generation: str) -> None:
    connection.execute(update(consumers).where(consumers.c.name == name).values(generation=generation))


# --- values -----------------------------------------------------------------------------------------------------


def preview(
    name: str,
    *,
    kind: str,
    table: str,
    table_generation: str,
    destination: str,
    definition: Mapping[str, Any],
    found: ConsumerRecord | None,
    under_way: Sequence[Intent],
    revive: bool = False,
) -> Registered:
    """What `register` would return or raise; `found` is the consumer's record, `under_way` are its open intents. The
    preview of a new life has no generation, and its number is a guess: the next one after the current life."""
    told = _told(name, kind, table, table_generation, destination, definition)
    life = (0 if found is None else found.life) + 1
    return _decided(found, under_way, replace(told, life=life), revive)


def _told(
    name: str, kind: str, table: str, table_generation: str, destination: str, definition: Mapping[str, Any]
) -> ConsumerRecord:
    """What a caller says, checked; it has no generation yet."""
    checked_name(name)
    roles = {"kind": kind, "table": table, "table generation": table_generation, "destination": destination}
    for role, value in roles.items():
        check_text(role, value)
    if not isinstance(definition, Mapping):
        raise Invalid(f"definition is a {type(definition).__name__}; expected a mapping", consumer=name)
    return ConsumerRecord(
        name=name,
        kind=kind,
        table=table,
        table_generation=table_generation,
        destination=destination,
        generation="",
        life=1,
        definition=from_json("definition", to_json("definition", dict(definition))),
        is_retired=False,
        created_s=0.0,
    )


def checked_name(name: str) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise Invalid(f"a sink cannot have the name {name!r}", hint="Use letters, digits, _ . and -", consumer=name)
    return name


def _decided(
    found: ConsumerRecord | None, under_way: Sequence[Intent], told: ConsumerRecord, revive: bool
) -> Registered:
    """Whether the consumer on record goes on or a new life begins, and why."""
    if found is None:
        return Registered(told, True, "registered for the first time")
    if found.is_retired and not revive:
        return Registered(found, False, "it is retired and stays so")
    if why := _changes(found, told):
        if under_way:
            batches = "a batch" if len(under_way) == 1 else f"{len(under_way)} batches"
            why.append(f"{batches} begun there will not be finished")
        return Registered(told, True, "; ".join(why))
    is_changed = to_json("definition", found.definition) != to_json("definition", told.definition)
    why += ["definition changed"] if is_changed else []
    why += ["what was begun is finished by the old one"] if is_changed and under_way else []
    why += [f"table was renamed from {found.table} to {told.table}"] if found.table != told.table else []
    return Registered(replace(found, table=told.table, definition=told.definition), False, "; ".join(why))


def _changes(found: ConsumerRecord, told: ConsumerRecord) -> list[str]:
    """In which way a consumer is no longer the one on record; empty when it still is."""
    why = []
    if found.kind != told.kind:
        why.append(f"kind changed from {found.kind} to {told.kind}")
    if found.destination != told.destination:
        why.append(f"destination changed from {found.destination} to {told.destination}")
    if found.table_generation != told.table_generation:
        why.append("table was recreated")
    if found.is_retired:
        why.append("it had been retired")
    return why


def _consumer(row: Row[Any]) -> ConsumerRecord:
    return ConsumerRecord(
        name=row.name,
        kind=row.kind,
        table=row.table_name,
        table_generation=row.table_generation,
        destination=row.destination,
        generation=row.generation,
        life=row.life,
        definition=from_json(f"the definition of {row.name!r}", row.definition),
        is_retired=row.is_retired,
        created_s=row.created_s,
    )


def lease_of(name: str) -> str:
    """The name of the lease under which a consumer works."""
    return f"consumer/{name}"
