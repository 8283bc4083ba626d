"""The position of each consumer, its open intents, and the receipts of its last advances.

- A mark belongs to one generation of a consumer (see `consumers`).
- A mark only moves forward, by compare-and-swap of every vnode in one transaction, under the fence of its consumer's
  lease. Only an adoption (see `epoch`), which a person orders, may move it back.
- An open intent stands exactly on its marks: each of its vnodes is at `after` until the advance that closes the intent
  moves it to `upto`. A vnode has at most one open intent, which keeps the definition that it was begun with.
- The slowest consumer holds its table's log. A consumer that has not started counts as 0; a retired one does not count.

After a crash: marks, intent and receipt of an advance are complete or absent together. An open intent names the range
that was under way; its effect is repeated with the same cuts before anything newer.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
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
from strandline.errors import Conflict, Invalid, Unavailable
from strandline.state.consumers import (
    ConsumerRecord,
    consumers,
    find_life,
    generations,
    list_current,
    lock_living,
    raise_not_found,
)
from strandline.state.database import Database, metadata, now_s
from strandline.state.intents import Intent as Intent
from strandline.state.intents import IntentDraft, closed_conflict, insert_intent, intents, open_conflict, open_intents
from strandline.state.key_positions import Position, PositionMoves, move_positions, positions, read_positions
from strandline.state.leases import Lease, leases, release
from strandline.state.rates import NO_RATE, Rate
from strandline.state.receipts import RECEIPTS, SavedReceipt, keep_receipt, read_last_receipts, read_receipts, receipts
from strandline.state.values import check_int, from_json, to_json

marks = Table(
    "strandline_marks",
    metadata,
    Column("generation", Text, primary_key=True),
    Column("vnode", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
)
_select_marks = select(marks.c.vnode, marks.c.seq).where(marks.c.generation == bindparam("generation"))
_select_by_life = (
    select(marks).where(marks.c.generation.in_(bindparam("lives", expanding=True))).order_by(marks.c.vnode)
)
_move_mark = (
    update(marks)
    .where(marks.c.generation == bindparam("life"), marks.c.vnode == bindparam("which"))
    .values(seq=bindparam("to"))
)


@dataclass(frozen=True)
class ConsumerState:
    """A consumer on record with its marks, open intents, and the positions of its backfill; all empty when the state
    does not know it. A paused one does no work."""

    consumer: ConsumerRecord | None = None
    marks: Mapping[int, int] = field(default_factory=dict, hash=False)
    intents: tuple[Intent, ...] = ()
    is_paused: bool = False
    rate: Rate = NO_RATE
    positions: Mapping[int, Position] = field(default_factory=dict, hash=False)


class Marks:
    """The consumers of one state."""

    def __init__(self, state: Database) -> None:
        self._state = state
        state.ensure(consumers, generations, marks, intents, receipts, leases)
        # A state of an earlier version that may only be read has no positions.
        with suppress(Unavailable):
            state.ensure(positions)

    # --- marks -------------------------------------------------------------------------------------------------

    def load(self, consumer: ConsumerRecord) -> dict[int, int]:
        """The seq up to which each vnode's effect is durable; vnodes that have not started are left out."""
        with self._state.reading() as connection:
            # In another state there are no marks either; that must not look like a consumer that never started.
            if find_life(connection, consumer.generation) is None:
                raise_not_found(connection, consumer.name)
            return _read_marks(connection, consumer.generation)

    def consumer_states(self, name: str | None = None) -> dict[str, ConsumerState]:
        """Every consumer, or the one of this name, as of one moment; always four queries."""
        has_positions = self._state.has(positions)
        with self._state.reading() as connection:
            found = [each for each in list_current(connection) if name in (None, each.name)]
            if not found:
                return {}
            lives = [each.generation for each in found]
            seqs: dict[str, dict[int, int]] = {each: {} for each in lives}
            for generation, vnode, seq in connection.execute(_select_by_life, {"lives": lives}):
                seqs[generation][vnode] = seq
            begun: dict[str, list[Intent]] = {each: [] for each in lives}
            for intent in open_intents(connection, lives):
                begun[intent.generation].append(intent)
            at = read_positions(connection, lives) if has_positions else {}
        return {
            each.name: ConsumerState(
                each, seqs[each.generation], tuple(begun[each.generation]), positions=at.get(each.generation, {})
            )
            for each in found
        }

    def start(self, consumer: ConsumerRecord, seqs: Mapping[int, int], fence: int) -> None:
        """Set the first marks; `Conflict` for a vnode that has a mark."""
        check_seqs(seqs)
        with self._state.transaction() as connection:
            lock_living(connection, consumer.name, consumer.generation, fence)
            found = _read_marks(connection, consumer.generation)
            for vnode in sorted(seqs):
                if vnode in found:
                    raise _mark_conflict(consumer.name, vnode, None, found[vnode])
            _insert_marks(connection, consumer.generation, seqs)

    def advance(
        self,
        consumer: ConsumerRecord,
        moves: Mapping[int, tuple[int, int]],
        *,
        fence: int,
        backfill: PositionMoves | None = None,
        intent: Intent | None = None,
        receipt: Mapping[str, Any] | None = None,
        releases: Lease | None = None,
    ) -> None:
        """Move marks, all or none, when their effect is durable. The same transaction moves the positions of a
        backfill, closes the intent, keeps the receipt and gives the lease back.

        `moves` is `{vnode: (expected, to)}`, empty to keep only a receipt. The vnodes of an open intent move together,
        by closing it, over exactly its range. `backfill` is `{vnode: (expected, to)}` too, for vnodes that move."""
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
            lock_living(connection, consumer.name, consumer.generation, fence)
            if moves or intent is not None:
                at = {vnode: move[0] for vnode, move in moves.items()}
                _check_marks(consumer.name, _read_marks(connection, consumer.generation), at)
                _close_intent(connection, consumer, moves, intent)
            if moves:
                # The rows are locked through their consumer, and were compared above.
                life = consumer.generation
                rows = [{"life": life, "which": vnode, "to": to} for vnode, (_, to) in sorted(moves.items())]
                connection.execute(_move_mark, rows)
            move_positions(connection, consumer.name, consumer.generation, backfill, moves)
            if body is not None:
                keep_receipt(connection, consumer.generation, body)
            if releases is not None:
                release(connection, releases)
        crash_point("marks.advanced")

    def slowest_consumers(self, table_generation: str, vnodes: int) -> list[tuple[int, str]]:
        """Who holds the log of a table: the lowest mark and the name of each consumer that is not retired, the slowest
        first. A consumer that has not started is at 0. The log may be trimmed up to the first mark."""
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

    def in_history(self, table_generation: str) -> set[str]:
        """The consumers of a table whose history is delivered in part."""
        if not self._state.has(positions):
            return set()
        mine = (generations.c.table_generation == table_generation) & generations.c.is_retired.is_(False)
        query = (
            select(generations.c.name)
            .join(consumers, consumers.c.generation == generations.c.generation)
            .join(positions, positions.c.generation == generations.c.generation)
            .where(mine, positions.c.is_done.is_(False))
            .distinct()
        )
        with self._state.reading() as connection:
            return set(connection.execute(query).scalars())

    # --- intents -----------------------------------------------------------------------------------------------

    def intents(self, consumer: ConsumerRecord) -> list[Intent]:
        """The open intents of a consumer, the oldest first."""
        with self._state.reading() as connection:
            return open_intents(connection, [consumer.generation])

    def save_cuts(self, intent: Intent, cuts: Any, fence: int) -> Intent:
        """Keep the cuts of an open intent, so that a replay repeats them."""
        kept = to_json("cuts", cuts)
        with self._state.transaction() as connection:
            found = find_life(connection, intent.generation)
            if found is None:
                raise closed_conflict(intent)
            lock_living(connection, found.name, found.generation, fence)
            changed = connection.execute(update(intents).where(intents.c.id == intent.id).values(cuts=kept))
            if changed.rowcount != 1:
                raise closed_conflict(intent)
        return replace(intent, cuts=from_json("cuts", kept))

    # --- receipts ----------------------------------------------------------------------------------------------

    def receipts(self, consumer: ConsumerRecord, limit: int = RECEIPTS) -> list[SavedReceipt]:
        """The receipts of a consumer, the newest first; at most `RECEIPTS` are kept."""
        with self._state.reading() as connection:
            return read_receipts(connection, consumer.generation, check_int("limit", limit))

    def last_receipts(self, consumers: Sequence[ConsumerRecord]) -> dict[str, SavedReceipt]:
        """The newest receipt of each consumer that has one, by generation; always one query."""
        if not consumers:
            return {}
        with self._state.reading() as connection:
            return read_last_receipts(connection, {each.generation for each in consumers})


def check_seqs(seqs: Mapping[int, int]) -> None:
    for vnode, seq in seqs.items():
        check_int("vnode", vnode)
        check_int("seq", seq)


# --- inside a transaction


def begin_intent(connection: Connection, consumer: ConsumerRecord, draft: IntentDraft, fence: int) -> Intent:
    """Save an intent before its effect. `Conflict` when a vnode is not at `after` or has an open intent, or when the
    consumer's definition was changed."""
    lane, chosen = draft.lane, draft.check_vnodes()
    kept = to_json("cuts", draft.cuts)
    now = lock_living(connection, consumer.name, consumer.generation, fence)
    definition = to_json("definition", now.definition)
    if definition != to_json("definition", dict(consumer.definition)):
        raise Conflict(
            f"the definition of {consumer.name!r} was changed by another process",
            hint="Nothing was done. Get the consumer again.",
            consumer=consumer.name,
        )
    for other in open_intents(connection, [consumer.generation]):
        if other.lane == lane or set(chosen) & set(other.vnodes):
            raise open_conflict(consumer.name, other, f"lane {lane!r} cannot begin another")
    _check_marks(consumer.name, _read_marks(connection, consumer.generation), dict.fromkeys(chosen, draft.after))
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
    move_positions(connection, consumer.name, consumer.generation, draft.backfill, chosen)
    return intent


def raise_marks(connection: Connection, generation: str, seqs: Mapping[int, int]) -> None:
    """Raise the marks of a locked consumer to these seqs, for an adoption; intents behind them are given up."""
    found = _read_marks(connection, generation)
    _set_marks(connection, generation, {vnode: max(seq, found.get(vnode, 0)) for vnode, seq in seqs.items()})
    for intent in open_intents(connection, [generation]):
        # A round, which has no seqs of its own, means nothing without its position.
        is_round = intent.after == intent.upto
        if is_round or any(seqs.get(vnode, intent.after) > intent.after for vnode in intent.vnodes):
            connection.execute(delete(intents).where(intents.c.id == intent.id))


def reopen_intent(connection: Connection, intent: Intent) -> None:
    """Open an intent of a locked consumer again, for an adoption, if its marks stand at its start and no other open
    intent overlaps it."""
    found = _read_marks(connection, intent.generation)
    others = open_intents(connection, [intent.generation])
    is_free = not any(each.lane == intent.lane or set(each.vnodes) & set(intent.vnodes) for each in others)
    if is_free and all(found.get(vnode) == intent.after for vnode in intent.vnodes):
        insert_intent(connection, intent)


def lower_marks(connection: Connection, generation: str, head: int) -> None:
    """Lower the marks of a locked consumer to the head of its table, for an adoption. Intents beyond the head are given
    up: their seqs will hold other rows."""
    found = _read_marks(connection, generation)
    _set_marks(connection, generation, {vnode: head for vnode, seq in found.items() if seq > head})
    beyond = and_(intents.c.generation == generation, intents.c.upto > head)
    connection.execute(delete(intents).where(beyond))


def _read_marks(connection: Connection, generation: str) -> dict[int, int]:
    rows = connection.execute(_select_marks, {"generation": generation})
    return {vnode: seq for vnode, seq in sorted(map(tuple, rows))}


def _insert_marks(connection: Connection, generation: str, seqs: Mapping[int, int]) -> None:
    if seqs:
        rows = [{"generation": generation, "vnode": vnode, "seq": seq} for vnode, seq in sorted(seqs.items())]
        connection.execute(insert(marks), rows)


def _set_marks(connection: Connection, generation: str, seqs: Mapping[int, int]) -> None:
    which = and_(marks.c.generation == generation, marks.c.vnode.in_(sorted(seqs)))
    connection.execute(delete(marks).where(which))
    _insert_marks(connection, generation, seqs)


def _check_marks(name: str, found: Mapping[int, int], expected: Mapping[int, int]) -> None:
    for vnode, seq in sorted(expected.items()):
        if found.get(vnode) != seq:
            raise _mark_conflict(name, vnode, seq, found.get(vnode))


def _close_intent(
    connection: Connection, consumer: ConsumerRecord, moves: Mapping[int, tuple[int, int]], intent: Intent | None
) -> None:
    """Close the intent of an advance; `Conflict` when it is closed already or another open intent has its vnodes."""
    under_way = {each.id: each for each in open_intents(connection, [consumer.generation])}
    if intent is not None:
        saved = under_way.pop(intent.id, None)
        if saved is None:
            raise closed_conflict(intent)
        if {vnode: tuple(move) for vnode, move in moves.items()} != dict.fromkeys(
            saved.vnodes, (saved.after, saved.upto)
        ):
            raise Invalid(
                f"the intent {saved.id} of {consumer.name!r} is for vnodes {list(saved.vnodes)} in ({saved.after},"
                f" {saved.upto}], and the advance moves other marks",
                consumer=consumer.name,
                intent=saved.id,
            )
        connection.execute(delete(intents).where(intents.c.id == saved.id))
    for other in under_way.values():
        if set(moves) & set(other.vnodes):
            raise open_conflict(consumer.name, other, "its vnodes move only with it")


def _mark_conflict(name: str, vnode: int, expected: int | None, found: int | None) -> Conflict:
    has = "has not started" if found is None else f"is at {found}"
    wanted = "not started" if expected is None else str(expected)
    return Conflict(
        f"mark {name!r} of vnode {vnode} {has}, expected {wanted}: another process moved it",
        hint="Nothing was changed. Load the marks again.",
        consumer=name,
        vnode=vnode,
        expected=expected,
        found=found,
    )
