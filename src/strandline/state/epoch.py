"""Lake and state belong together: each knows the other's id and an epoch that rises, so a loss of either is noticed.

The lake's side is a small file, `state.json`: the epoch it was told last, where the state is, and which consumers there
are. The state's side is its first row: `pending`, the highest epoch that it may have told, and `epoch`, the lowest one
that the lake can have by now. They belong together if and only if

    state.epoch <= record.epoch <= state.pending        (no file counts as epoch 0 and no consumers)

A record above `pending` means that the state was lost or is an old copy; one below `epoch` that the lake is. Then the
lake can be read, but nothing is sent or trimmed until `adopt`.

Why it holds whatever happens. A renewal has two steps. `announce` raises `pending` and commits that: so the record is
never above it. `tell` writes the highest epoch pending at that time, while it holds the lock on the first row, and
raises `epoch` in the same transaction: so of any number of renewers one after the other writes, each at least as high
as the one before, and a process that ends between the two leaves `epoch` where it was, below the record. One thing can
still write late: a server may have ended the transaction of a process that stalled or waited for a slow store, or a
request is on its way while its sender is gone. Such a renewal stays on record by the epoch that it took first, below
which it cannot write; `epoch` does not pass it until `LATE_S` have gone by.

After a crash: the rule holds, and the next renewal goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Table,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from strandline.crash import crash_point
from strandline.errors import Conflict, Corrupt, Invalid
from strandline.state.consumers import ConsumerRecord, all_current, consumers, current, generations, put_life
from strandline.state.database import Database, insert_missing, meta, metadata, now_s
from strandline.state.intents import Intent, intents, open_intents
from strandline.state.marks import check_seqs, lower_marks, marks, raise_marks, reopen_intent
from strandline.state.values import check_int
from strandline.storage.open import Storage

FILE = "state.json"
FORMAT = 1
LATE_S = 900.0
_ADOPT = "Nothing is sent or trimmed until you run: strandline doctor --adopt-state"
_OTHER = "Nothing is sent or trimmed. Open the lake with {}, or if that is lost: strandline doctor --adopt-state"

renewals = Table(
    "strandline_renewals",
    metadata,
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("since_s", Double, nullable=False),
)
_meta = select(meta.c.lake_id, meta.c.epoch, meta.c.pending)
_meta_locked = _meta.with_for_update()
_announced = update(meta).values(pending=bindparam("own"), lake_id=bindparam("lake"))
_raised = update(meta).values(epoch=bindparam("lowest"))
_ended = delete(renewals).where(or_(renewals.c.epoch == bindparam("own"), renewals.c.since_s < bindparam("late_s")))
_oldest = select(func.min(renewals.c.epoch))


@dataclass(frozen=True)
class EpochRecord:
    """What the lake was told last: the epoch, where the state is (without a password), its consumers, and what those
    had begun. A renewal follows every new intent before anything of it is sent, so nothing is under way at a
    destination that is not on record here."""

    lake_id: str
    epoch: int
    state: str
    consumers: tuple[ConsumerRecord, ...]
    intents: tuple[Intent, ...] = ()


@dataclass(frozen=True)
class _Epochs:
    lake_id: str | None
    epoch: int
    pending: int


class Epoch:
    """One lake and one state."""

    def __init__(self, storage: Storage, lake_id: str, state: Database) -> None:
        self._storage = storage
        self._lake_id = lake_id
        self._state = state
        state.ensure(renewals, consumers, generations, marks, intents)

    def check(self, *, trimmed_epoch: int = 0) -> None:
        """`Conflict` unless lake and state belong together; one query and one small file. `trimmed_epoch` is the
        highest epoch that a trim commit of the lake carries."""
        # The state is read before the record, and once more after it before it is called older: others may renew.
        with self._state.reading() as connection:
            before = _epochs(connection)
        self._refuse_foreign(before)
        record = self._own(read_record(self._storage))
        if max(record.epoch, trimmed_epoch) > before.pending:
            with self._state.reading() as connection:
                self._refuse_older_state(_epochs(connection), record, trimmed_epoch)
        self._refuse_older_lake(before, record)

    def renew(self) -> int:
        """Tell the lake a new epoch and the consumers of now; that epoch. `Conflict` as in `check`, with nothing
        changed: an older state must not climb to what its lake knows."""
        with self._state.transaction() as connection:
            own = self.announce(connection)
        return self.tell(own)

    def announce(self, connection: Connection) -> int:
        """Begin a renewal, in a transaction that may change something else as well: the epoch that will be told. `tell`
        follows when the transaction has ended."""
        found = self._locked(connection)
        record = self._own(read_record(self._storage))
        self._refuse_older_state(found, record)
        self._refuse_older_lake(found, record)
        own = max(found.epoch, found.pending) + 1
        connection.execute(_announced, {"own": own, "lake": self._lake_id})
        connection.execute(insert(renewals), {"epoch": own, "since_s": now_s(connection)})
        return own

    def tell(self, own: int) -> int:
        """Tell the lake the epoch that was announced, or a higher one; the one that was told."""
        crash_point("epoch.pending")
        with self._state.transaction() as connection:
            found = self._locked(connection)
            told = found.pending
            if told < own:
                self._refuse(f"{self._state.shown} was replaced by an older one meanwhile", _ADOPT, found.epoch, own)
            known = tuple(all_current(connection))
            begun = open_intents(connection, [each.generation for each in known if not each.is_retired])
            self._write(EpochRecord(self._lake_id, told, self._state.shown, known, tuple(begun)))
            crash_point("epoch.recorded")
            connection.execute(_ended, {"own": own, "late_s": now_s(connection) - LATE_S})
            oldest = connection.execute(_oldest).scalar()
            connection.execute(_raised, {"lowest": told if oldest is None else min(told, oldest)})
        return told

    def adopt(
        self,
        positions: Iterable[tuple[ConsumerRecord, Mapping[int, int] | None]],
        *,
        begun: Iterable[Intent] = (),
        heads: Mapping[str, int] | None = None,
        trimmed_epoch: int = 0,
    ) -> list[ConsumerRecord]:
        """Make this the lake's state again: a person's command, after someone found out how far each consumer came.

        Each consumer becomes the current life of its name, whatever was here. Its marks are those given; where the
        same life was here with a higher one, that one stays. None, for one of which nobody knows, retires it. Open
        intents that do not stand on their marks any more are given up; those in `begun` are open again. `heads` are
        the newest seqs of the lake's tables by generation: marks of any consumer beyond them are lowered to them, and
        intents that go beyond are given up, since those commits are lost. Otherwise consumers that are not mentioned
        stay as they are.

        After a crash: all of it is done, or nothing and lake and state still do not belong together."""
        decided = sorted(positions, key=lambda each: each[0].name)
        for _, seqs in decided:
            check_seqs(seqs or {})
        for head in (heads or {}).values():
            check_int("head", head)
        record = read_record(self._storage)
        is_foreign = record is not None and record.lake_id != self._lake_id
        told = 0 if record is None or is_foreign else record.epoch
        with self._state.transaction() as connection:
            found = self._locked(connection)
            adopted = [_adopt(connection, consumer, seqs) for consumer, seqs in decided]
            for intent in begun:
                reopen_intent(connection, intent)
            for consumer in all_current(connection):
                if heads is not None and consumer.table_generation in heads:
                    current(connection, consumer.name, is_locking=True)
                    lower_marks(connection, consumer.generation, heads[consumer.table_generation])
            # `epoch` may fall here, to the record that is there: the numbers given from now on are higher anyway.
            pending = max(found.pending, told, check_int("epoch", trimmed_epoch))
            connection.execute(update(meta).values(lake_id=self._lake_id, epoch=told, pending=pending))
            connection.execute(delete(renewals))
        crash_point("epoch.adopted")
        if is_foreign:
            self._storage.delete([FILE])
        self.renew()
        return adopted

    # --- what does not belong together -------------------------------------------------------------------------

    def _locked(self, connection: Connection) -> _Epochs:
        found = _epochs(connection, is_locking=True)
        self._refuse_foreign(found)
        return found

    def _refuse_foreign(self, found: _Epochs) -> None:
        if found.lake_id not in (None, self._lake_id):
            self._state.bind(self._lake_id)  # which says so

    def _own(self, record: EpochRecord | None) -> EpochRecord:
        if record is None:
            return EpochRecord(self._lake_id, 0, "", ())
        if record.lake_id != self._lake_id:
            raise Conflict(
                f"{self._storage.url(FILE)} is of the lake {record.lake_id}, and this is the lake {self._lake_id}",
                hint=_ADOPT,
                lake=self._lake_id,
                found=record.lake_id,
            )
        return record

    def _refuse_older_state(self, found: _Epochs, record: EpochRecord, trimmed_epoch: int = 0) -> None:
        knows = max(record.epoch, trimmed_epoch)
        if knows <= found.pending:
            return
        is_other = record.state not in ("", self._state.shown)
        self._refuse(
            f"the lake {self._storage.uri} knows epoch {knows} of its state, and {self._state.shown} is at"
            f" {found.epoch}: it {'is another one, or ' if is_other else ''}was lost, or restored from an old backup",
            _OTHER.format(record.state) if is_other else _ADOPT,
            found.epoch,
            knows,
        )

    def _refuse_older_lake(self, found: _Epochs, record: EpochRecord) -> None:
        if record.epoch >= found.epoch:
            return
        has = f"knows epoch {record.epoch}" if record.state else f"has no {FILE}"
        self._refuse(
            f"the state {self._state.shown} is at epoch {found.epoch}, and the lake {self._storage.uri} {has}:"
            " the lake was restored from an older copy",
            _ADOPT,
            found.epoch,
            record.epoch,
        )

    def _refuse(self, what: str, hint: str, epoch: int, found: int) -> NoReturn:
        raise Conflict(what, hint=hint, epoch=epoch, found=found, state=self._state.shown, lake=self._lake_id)

    # --- the record --------------------------------------------------------------------------------------------

    def _write(self, record: EpochRecord) -> None:
        told = [{**vars(each), "definition": dict(each.definition)} for each in record.consumers]
        begun = [{**vars(each), "definition": dict(each.definition)} for each in record.intents]
        facts = {"format": FORMAT, **vars(record), "consumers": told, "intents": begun}
        with self._storage.output(FILE) as stream:
            stream.write(json.dumps(facts, indent=1).encode())


def read_record(storage: Storage) -> EpochRecord | None:
    """What the lake was told last; None when it was never told anything."""
    try:
        facts = json.loads(storage.read(FILE))
        found = int(facts["format"])
        if found <= FORMAT:
            return _record(facts)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Corrupt(
            f"{storage.url(FILE)} cannot be read: {type(error).__name__}: {error}",
            hint="Put it back from a backup. Without one, move it aside and run: strandline doctor --adopt-state",
            path=FILE,
        ) from error
    raise Invalid(
        f"{storage.url(FILE)} has format {found}; this version of Strandline reads up to {FORMAT}",
        hint="Upgrade: pip install -U strandline",
        format=found,
    )


def _record(facts: Mapping[str, Any]) -> EpochRecord:
    told = tuple(_consumer(each) for each in facts["consumers"])
    begun = tuple(_intent(each) for each in facts.get("intents", ()))
    record = EpochRecord(str(facts["lake_id"]), facts["epoch"], str(facts["state"]), told, begun)
    if not isinstance(record.epoch, int) or record.epoch < 0:
        raise ValueError(f"epoch {record.epoch!r}")
    return record


def _consumer(facts: Mapping[str, Any]) -> ConsumerRecord:
    told = {field.name: facts[field.name] for field in fields(ConsumerRecord)}
    if not isinstance(told["definition"], dict):
        raise TypeError("a definition is a mapping")
    return ConsumerRecord(**told)


def _intent(facts: Mapping[str, Any]) -> Intent:
    told = {field.name: facts[field.name] for field in fields(Intent)}
    vnodes, definition = told["vnodes"], told["definition"]
    if not isinstance(definition, dict) or not isinstance(vnodes, list):
        raise TypeError("an intent has a definition and vnodes")
    return Intent(**{**told, "vnodes": tuple(check_int("vnode", vnode) for vnode in vnodes)})


# --- inside a transaction ---------------------------------------------------------------------------------------


def _epochs(connection: Connection, *, is_locking: bool = False) -> _Epochs:
    row = connection.execute(_meta_locked if is_locking else _meta).one()
    return _Epochs(row.lake_id, row.epoch, row.pending)


def _adopt(connection: Connection, consumer: ConsumerRecord, seqs: Mapping[int, int] | None) -> ConsumerRecord:
    insert_missing(connection, consumers, name=consumer.name)
    current(connection, consumer.name, is_locking=True)
    kept = put_life(connection, replace(consumer, is_retired=consumer.is_retired or seqs is None))
    raise_marks(connection, kept.generation, seqs or {})
    return kept
