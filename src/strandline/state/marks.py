"""How far each consumer has come, what it is about to do, and what its last advances did.

- A mark belongs to one generation of a consumer (see `consumers`).
- A mark moves forward only, by compare-and-swap of every vnode in one transaction, under the fence of its consumer's
  lease; only an adoption (see `epoch`), a person's command, sets it otherwise.
- An open intent stands exactly on its marks: each of its vnodes is at `after` until the advance that closes it, which
  goes to `upto`. A vnode has one open intent at most, which keeps the definition that it was begun with.
- The slowest living consumer holds its table's log; one that has not started counts as 0, a retired one not at all.

After a crash: marks, intent and receipt of an advance are there together or not at all. An intent that is still open
names the range that was under way; its effect is repeated with the same cuts before anything newer.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Integer,
    Table,
    Text,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from strandline.crash import crash_point
from strandline.errors import Conflict, Invalid
from strandline.state.consumers import (
    ConsumerRecord,
    all_current,
    by_generation,
    consumers,
    generations,
    guard,
    not_found,
)
from strandline.state.database import Database, metadata, now_s
from strandline.state.intents import Intent as Intent
from strandline.state.intents import IntentDraft, busy, gone, insert_intent, intents, open_intents
from strandline.state.leases import Lease, leases, release
from strandline.state.values import check_int, from_json, to_json

RECEIPTS = 100

marks = Table(
    "strandline_marks",
    metadata,
    Column("generation", Text, primary_key=True),
    Column("vnode", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
)
_of_life = select(marks.c.vnode, marks.c.seq).where(marks.c.generation == bindparam("generation"))
_of_lives = select(marks).where(marks.c.generation.in_(bindparam("lives", expanding=True))).order_by(marks.c.vnode)
_move = (
    update(marks)
    .where(marks.c.generation == bindparam("life"), marks.c.vnode == bindparam("which"))
    .values(seq=bindparam("to"))
)
receipts = Table(
    "strandline_receipts",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("generation", Text, nullable=False, index=True),
    Column("at_s", Double, nullable=False),
    Column("body", Text, nullable=False),
)
_mine = receipts.c.generation == bindparam("generation")
_oldest = select(receipts.c.id).where(_mine).order_by(receipts.c.id.desc()).limit(1).offset(bindparam("kept"))
_old_receipts = delete(receipts).where(_mine, receipts.c.id <= _oldest.scalar_subquery())


@dataclass(frozen=True)
class SavedReceipt:
    """What one advance did, as its consumer tells it."""

    at_s: float
    body: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True)
class ConsumerState:
    """A consumer as the state has it, with its marks and what it has begun; none of it if the state does not know
    it."""

    consumer: ConsumerRecord | None = None
    marks: Mapping[int, int] = field(default_factory=dict, hash=False)
    intents: tuple[Intent, ...] = ()


class Marks:
    """The consumers of one state."""

    def __init__(self, state: Database) -> None:
        self._state = state
        state.ensure(consumers, generations, marks, intents, receipts, leases)

    # --- marks -------------------------------------------------------------------------------------------------

    def load(self, consumer: ConsumerRecord) -> dict[int, int]:
        """The seq up to which each vnode's effect is durable; a vnode that has not started is absent."""
        with self._state.reading() as connection:
            # Marks that are missing because the state is another one must not look like a consumer that never began.
            if by_generation(connection, consumer.generation) is None:
                not_found(connection, consumer.name)
            return _marks(connection, consumer.generation)

    def known(self, name: str | None = None) -> dict[str, ConsumerState]:
        """Every consumer by name, or the one of this name, as of one moment; three queries however many they are."""
        with self._state.reading() as connection:
            found = [each for each in all_current(connection) if name in (None, each.name)]
            if not found:
                return {}
            lives = [each.generation for each in found]
            seqs: dict[str, dict[int, int]] = {each: {} for each in lives}
            for generation, vnode, seq in connection.execute(_of_lives, {"lives": lives}):
                seqs[generation][vnode] = seq
            begun: dict[str, list[Intent]] = {each: [] for each in lives}
            for intent in open_intents(connection, lives):
                begun[intent.generation].append(intent)
        return {each.name: ConsumerState(each, seqs[each.generation], tuple(begun[each.generation])) for each in found}

    def start(self, consumer: ConsumerRecord, seqs: Mapping[int, int], fence: int) -> None:
        """Set the first marks; `Conflict` for a vnode that has one."""
        check_seqs(seqs)
        with self._state.transaction() as connection:
            guard(connection, consumer.name, consumer.generation, fence)
            found = _marks(connection, consumer.generation)
            for vnode in sorted(seqs):
                if vnode in found:
                    raise _moved(consumer.name, vnode, None, found[vnode])
            _insert_marks(connection, consumer.generation, seqs)

    def advance(
        self,
        consumer: ConsumerRecord,
        moves: Mapping[int, tuple[int, int]],
        *,
        fence: int,
        intent: Intent | None = None,
        receipt: Mapping[str, Any] | None = None,
        releases: Lease | None = None,
    ) -> None:
        """Move marks from the expected seq to another, all or none; with it close the intent, keep the receipt and give
        the lease back.

        Called when the effect is durable. `moves` is `{vnode: (expected, to)}`, empty to leave only a receipt. Vnodes
        of an open intent move only with it, all of them, over exactly its range."""
        for vnode, (expected, to) in moves.items():
            check_int("vnode", vnode)
            check_int("expected mark", expected)
            check_int("mark", to)
            if to < expected:
                raise Invalid(
                    f"mark {consumer.name!r} of vnode {vnode} cannot go back from {expected} to {to}",
                    hint=f"To start it again: strandline mark reset {consumer.name}",
                    consumer=consumer.name,
                    vnode=vnode,
                    expected=expected,
                    to=to,
                )
        body = None if receipt is None else to_json("receipt", dict(receipt))
        with self._state.transaction() as connection:
            guard(connection, consumer.name, consumer.generation, fence)
            if moves or intent is not None:
                at = {vnode: move[0] for vnode, move in moves.items()}
                _compare(consumer.name, _marks(connection, consumer.generation), at)
                _close(connection, consumer, moves, intent)
            if moves:
                # The rows are locked through their consumer, and were compared above.
                life = consumer.generation
                rows = [{"life": life, "which": vnode, "to": to} for vnode, (_, to) in sorted(moves.items())]
                connection.execute(_move, rows)
            if body is not None:
                _keep_receipt(connection, consumer.generation, body)
            if releases is not None:
                release(connection, releases)
        crash_point("marks.advanced")

    def slowest_by(self, table_generation: str, vnodes: int) -> list[tuple[int, str]]:
        """Who holds the log of a table: the lowest mark over all its vnodes and the name of each living consumer, the
        slowest first; 0 for one that has not started. Up to the first of them the log may be trimmed."""
        if not check_int("vnodes", vnodes):
            raise Invalid("a table has at least one vnode")
        query = (
            select(generations.c.name, func.count(marks.c.seq).label("started"), func.min(marks.c.seq).label("lowest"))
            .select_from(generations)
            .join(consumers, consumers.c.generation == generations.c.generation)
            .outerjoin(marks, and_(marks.c.generation == generations.c.generation, marks.c.vnode < vnodes))
            .where(generations.c.table_generation == table_generation, generations.c.is_retired.is_(False))
            .group_by(generations.c.generation, generations.c.name)
        )
        with self._state.reading() as connection:
            return sorted((row.lowest if row.started == vnodes else 0, row.name) for row in connection.execute(query))

    # --- intents -----------------------------------------------------------------------------------------------

    def open_intent(self, consumer: ConsumerRecord, *, fence: int, **facts: Any) -> Intent:
        """Save what is about to be done (see `IntentDraft`), before it is done. Its vnodes stand at `after`; `Conflict`
        when one does not, has an open intent, or the consumer's definition is not the one that is saved any more."""
        with self._state.transaction() as connection:
            intent = begin_intent(connection, consumer, IntentDraft(**facts), fence)
        crash_point("marks.intent_saved")
        return intent

    def intents(self, consumer: ConsumerRecord) -> list[Intent]:
        """The open intents of a consumer, the oldest first."""
        with self._state.reading() as connection:
            return open_intents(connection, [consumer.generation])

    def save_cuts(self, intent: Intent, cuts: Any, fence: int) -> Intent:
        """Keep how an open intent's rows are cut, so that a replay repeats the same cuts."""
        kept = to_json("cuts", cuts)
        with self._state.transaction() as connection:
            found = by_generation(connection, intent.generation)
            if found is None:
                raise gone(intent)
            guard(connection, found.name, found.generation, fence)
            changed = connection.execute(update(intents).where(intents.c.id == intent.id).values(cuts=kept))
            if changed.rowcount != 1:
                raise gone(intent)
        return replace(intent, cuts=from_json("cuts", kept))

    # --- receipts ----------------------------------------------------------------------------------------------

    def receipts(self, consumer: ConsumerRecord, limit: int = RECEIPTS) -> list[SavedReceipt]:
        """What its last advances did, the newest first; at most `RECEIPTS` are kept."""
        query = select(receipts).where(receipts.c.generation == consumer.generation)
        with self._state.reading() as connection:
            rows = connection.execute(query.order_by(receipts.c.id.desc()).limit(check_int("limit", limit))).all()
        return [SavedReceipt(row.at_s, from_json("receipt", row.body)) for row in rows]

    def last_receipts(self, consumers: Sequence[ConsumerRecord]) -> dict[str, SavedReceipt]:
        """The newest receipt of each that has one, by generation; one query however many they are."""
        if not consumers:
            return {}
        newest = select(func.max(receipts.c.id)).where(receipts.c.generation.in_(_generations(consumers)))
        query = select(receipts).where(receipts.c.id.in_(newest.group_by(receipts.c.generation)))
        with self._state.reading() as connection:
            rows = connection.execute(query).all()
        return {row.generation: SavedReceipt(row.at_s, from_json("receipt", row.body)) for row in rows}


def check_seqs(seqs: Mapping[int, int]) -> None:
    for vnode, seq in seqs.items():
        check_int("vnode", vnode)
        check_int("seq", seq)


# --- inside a transaction ---------------------------------------------------------------------------------------


def begin_intent(connection: Connection, consumer: ConsumerRecord, draft: IntentDraft, fence: int) -> Intent:
    """Save an intent; see `Marks.open_intent`."""
    lane, chosen = draft.lane, draft.checked_vnodes()
    kept = to_json("cuts", draft.cuts)
    now = guard(connection, consumer.name, consumer.generation, fence)
    definition = to_json("definition", now.definition)
    if definition != to_json("definition", dict(consumer.definition)):
        raise Conflict(
            f"the definition of {consumer.name!r} was changed meanwhile",
            hint="Nothing was done. Get the consumer again.",
            consumer=consumer.name,
        )
    for other in open_intents(connection, [consumer.generation]):
        if other.lane == lane or set(chosen) & set(other.vnodes):
            raise busy(consumer.name, other, f"lane {lane!r} cannot begin another")
    _compare(consumer.name, _marks(connection, consumer.generation), dict.fromkeys(chosen, draft.after))
    intent = Intent(
        id=uuid.uuid4().hex,
        generation=consumer.generation,
        lane=lane,
        vnodes=chosen,
        after=draft.after,
        upto=draft.upto,
        definition=now.definition,
        schema_id=draft.schema_id,
        cuts=from_json("cuts", kept),
        created_s=now_s(connection),
    )
    insert_intent(connection, intent)
    return intent


def raise_marks(connection: Connection, generation: str, seqs: Mapping[int, int]) -> None:
    """Let the marks of a locked consumer be at least so high, by command; intents that they passed are given up."""
    found = _marks(connection, generation)
    _set_marks(connection, generation, {vnode: max(seq, found.get(vnode, 0)) for vnode, seq in seqs.items()})
    for intent in open_intents(connection, [generation]):
        if any(seqs.get(vnode, intent.after) > intent.after for vnode in intent.vnodes):
            connection.execute(delete(intents).where(intents.c.id == intent.id))


def reopen_intent(connection: Connection, intent: Intent) -> None:
    """Let what a locked consumer had begun be under way again, by command, unless its marks or another intent say that
    it is not."""
    found = _marks(connection, intent.generation)
    others = open_intents(connection, [intent.generation])
    is_free = not any(each.lane == intent.lane or set(each.vnodes) & set(intent.vnodes) for each in others)
    if is_free and all(found.get(vnode) == intent.after for vnode in intent.vnodes):
        insert_intent(connection, intent)


def lower_marks(connection: Connection, generation: str, head: int) -> None:
    """Let no mark of a locked consumer be beyond the head of its table, by command; intents that go there are given
    up: their rows would be others."""
    found = _marks(connection, generation)
    _set_marks(connection, generation, {vnode: head for vnode, seq in found.items() if seq > head})
    beyond = and_(intents.c.generation == generation, intents.c.upto > head)
    connection.execute(delete(intents).where(beyond))


def _marks(connection: Connection, generation: str) -> dict[int, int]:
    rows = connection.execute(_of_life, {"generation": generation})
    return {vnode: seq for vnode, seq in sorted(map(tuple, rows))}


def _generations(consumers: Sequence[ConsumerRecord]) -> list[str]:
    return sorted({consumer.generation for consumer in consumers})


def _insert_marks(connection: Connection, generation: str, seqs: Mapping[int, int]) -> None:
    if seqs:
        rows = [{"generation": generation, "vnode": vnode, "seq": seq} for vnode, seq in sorted(seqs.items())]
        connection.execute(insert(marks), rows)


def _set_marks(connection: Connection, generation: str, seqs: Mapping[int, int]) -> None:
    which = and_(marks.c.generation == generation, marks.c.vnode.in_(sorted(seqs)))
    connection.execute(delete(marks).where(which))
    _insert_marks(connection, generation, seqs)


def _compare(name: str, found: Mapping[int, int], expected: Mapping[int, int]) -> None:
    for vnode, seq in sorted(expected.items()):
        if found.get(vnode) != seq:
            raise _moved(name, vnode, seq, found.get(vnode))


def _close(
    connection: Connection, consumer: ConsumerRecord, moves: Mapping[int, tuple[int, int]], intent: Intent | None
) -> None:
    """Close the intent of an advance; `Conflict` when it is closed already, or another covers one of the vnodes."""
    under_way = {each.id: each for each in open_intents(connection, [consumer.generation])}
    if intent is not None:
        saved = under_way.pop(intent.id, None)
        if saved is None:
            raise gone(intent)
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
            raise busy(consumer.name, other, "its vnodes move only with it")


def _keep_receipt(connection: Connection, generation: str, body: str) -> None:
    connection.execute(insert(receipts), {"generation": generation, "at_s": now_s(connection), "body": body})
    connection.execute(_old_receipts, {"generation": generation, "kept": RECEIPTS})


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
