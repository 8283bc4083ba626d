"""Lake and state belong together: each knows the other's id and a rising epoch, so the loss of either is noticed.

The lake's side is a small file, `state.json`, the record: the last epoch, where the state is, and its consumers. The
state's side is its first row: `pending`, the highest epoch that may have been recorded, and `epoch`, the lowest epoch
that the record can have by now. They belong together if and only if

    state.epoch <= record.epoch <= state.pending        (no file counts as epoch 0 and no consumers)

A record above `pending` means that the state was lost or is an old copy. A record below `epoch` means that the lake is
an old copy. Then the lake can be read, but nothing is sent or trimmed until `adopt`.

Why the rule always holds. A renewal has two steps. `begin_renewal` raises `pending` and commits, so the record is
never above `pending`. `write_epoch` writes the highest pending epoch while it holds the lock on the first row, and
raises `epoch` in the same transaction: renewers write one after the other, and epochs never fall. If the process ends
in between, `epoch` stays where it was, below the record. One kind of write can still come late: the server ended the
transaction of a process that stalled or waited for a slow store, or a request arrives after its sender is gone. Every
renewal is therefore on record with the epoch that it began with, below which it cannot write. `epoch` does not pass a
renewal on record until `LATE_S` have gone by.

After a crash: the rule holds, and the next renewal continues from there.
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
from strandline.state import key_positions
from strandline.state.consumers import ConsumerRecord, consumers, find_current, generations, list_current, put_life
from strandline.state.database import Database, insert_missing, meta, metadata, now_s
from strandline.state.intents import Intent, intents, open_intents
from strandline.state.key_positions import forget_positions, read_positions
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
_select_meta = select(meta.c.lake_id, meta.c.epoch, meta.c.pending)
_lock_meta = _select_meta.with_for_update()
_set_pending = update(meta).values(pending=bindparam("own"), lake_id=bindparam("lake"))
_set_epoch = update(meta).values(epoch=bindparam("lowest"))
_delete_renewals = delete(renewals).where(
    or_(renewals.c.epoch == bindparam("own"), renewals.c.since_s < bindparam("late_s"))
)
_oldest_renewal = select(func.min(renewals.c.epoch))


@dataclass(frozen=True)
class EpochRecord:
    """The lake's side: the epoch, where the state is (without a password), its consumers and their open intents. Every
    new intent is recorded here before its first row is sent, so the record knows every batch under way. `backfills` are
    the generations of consumers whose history is delivered in part: only the state knows which part."""

    lake_id: str
    epoch: int
    state: str
    consumers: tuple[ConsumerRecord, ...]
    intents: tuple[Intent, ...] = ()
    backfills: tuple[str, ...] = ()


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
        # The state is read before the record, and again before it is called older: others may renew in between.
        with self._state.reading() as connection:
            before = _read_epochs(connection)
        self._refuse_foreign(before)
        record = self._check_record(read_record(self._storage))
        if max(record.epoch, trimmed_epoch) > before.pending:
            with self._state.reading() as connection:
                self._refuse_older_state(_read_epochs(connection), record, trimmed_epoch)
        self._refuse_older_lake(before, record)

    def renew(self) -> int:
        """Record a new epoch and the current consumers in the lake; returns the epoch. `Conflict` as in `check`, with
        nothing changed: an old state must not catch up with its lake."""
        with self._state.transaction() as connection:
            own = self.begin_renewal(connection)
        return self.write_epoch(own)

    def begin_renewal(self, connection: Connection) -> int:
        """Begin a renewal, in a transaction that may hold other changes too; returns its epoch. `write_epoch` follows
        after the transaction."""
        found = self._lock_epochs(connection)
        record = self._check_record(read_record(self._storage))
        self._refuse_older_state(found, record)
        self._refuse_older_lake(found, record)
        own = max(found.epoch, found.pending) + 1
        connection.execute(_set_pending, {"own": own, "lake": self._lake_id})
        connection.execute(insert(renewals), {"epoch": own, "since_s": now_s(connection)})
        return own

    def write_epoch(self, own: int) -> int:
        """Record the epoch of a renewal, or a higher one, in the lake; returns the recorded epoch."""
        crash_point("epoch.pending")
        with self._state.transaction() as connection:
            found = self._lock_epochs(connection)
            told = found.pending
            if told < own:
                self._refuse(
                    f"{self._state.shown} was replaced by an older one during a renewal", _ADOPT, found.epoch, own
                )
            self._write_record(self._make_record(connection, told))
            crash_point("epoch.recorded")
            connection.execute(_delete_renewals, {"own": own, "late_s": now_s(connection) - LATE_S})
            oldest = connection.execute(_oldest_renewal).scalar()
            connection.execute(_set_epoch, {"lowest": told if oldest is None else min(told, oldest)})
        return told

    def fence(self) -> bool:
        """Record the consumers of a restored state in the lake. If there are any, the record is ahead of the state:
        nothing is sent until a person adopts the state. Returns whether that is so."""
        with self._state.transaction() as connection:
            found = self._lock_epochs(connection)
            is_fenced = any(not each.is_retired for each in list_current(connection))
            self._write_record(self._make_record(connection, found.pending + is_fenced))
        return is_fenced

    def adopt(
        self,
        positions: Iterable[tuple[ConsumerRecord, Mapping[int, int] | None]],
        *,
        begun: Iterable[Intent] = (),
        heads: Mapping[str, int] | None = None,
        trimmed_epoch: int = 0,
    ) -> list[ConsumerRecord]:
        """Make this the lake's state again, by a person's command, with the position of each consumer.

        Each consumer becomes the current life of its name. It gets the given marks; where the same life already has a
        higher mark, the higher one stays. None instead of marks retires it. Open intents that no longer stand on their
        marks are given up; the intents in `begun` are opened again. `heads` are the newest seqs of the lake's tables by
        generation. Commits beyond a head are lost: marks beyond it are lowered to it, and intents that reach beyond it
        are given up. Consumers that are not mentioned keep everything else.

        After a crash: everything is done, or nothing is and lake and state still do not belong together."""
        ordered = sorted(positions, key=lambda each: each[0].name)
        for _, seqs in ordered:
            check_seqs(seqs or {})
        for head in (heads or {}).values():
            check_int("head", head)
        record = read_record(self._storage)
        is_foreign = record is not None and record.lake_id != self._lake_id
        told = 0 if record is None or is_foreign else record.epoch
        has_positions = self._state.has(key_positions.positions)
        with self._state.transaction() as connection:
            found = self._lock_epochs(connection)
            adopted = [_adopt_consumer(connection, consumer, seqs) for consumer, seqs in ordered]
            # A consumer that continues has its whole history; this state may be a copy from before that.
            for each in adopted if has_positions else ():
                forget_positions(connection, each.generation)
            for intent in begun:
                reopen_intent(connection, intent)
            for consumer in list_current(connection):
                if heads is not None and consumer.table_generation in heads:
                    find_current(connection, consumer.name, is_locking=True)
                    lower_marks(connection, consumer.generation, heads[consumer.table_generation])
            # `epoch` may fall here, to that of the record: every later epoch is above `pending` anyway.
            pending = max(found.pending, told, check_int("epoch", trimmed_epoch))
            connection.execute(update(meta).values(lake_id=self._lake_id, epoch=told, pending=pending))
            connection.execute(delete(renewals))
        crash_point("epoch.adopted")
        if is_foreign:
            self._storage.delete([FILE])
        self.renew()
        return adopted

    # --- what does not belong together -------------------------------------------------------------------------

    def _lock_epochs(self, connection: Connection) -> _Epochs:
        found = _read_epochs(connection, is_locking=True)
        self._refuse_foreign(found)
        return found

    def _refuse_foreign(self, found: _Epochs) -> None:
        if found.lake_id not in (None, self._lake_id):
            self._state.bind(self._lake_id)  # raises the Conflict

    def _check_record(self, record: EpochRecord | None) -> EpochRecord:
        if record is None:
            return EpochRecord(self._lake_id, 0, "", ())
        if record.lake_id != self._lake_id:
            raise Conflict(
                f"{self._storage.url(FILE)} belongs to the lake {record.lake_id}, and this is the lake {self._lake_id}",
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
            f"the state {self._state.shown} is older than the lake {self._storage.uri} (epoch {found.epoch}, the lake"
            f" knows {knows}): it {'is another state, ' if is_other else ''}was lost, or restored from a backup."
            " Until it is adopted nothing is sent",
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

    def _make_record(self, connection: Connection, epoch: int) -> EpochRecord:
        known = tuple(list_current(connection))
        living = [each.generation for each in known if not each.is_retired]
        at = read_positions(connection, living) if self._state.has(key_positions.positions) else {}
        backfills = tuple(sorted(life for life, each in at.items() if any(not one.is_done for one in each.values())))
        begun = tuple(open_intents(connection, living))
        return EpochRecord(self._lake_id, epoch, self._state.shown, known, begun, backfills)

    def _write_record(self, record: EpochRecord) -> None:
        known = [{**vars(each), "definition": dict(each.definition)} for each in record.consumers]
        begun = [{**vars(each), "definition": dict(each.definition)} for each in record.intents]
        facts = {"format": FORMAT, **vars(record), "consumers": known, "intents": begun}
        with self._storage.output(FILE) as stream:
            stream.write(json.dumps(facts, indent=1).encode())


def read_record(storage: Storage) -> EpochRecord | None:
    """The record of a lake; None when there is none yet."""
    try:
        facts = json.loads(storage.read(FILE))
        found = int(facts["format"])
        if found <= FORMAT:
            return _parse_record(facts)
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


def _parse_record(facts: Mapping[str, Any]) -> EpochRecord:
    known = tuple(_parse_consumer(each) for each in facts["consumers"])
    begun = tuple(_parse_intent(each) for each in facts.get("intents", ()))
    backfills = tuple(map(str, facts.get("backfills", ())))
    record = EpochRecord(str(facts["lake_id"]), facts["epoch"], str(facts["state"]), known, begun, backfills)
    if not isinstance(record.epoch, int) or record.epoch < 0:
        raise ValueError(f"epoch {record.epoch!r}")
    return record


def _parse_consumer(facts: Mapping[str, Any]) -> ConsumerRecord:
    values = {field.name: facts[field.name] for field in fields(ConsumerRecord)}
    if not isinstance(values["definition"], dict):
        raise TypeError("a definition is a mapping")
    return ConsumerRecord(**values)


def _parse_intent(facts: Mapping[str, Any]) -> Intent:
    values = {field.name: facts[field.name] for field in fields(Intent)}
    vnodes, definition = values["vnodes"], values["definition"]
    if not isinstance(definition, dict) or not isinstance(vnodes, list):
        raise TypeError("an intent has a definition and vnodes")
    return Intent(**{**values, "vnodes": tuple(check_int("vnode", vnode) for vnode in vnodes)})


# --- inside a transaction ---------------------------------------------------------------------------------------


def _read_epochs(connection: Connection, *, is_locking: bool = False) -> _Epochs:
    row = connection.execute(_lock_meta if is_locking else _select_meta).one()
    return _Epochs(row.lake_id, row.epoch, row.pending)


def _adopt_consumer(connection: Connection, consumer: ConsumerRecord, seqs: Mapping[int, int] | None) -> ConsumerRecord:
    insert_missing(connection, consumers, name=consumer.name)
    find_current(connection, consumer.name, is_locking=True)
    kept = put_life(connection, replace(consumer, is_retired=consumer.is_retired or seqs is None))
    raise_marks(connection, kept.generation, seqs or {})
    return kept
