"""The consumers of a lake, and the lives (generations) of each name.

A new destination or kind, a recreated table, or another shape of a mirror begins a new life, without marks; the
registration says why. Old lives stay on record. A retired consumer does not hold the log and moves no mark; reviving it
begins a new life.

After a crash: a registration or retirement is complete, or it left nothing.
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

UNDECIDED, SHAPE = "undecided", "shape"
_APART_S = 0.002
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")

# One row per name, with its current generation. Every change of a consumer locks this row.
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
_select_current = select(consumers.c.generation).where(consumers.c.name == bindparam("name"))
_lock_current = _select_current.with_for_update()
_select_life = select(generations).where(generations.c.generation == bindparam("generation"))
_select_all_current = (
    select(generations).where(generations.c.generation == consumers.c.generation).order_by(generations.c.name)
)


@dataclass(frozen=True)
class ConsumerRecord:
    """One life of a consumer. `destination` identifies where its effect goes; `life` counts from 1."""

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
        """Why its position is unknown, after its marks were lost. It is retired until a person decides."""
        found = self.definition.get(UNDECIDED)
        return None if found is None else str(found)

    def without_undecided(self) -> ConsumerRecord:
        """The same record after a person has decided."""
        kept = {name: value for name, value in self.definition.items() if name != UNDECIDED}
        return replace(self, definition=kept)

    @property
    def began_ms(self) -> int:
        """When this life began. Unlike `life`, it rises even after the state was restored from an old copy, which
        gives the numbers of the lost lives out again."""
        return round(self.created_s * 1000)

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"{self.kind} {self.name!r}"


@dataclass(frozen=True)
class Registration:
    """What `register` found or made. `why` says what has changed, in words."""

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
    ) -> Registration:
        """Make a consumer known, or find it with its marks.

        A consumer keeps its generation as long as its kind, destination and table generation are the same. Its
        definition may change; open intents keep the old one. Otherwise it gets a new generation. A retired consumer
        stays unchanged, because a person retired it and the log may be gone, unless `revive` starts a new generation.
        A new generation begins later than `after_ms`, the newest life that its destination knows."""
        draft = _draft_record(name, kind, table, table_generation, destination, definition)
        with self._state.transaction() as connection:
            insert_missing(connection, consumers, name=name)
            found = find_current(connection, name, is_locking=True)
            under_way = [] if found is None else open_intents(connection, [found.generation])
            registration = _compare_records(found, under_way, draft, revive)
            if registration.is_new:
                life, created_s = _next_life(connection, name, after_ms / 1000)
                new = replace(draft, generation=uuid.uuid4().hex, life=life, created_s=created_s)
                registration = replace(registration, consumer=new)
                _insert_life(connection, new)
                _set_current(connection, name, new.generation)
            elif found is not None and _stored_facts(registration.consumer) != _stored_facts(found):
                _update_life(connection, registration.consumer)
        return registration

    def retire(self, name: str) -> ConsumerRecord:
        """Stop a consumer: it no longer holds the log or moves a mark. Its marks and intents stay on record."""
        with self._state.transaction() as connection:
            found = find_current(connection, name, is_locking=True) or raise_not_found(connection, name)
            now: ConsumerRecord = replace(found.without_undecided(), is_retired=True)
            _update_life(connection, now)
        return now

    def get(self, name: str) -> ConsumerRecord:
        with self._state.reading() as connection:
            return find_current(connection, name) or raise_not_found(connection, name)

    def all(self) -> list[ConsumerRecord]:
        """The current life of every consumer, also of the retired ones, by name."""
        with self._state.reading() as connection:
            return list_current(connection)

    def history(self, name: str) -> list[ConsumerRecord]:
        """Every generation of a name, the newest last."""
        query = select(generations).where(generations.c.name == name).order_by(generations.c.life)
        with self._state.reading() as connection:
            return [_to_record(row) for row in connection.execute(query)]


# --- inside a transaction ---------------------------------------------------------------------------------------


def lock_living(connection: Connection, name: str, generation: str, fence: int) -> ConsumerRecord:
    """Lock a consumer; `Conflict` unless the fence is the newest and this generation is current and not retired."""
    check_fence(connection, lease_of(name), check_int("fence", fence))
    found: ConsumerRecord = find_current(connection, name, is_locking=True) or raise_not_found(connection, name)
    is_current = found.generation == generation
    if not is_current or found.is_retired:
        raise Conflict(
            f"{name!r} was {'retired' if is_current else 'registered anew'} by another process",
            hint="Nothing was changed. Get the consumer again.",
            consumer=name,
            generation=generation,
            found=found.generation,
        )
    return found


def find_current(connection: Connection, name: str, *, is_locking: bool = False) -> ConsumerRecord | None:
    """The current life of a name."""
    generation = connection.execute(_lock_current if is_locking else _select_current, {"name": name}).scalar()
    # A second statement: a join would look for the generation that the name had before the lock was granted.
    return None if generation is None else find_life(connection, generation)


def find_life(connection: Connection, generation: str) -> ConsumerRecord | None:
    row = connection.execute(_select_life, {"generation": generation}).one_or_none()
    return None if row is None else _to_record(row)


def list_current(connection: Connection) -> list[ConsumerRecord]:
    return [_to_record(row) for row in connection.execute(_select_all_current)]


def put_life(connection: Connection, consumer: ConsumerRecord) -> ConsumerRecord:
    """Make a given life the current one of its name, whose row is locked. Returns the life as it is on record."""
    found = find_life(connection, consumer.generation)
    if found is not None and found.name != consumer.name:
        raise Conflict(
            f"the generation {consumer.generation} is one of {found.name!r}, not of {consumer.name!r}",
            consumer=consumer.name,
            generation=consumer.generation,
        )
    if found is not None:
        kept = replace(consumer, life=found.life, created_s=found.created_s)
        _update_life(connection, kept)
    else:
        mine = select(generations.c.life).where(generations.c.name == consumer.name)
        taken = list(connection.execute(mine).scalars())
        kept = replace(consumer, life=max(taken) + 1 if consumer.life in taken else consumer.life)
        _insert_life(connection, kept)
    _set_current(connection, consumer.name, consumer.generation)
    return kept


def raise_not_found(connection: Connection, name: str) -> Any:
    names = connection.execute(select(consumers.c.name).order_by(consumers.c.name)).scalars().all()
    raise NotFound(
        f"no consumer {name!r} in this state", hint=f"Consumers: {', '.join(names) or 'none yet'}", consumer=name
    )


def _next_life(connection: Connection, name: str, after_s: float) -> tuple[int, float]:
    """The number of a new life and when it begins: after every earlier life, even if a clock went back."""
    query = select(func.max(generations.c.life), func.max(generations.c.created_s)).where(generations.c.name == name)
    life, created_s = connection.execute(query).one()
    return (life or 0) + 1, max(now_s(connection), (created_s or 0) + _APART_S, after_s + _APART_S)


def _insert_life(connection: Connection, new: ConsumerRecord) -> None:
    connection.execute(
        insert(generations).values(
            generation=new.generation, name=new.name, life=new.life, created_s=new.created_s, **_stored_facts(new)
        )
    )


def _update_life(connection: Connection, now: ConsumerRecord) -> None:
    mine = generations.c.generation == now.generation
    connection.execute(update(generations).where(mine).values(**_stored_facts(now)))


def _stored_facts(consumer: ConsumerRecord) -> dict[str, Any]:
    return {
        "kind": consumer.kind,
        "table_name": consumer.table,
        "table_generation": consumer.table_generation,
        "destination": consumer.destination,
        "definition": to_json("definition", dict(consumer.definition)),
        "is_retired": consumer.is_retired,
    }


def _set_current(connection: Connection, name: str, generation: str) -> None:
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
) -> Registration:
    """What `register` would return or raise; `found` is the consumer's record, `under_way` are its open intents. The
    preview of a new life has no generation, and its number is a guess: the next one after the current life."""
    draft = _draft_record(name, kind, table, table_generation, destination, definition)
    life = (0 if found is None else found.life) + 1
    return _compare_records(found, under_way, replace(draft, life=life), revive)


def _draft_record(
    name: str, kind: str, table: str, table_generation: str, destination: str, definition: Mapping[str, Any]
) -> ConsumerRecord:
    """The checked arguments as a record without a generation."""
    check_consumer_name(name)
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


def check_consumer_name(name: str) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise Invalid(f"a sink cannot have the name {name!r}", hint="Use letters, digits, _ . and -", consumer=name)
    return name


def _compare_records(
    found: ConsumerRecord | None, under_way: Sequence[Intent], draft: ConsumerRecord, revive: bool
) -> Registration:
    """Decide whether the consumer on record continues or a new life begins, and why."""
    if found is None:
        return Registration(draft, True, "registered for the first time")
    if found.is_retired and not revive:
        return Registration(found, False, "it is retired and stays retired")
    if why := _list_changes(found, draft):
        if under_way:
            batches = "a batch" if len(under_way) == 1 else f"{len(under_way)} batches"
            why.append(f"{batches} begun there will not be finished")
        return Registration(draft, True, "; ".join(why))
    is_changed = to_json("definition", found.definition) != to_json("definition", draft.definition)
    why += ["definition changed"] if is_changed else []
    why += ["the unfinished batch is finished with the old one"] if is_changed and under_way else []
    why += [f"table was renamed from {found.table} to {draft.table}"] if found.table != draft.table else []
    return Registration(replace(found, table=draft.table, definition=draft.definition), False, "; ".join(why))


def _list_changes(found: ConsumerRecord, draft: ConsumerRecord) -> list[str]:
    """Why a consumer needs a new life; empty when it continues the one on record."""
    why = []
    if found.kind != draft.kind:
        why.append(f"kind changed from {found.kind} to {draft.kind}")
    if found.destination != draft.destination:
        why.append(f"destination changed from {found.destination} to {draft.destination}")
    if found.table_generation != draft.table_generation:
        why.append("table was recreated")
    elif found.definition.get(SHAPE) != draft.definition.get(SHAPE):
        why.append("its rows or columns changed, so the mirror is written again")
    if found.is_retired:
        why.append("it had been retired")
    return why


def _to_record(row: Row[Any]) -> ConsumerRecord:
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
