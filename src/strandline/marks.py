"""Consumers and their marks, intents and receipts: how far each has come, and what it is about to do.

- A mark belongs to one generation of a consumer: another destination, another kind or a recreated table is a new
  generation without marks, and says so. Old generations stay on record.
- A mark moves forward only, by compare-and-swap of every vnode in one transaction, under the fence of its consumer's
  lease; only `reset`, a person's command, may set it back.
- An open intent stands exactly on its marks: each of its vnodes is at `after` until the advance that closes it, which
  goes to `upto`. A vnode has one open intent at most; the definition cannot change while there is one.
- The slowest living consumer holds its table's log; one that has not started counts as 0, a retired one not at all.

After a crash: marks, intent and receipt of an advance are there together or not at all. An intent that is still open
names the range that was under way; its effect is repeated with the same cuts before anything newer.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Integer,
    Row,
    Table,
    Text,
    UniqueConstraint,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from strandline.crash import crash_point
from strandline.errors import Conflict, Invalid, NotFound
from strandline.leases import check_fence
from strandline.leases import leases as _leases
from strandline.state import State, check_int, check_text, from_json, insert_missing, metadata, now_s, to_json

RECEIPTS = 100
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
marks = Table(
    "strandline_marks",
    metadata,
    Column("generation", Text, primary_key=True),
    Column("vnode", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
)
intents = Table(
    "strandline_intents",
    metadata,
    Column("id", Text, primary_key=True),
    Column("generation", Text, nullable=False),
    Column("lane", Text, nullable=False),
    Column("vnodes", Text, nullable=False),
    Column("after", BigInteger, nullable=False),
    Column("upto", BigInteger, nullable=False),
    Column("definition", Text, nullable=False),
    Column("schema_id", Integer, nullable=False),
    Column("cuts", Text, nullable=False),
    Column("created_s", Double, nullable=False),
    UniqueConstraint("generation", "lane"),
)
receipts = Table(
    "strandline_receipts",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("generation", Text, nullable=False, index=True),
    Column("at_s", Double, nullable=False),
    Column("body", Text, nullable=False),
)


@dataclass(frozen=True)
class Consumer:
    """One life of a name that reads a table. `destination` is a text that identifies where its effect goes."""

    name: str
    kind: str
    table: str
    table_generation: str
    destination: str
    generation: str
    definition: Mapping[str, Any] = field(hash=False)
    is_retired: bool
    created_s: float

    @property
    def lease(self) -> str:
        """The name of the lease under which it works."""
        return _lease_of(self.name)


@dataclass(frozen=True)
class Registered:
    """What `register` found or made; `why` says in words what is not as it was before."""

    consumer: Consumer
    is_new: bool
    why: str


@dataclass(frozen=True)
class Intent:
    """An effect that a consumer began: the rows of `vnodes` in `(after, upto]`, cut as `cuts` says."""

    id: str
    generation: str
    lane: str
    vnodes: tuple[int, ...]
    after: int
    upto: int
    definition: Mapping[str, Any] = field(hash=False)
    schema_id: int
    cuts: Any = field(hash=False)
    created_s: float


@dataclass(frozen=True)
class Receipt:
    """What one advance did, as its consumer tells it."""

    at_s: float
    body: Mapping[str, Any] = field(hash=False)


class Marks:
    """The consumers of one state."""

    def __init__(self, state: State) -> None:
        self._state = state
        state.ensure(consumers, generations, marks, intents, receipts, _leases)

    # --- consumers ---------------------------------------------------------------------------------------------

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
    ) -> Registered:
        """Make a consumer known, or find it with its marks.

        The same kind, destination and table generation keep the generation; a changed definition keeps it too, and is
        a `Conflict` while an intent is open. Anything else is a new generation. A retired consumer stays retired, since
        a person said so and the log may be gone, unless `revive` starts it as a new generation."""
        if not isinstance(name, str) or not _NAME.match(name):
            raise Invalid(f"consumer name {name!r} is not allowed", hint="Use letters, digits, '_', '.' and '-'.")
        told = {"kind": kind, "table": table, "table generation": table_generation, "destination": destination}
        for role, value in told.items():
            check_text(role, value)
        if not isinstance(definition, Mapping):
            raise Invalid(f"definition is a {type(definition).__name__}; expected a mapping", consumer=name)
        kept = to_json("definition", dict(definition))
        with self._state.transaction() as connection:
            insert_missing(connection, consumers, name=name)
            found = _current(connection, name, is_locking=True)
            if found is not None and not (why := _changes(found, kind, table_generation, destination, revive)):
                return _kept(connection, found, table, kept)
            new = Consumer(
                name=name,
                kind=kind,
                table=table,
                table_generation=table_generation,
                destination=destination,
                generation=uuid.uuid4().hex,
                definition=from_json("definition", kept),
                is_retired=False,
                created_s=now_s(connection),
            )
            if found is None:
                why = "registered for the first time"
            elif given_up := _open(connection, found.generation):
                why += f"; {len(given_up)} open intent(s) there are given up"
            _insert_generation(connection, new, kept)
            connection.execute(update(consumers).where(consumers.c.name == name).values(generation=new.generation))
        return Registered(new, True, why)

    def retire(self, name: str) -> Consumer:
        """Let a consumer hold nothing and move no mark any more. Its marks and intents stay on record."""
        with self._state.transaction() as connection:
            found = _current(connection, name, is_locking=True) or _not_found(connection, name)
            which = generations.c.generation == found.generation
            connection.execute(update(generations).where(which).values(is_retired=True))
        return replace(found, is_retired=True)

    def get(self, name: str) -> Consumer:
        with self._state.reading() as connection:
            return _current(connection, name) or _not_found(connection, name)

    def all(self) -> list[Consumer]:
        """Every consumer as it is now, by name, also the retired."""
        query = select(generations).where(generations.c.generation == consumers.c.generation)
        with self._state.reading() as connection:
            return [_consumer(row) for row in connection.execute(query.order_by(generations.c.name))]

    def history(self, name: str) -> list[Consumer]:
        """Every generation of a name, the newest last."""
        query = select(generations).where(generations.c.name == name)
        with self._state.reading() as connection:
            return [_consumer(row) for row in connection.execute(query.order_by(generations.c.life))]

    # --- marks -------------------------------------------------------------------------------------------------

    def load(self, consumer: Consumer) -> dict[int, int]:
        """The seq up to which each vnode's effect is durable; a vnode that has not started is absent."""
        with self._state.reading() as connection:
            # Marks that are missing because the state is another one must not look like a consumer that never began.
            if _generation(connection, consumer.generation) is None:
                _not_found(connection, consumer.name)
            return _marks(connection, consumer.generation)

    def start(self, consumer: Consumer, seqs: Mapping[int, int], fence: int) -> None:
        """Set the first marks; `Conflict` for a vnode that has one."""
        _check_seqs(seqs)
        with self._state.transaction() as connection:
            _guard(connection, consumer.name, consumer.generation, fence)
            found = _marks(connection, consumer.generation)
            for vnode in sorted(seqs):
                if vnode in found:
                    raise _moved(consumer.name, vnode, None, found[vnode])
            _insert_marks(connection, consumer.generation, seqs)

    def advance(
        self,
        consumer: Consumer,
        moves: Mapping[int, tuple[int, int]],
        *,
        fence: int,
        intent: Intent | None = None,
        receipt: Mapping[str, Any] | None = None,
    ) -> None:
        """Move marks from the expected seq to another, all or none; with it close the intent and keep the receipt.

        Called when the effect is durable. `moves` is `{vnode: (expected, to)}`, empty to leave only a receipt. Vnodes
        of an open intent move only with it, all of them, over exactly its range."""
        for vnode, (expected, to) in moves.items():
            check_int("vnode", vnode)
            check_int("expected mark", expected)
            check_int("mark", to)
            if to < expected:
                raise Invalid(
                    f"mark {consumer.name!r} of vnode {vnode} cannot go back from {expected} to {to}",
                    hint="Only a reset sets a mark back.",
                    consumer=consumer.name,
                    vnode=vnode,
                    expected=expected,
                    to=to,
                )
        body = None if receipt is None else to_json("receipt", dict(receipt))
        with self._state.transaction() as connection:
            _guard(connection, consumer.name, consumer.generation, fence)
            _compare(consumer.name, _marks(connection, consumer.generation), {v: move[0] for v, move in moves.items()})
            _close(connection, consumer, moves, intent)
            if moves:
                # The rows are locked through their consumer, and were compared above.
                of_vnode = and_(marks.c.generation == consumer.generation, marks.c.vnode == bindparam("which"))
                rows = [{"which": vnode, "to": to} for vnode, (_, to) in sorted(moves.items())]
                connection.execute(update(marks).where(of_vnode).values(seq=bindparam("to")), rows)
            if body is not None:
                _keep_receipt(connection, consumer.generation, body)
        crash_point("marks.advanced")

    def reset(self, consumer: Consumer, seqs: Mapping[int, int] | None, *, force: bool = False) -> None:
        """Set marks by command, back as well as forward; None forgets all, as if it had not started.

        `Conflict` while an intent is open: its effect may be half done; `force` gives it up. A runner at work meanwhile
        finds another mark than it expects at its next advance."""
        _check_seqs(seqs or {})
        with self._state.transaction() as connection:
            _guard(connection, consumer.name, consumer.generation, None)
            if (under_way := _open(connection, consumer.generation)) and not force:
                raise _busy(consumer.name, under_way[0], "its marks cannot be reset")
            connection.execute(delete(intents).where(intents.c.generation == consumer.generation))
            which = marks.c.generation == consumer.generation
            if seqs is not None:
                which = and_(which, marks.c.vnode.in_(sorted(seqs)))
            connection.execute(delete(marks).where(which))
            _insert_marks(connection, consumer.generation, seqs or {})

    def slowest(self, table_generation: str, vnodes: int) -> int | None:
        """The seq behind which the log of a table may be trimmed: the lowest mark of its living consumers over all its
        vnodes, 0 when one has not started; None when nobody reads it."""
        if not check_int("vnodes", vnodes):
            raise Invalid("a table has at least one vnode")
        query = (
            select(func.count(marks.c.seq).label("started"), func.min(marks.c.seq).label("lowest"))
            .select_from(generations)
            .join(consumers, consumers.c.generation == generations.c.generation)
            .outerjoin(marks, and_(marks.c.generation == generations.c.generation, marks.c.vnode < vnodes))
            .where(generations.c.table_generation == table_generation, generations.c.is_retired.is_(False))
            .group_by(generations.c.generation)
        )
        with self._state.reading() as connection:
            lowest = [row.lowest if row.started == vnodes else 0 for row in connection.execute(query)]
        return min(lowest, default=None)

    # --- intents -----------------------------------------------------------------------------------------------

    def open_intent(
        self,
        consumer: Consumer,
        *,
        lane: str,
        vnodes: Collection[int],
        after: int,
        upto: int,
        schema_id: int,
        fence: int,
        cuts: Any = None,
    ) -> Intent:
        """Save what is about to be done, before it is done. Its vnodes stand at `after`; `Conflict` when one does not,
        has an open intent, or the consumer's definition is not the one that is saved any more."""
        check_text("lane", lane)
        chosen = tuple(sorted({check_int("vnode", vnode) for vnode in vnodes}))
        check_int("schema id", schema_id)
        if not chosen or check_int("after", after) >= check_int("upto", upto):
            raise Invalid(f"an intent for vnodes {list(chosen)} in ({after}, {upto}] holds nothing", lane=lane)
        kept = to_json("cuts", cuts)
        with self._state.transaction() as connection:
            now = _guard(connection, consumer.name, consumer.generation, fence)
            definition = to_json("definition", now.definition)
            if definition != to_json("definition", dict(consumer.definition)):
                raise Conflict(
                    f"the definition of {consumer.name!r} was changed meanwhile",
                    hint="Nothing was done. Get the consumer again.",
                    consumer=consumer.name,
                )
            for other in _open(connection, consumer.generation):
                if other.lane == lane or set(chosen) & set(other.vnodes):
                    raise _busy(consumer.name, other, f"lane {lane!r} cannot begin another")
            _compare(consumer.name, _marks(connection, consumer.generation), dict.fromkeys(chosen, after))
            intent = Intent(
                id=uuid.uuid4().hex,
                generation=consumer.generation,
                lane=lane,
                vnodes=chosen,
                after=after,
                upto=upto,
                definition=now.definition,
                schema_id=schema_id,
                cuts=from_json("cuts", kept),
                created_s=now_s(connection),
            )
            row = {**vars(intent), "vnodes": to_json("vnodes", chosen), "cuts": kept}
            connection.execute(insert(intents).values({**row, "definition": definition}))
        crash_point("marks.intent_saved")
        return intent

    def intents(self, consumer: Consumer) -> list[Intent]:
        """The open intents of a consumer, the oldest first."""
        with self._state.reading() as connection:
            return _open(connection, consumer.generation)

    def save_cuts(self, intent: Intent, cuts: Any, fence: int) -> Intent:
        """Keep how an open intent's rows are cut, so that a replay repeats the same cuts."""
        kept = to_json("cuts", cuts)
        with self._state.transaction() as connection:
            found = _generation(connection, intent.generation)
            if found is None:
                raise _gone(intent)
            _guard(connection, found.name, found.generation, fence)
            changed = connection.execute(update(intents).where(intents.c.id == intent.id).values(cuts=kept))
            if changed.rowcount != 1:
                raise _gone(intent)
        return replace(intent, cuts=from_json("cuts", kept))

    # --- receipts ----------------------------------------------------------------------------------------------

    def receipts(self, consumer: Consumer, limit: int = RECEIPTS) -> list[Receipt]:
        """What its last advances did, the newest first; at most `RECEIPTS` are kept."""
        query = select(receipts).where(receipts.c.generation == consumer.generation)
        with self._state.reading() as connection:
            rows = connection.execute(query.order_by(receipts.c.id.desc()).limit(check_int("limit", limit))).all()
        return [Receipt(row.at_s, from_json("receipt", row.body)) for row in rows]


# --- inside a transaction ---------------------------------------------------------------------------------------


def _guard(connection: Connection, name: str, generation: str, fence: int | None) -> Consumer:
    """Lock a consumer; `Conflict` unless the fence is the newest and this generation is the living one. None: whatever
    the lease."""
    if fence is not None:
        check_fence(connection, _lease_of(name), check_int("fence", fence))
    found = _current(connection, name, is_locking=True) or _not_found(connection, name)
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


def _current(connection: Connection, name: str, *, is_locking: bool = False) -> Consumer | None:
    query = select(consumers.c.generation).where(consumers.c.name == name)
    generation = connection.execute(query.with_for_update() if is_locking else query).scalar()
    # A statement of its own: one that joins would look for the generation that the name had before it waited.
    return None if generation is None else _generation(connection, generation)


def _generation(connection: Connection, generation: str) -> Consumer | None:
    row = connection.execute(select(generations).where(generations.c.generation == generation)).one_or_none()
    return None if row is None else _consumer(row)


def _consumer(row: Row[Any]) -> Consumer:
    return Consumer(
        name=row.name,
        kind=row.kind,
        table=row.table_name,
        table_generation=row.table_generation,
        destination=row.destination,
        generation=row.generation,
        definition=from_json(f"the definition of {row.name!r}", row.definition),
        is_retired=row.is_retired,
        created_s=row.created_s,
    )


def _insert_generation(connection: Connection, new: Consumer, definition: str) -> None:
    earlier = select(func.count()).where(generations.c.name == new.name).scalar_subquery()
    connection.execute(
        insert(generations).values(
            generation=new.generation,
            name=new.name,
            life=earlier + 1,
            kind=new.kind,
            table_name=new.table,
            table_generation=new.table_generation,
            destination=new.destination,
            definition=definition,
            is_retired=new.is_retired,
            created_s=new.created_s,
        )
    )


def _not_found(connection: Connection, name: str) -> Any:
    names = connection.execute(select(consumers.c.name).order_by(consumers.c.name)).scalars().all()
    raise NotFound(
        f"no consumer {name!r} in this state", hint=f"Consumers: {', '.join(names) or 'none yet'}", consumer=name
    )


def _changes(found: Consumer, kind: str, table_generation: str, destination: str, revive: bool) -> str:
    """In which way a consumer is no longer the one on record; empty when it still is."""
    why = []
    if found.kind != kind:
        why.append(f"kind changed from {found.kind} to {kind}")
    if found.destination != destination:
        why.append(f"destination changed from {found.destination} to {destination}")
    if found.table_generation != table_generation:
        why.append("table was recreated")
    if revive and found.is_retired:
        why.append("it had been retired")
    return "; ".join(why)


def _kept(connection: Connection, found: Consumer, table: str, definition: str) -> Registered:
    """The consumer on record, with the definition and the table's name of now."""
    is_changed = to_json("definition", found.definition) != definition
    if is_changed and (under_way := _open(connection, found.generation)):
        raise _busy(found.name, under_way[0], "its definition cannot change")
    if is_changed or found.table != table:
        which = generations.c.generation == found.generation
        connection.execute(update(generations).where(which).values(table_name=table, definition=definition))
    now = replace(found, table=table, definition=from_json("definition", definition))
    why = ["definition changed"] if is_changed else []
    why += ["it is retired and stays so"] if found.is_retired else []
    why += [f"table was renamed from {found.table} to {table}"] if found.table != table else []
    return Registered(now, False, "; ".join(why))


def _marks(connection: Connection, generation: str) -> dict[int, int]:
    rows = connection.execute(select(marks.c.vnode, marks.c.seq).where(marks.c.generation == generation))
    return {vnode: seq for vnode, seq in sorted(map(tuple, rows))}


def _insert_marks(connection: Connection, generation: str, seqs: Mapping[int, int]) -> None:
    if seqs:
        rows = [{"generation": generation, "vnode": vnode, "seq": seq} for vnode, seq in sorted(seqs.items())]
        connection.execute(insert(marks), rows)


def _compare(name: str, found: Mapping[int, int], expected: Mapping[int, int]) -> None:
    for vnode, seq in sorted(expected.items()):
        if found.get(vnode) != seq:
            raise _moved(name, vnode, seq, found.get(vnode))


def _open(connection: Connection, generation: str) -> list[Intent]:
    query = select(intents).where(intents.c.generation == generation).order_by(intents.c.created_s, intents.c.id)
    return [
        Intent(
            id=row.id,
            generation=row.generation,
            lane=row.lane,
            vnodes=tuple(from_json("vnodes", row.vnodes)),
            after=row.after,
            upto=row.upto,
            definition=from_json("definition", row.definition),
            schema_id=row.schema_id,
            cuts=from_json("cuts", row.cuts),
            created_s=row.created_s,
        )
        for row in connection.execute(query)
    ]


def _close(
    connection: Connection, consumer: Consumer, moves: Mapping[int, tuple[int, int]], intent: Intent | None
) -> None:
    """Close the intent of an advance; `Conflict` when it is closed already, or another covers one of the vnodes."""
    under_way = {each.id: each for each in _open(connection, consumer.generation)}
    if intent is not None:
        saved = under_way.pop(intent.id, None)
        if saved is None:
            raise _gone(intent)
        if {vnode: tuple(move) for vnode, move in moves.items()} != dict.fromkeys(
            saved.vnodes, (saved.after, saved.upto)
        ):
            raise Invalid(
                f"the intent {saved.id} of {consumer.name!r} is for vnodes {list(saved.vnodes)} in ({saved.after},"
                f" {saved.upto}], and the advance is for something else",
                consumer=consumer.name,
                intent=saved.id,
            )
        connection.execute(delete(intents).where(intents.c.id == saved.id))
    for other in under_way.values():
        if set(moves) & set(other.vnodes):
            raise _busy(consumer.name, other, "its vnodes move only with it")


def _keep_receipt(connection: Connection, generation: str, body: str) -> None:
    connection.execute(insert(receipts).values(generation=generation, at_s=now_s(connection), body=body))
    mine = receipts.c.generation == generation
    oldest = select(receipts.c.id).where(mine).order_by(receipts.c.id.desc()).limit(1).offset(RECEIPTS)
    connection.execute(delete(receipts).where(mine, receipts.c.id <= oldest.scalar_subquery()))


def _check_seqs(seqs: Mapping[int, int]) -> None:
    for vnode, seq in seqs.items():
        check_int("vnode", vnode)
        check_int("seq", seq)


def _lease_of(name: str) -> str:
    return f"consumer/{name}"


def _moved(name: str, vnode: int, expected: int | None, found: int | None) -> Conflict:
    has = "has not started" if found is None else f"is at {found}"
    wanted = "not started" if expected is None else str(expected)
    return Conflict(
        f"mark {name!r} of vnode {vnode} {has}, expected {wanted}: someone else moved it",
        hint="Nothing was changed. Load the marks again.",
        consumer=name,
        vnode=vnode,
        expected=expected,
        found=found,
    )


def _busy(name: str, intent: Intent, what: str) -> Conflict:
    return Conflict(
        f"{name!r} has an open intent in lane {intent.lane!r}, vnodes {list(intent.vnodes)} in ({intent.after},"
        f" {intent.upto}]: {what}",
        hint="Let a tick finish it first.",
        consumer=name,
        intent=intent.id,
        lane=intent.lane,
    )


def _gone(intent: Intent) -> Conflict:
    return Conflict(
        f"the intent {intent.id} in lane {intent.lane!r} is not open any more",
        hint="Nothing was changed. Load the intents again.",
        intent=intent.id,
        lane=intent.lane,
    )
