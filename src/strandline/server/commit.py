"""One commit for many requests.

The snapshot that the commit is based on decides which rows of a chunk are new, and whether a request was applied
before. When another process commits first, this is decided again on the newer snapshot. So rows and positions are
committed together, exactly once, whichever server of the lake gets them.

After a crash: the commit exists or not. A client without an answer repeats the request, and it counts once.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from strandline.crash import crash_point
from strandline.errors import Conflict, Invalid, Unavailable
from strandline.model.change import OP
from strandline.model.definition import TableDef
from strandline.model.types import conform
from strandline.retry import until_landed
from strandline.server.idempotency import Key, key_reused
from strandline.server.requests import Post, columns_of
from strandline.server.table_growth import Growth
from strandline.sinks.forward.message import ChunkHeader, Places, Sender
from strandline.sinks.forward.positions import check_replay, find_new_rows, older_positions, replay_transactions
from strandline.sinks.forward.refusal import Failure, Refusal
from strandline.storage.snapshot import Draft, Snapshot
from strandline.tables.log import Log, prepare


@dataclass(frozen=True)
class Outcome:
    """The answer to a request. `seq` is its commit; None when it had nothing new. `rows` or `skipped` of a repeated
    request is None when its body was not counted again."""

    rows: int | None
    skipped: int | None = 0
    seq: int | None = None
    is_repeated: bool = False

    def to_dict(self) -> dict[str, Any]:
        repeated = {"repeated": True} if self.is_repeated else {}
        return {"rows": self.rows, "skipped": self.skipped, "seq": self.seq, **repeated}


def commit_posts(log: Log, posts: Sequence[Post]) -> list[Outcome | Failure]:
    """Commit as many of `posts` as one commit can hold, from the first on; the outcome of each, in order."""
    try:
        return until_landed(lambda: _commit_once(log, posts))
    except Conflict as error:
        raise Unavailable(
            "other processes commit to this table too often; this commit never got its turn",
            hint="Nothing was applied.",
        ) from error


def _commit_once(log: Log, posts: Sequence[Post]) -> list[Outcome | Failure]:
    plan = _make_plan(log, posts)
    while plan.growths:
        # The table gets the columns that the requests need, in a commit before theirs. Then all is decided again.
        with suppress(Invalid):
            log.redefine("EVOLVE", plan.grow)
        crash_point("receiver.grown")
        plan = _make_plan(log, posts)
    if not plan.is_due:
        return plan.results(None)
    definition = plan.definition
    files = log.write(prepare(plan.rows(definition), definition, None), definition) if plan.pieces else []

    def amend(snapshot: Snapshot, draft: Draft) -> Draft:
        if any(snapshot.txns.get(app) != value for app, value in plan.expected.items()):
            raise Conflict("another commit moved the positions first")
        keys = {key.app: key.packed(snapshot.version + 1) for key in plan.keys.values()}
        # From the newest snapshot: an older life may have got a position after the plan was made.
        old = {app: at for sender in plan.begun for app, at in older_positions(snapshot.txns, sender).items()}
        return replace(draft, txns=plan.moved, expiring_txns=keys, forgotten_txns=old)

    seq = log.commit(files, operation="RECEIVE", amend=amend).seq
    crash_point("receiver.committed")
    return plan.results(seq)


def _make_plan(log: Log, posts: Sequence[Post]) -> _Plan:
    state = log.refresh()
    plan = _Plan(state.snapshot.txns, state.definition)
    for post in posts:
        if not plan.has_room_for(post):
            break
        plan.add(post)
    return plan


class _Plan:
    """The contents of a commit. It was decided on the `expected` transactions; `definition` is the table with all
    `growths` that its rows need."""

    def __init__(self, txns: Mapping[str, int], definition: TableDef) -> None:
        self.definition = definition
        self.growths: list[Growth] = []
        self.expected: dict[str, int | None] = {}
        self.moved: dict[str, int] = {}
        self.keys: dict[str, Key] = {}
        self.begun: set[Sender] = set()
        self.pieces: list[pa.Table] = []
        # It is the dict of a snapshot; nothing writes to it here.
        self._txns = cast("dict[str, int]", txns)
        self._results: list[tuple[Outcome | Failure, bool]] = []
        self._deleted: list[np.ndarray[Any, np.dtype[np.int64]]] = []

    @property
    def is_due(self) -> bool:
        return bool(self.pieces or self.moved)

    def has_room_for(self, post: Post) -> bool:
        """False when a table has versions and the post upserts a key that the commit deletes."""
        if post.upserted is None or not self._deleted:
            return True
        return not any(np.isin(post.upserted, deleted).any() for deleted in self._deleted)

    def grow(self, definition: TableDef) -> TableDef:
        """The table with all columns that the commit needs; `Invalid` when it can no longer get them."""
        for growth in self.growths:
            definition = growth.apply_to(definition)
        return definition

    def add(self, post: Post) -> None:
        if not self._is_accepted(post):
            changed = "the table's columns changed during the request"
            self._results.append((Unavailable(changed, hint="Nothing was applied. Send it again."), False))
            return
        if post.deleted is not None and len(post.deleted):
            self._deleted.append(post.deleted)
        if post.chunk is not None and post.places is not None:
            self._add_chunk(post, post.chunk, post.places)
            return
        moved: Mapping[str, int] = {}
        if post.replay is not None and not self._is_repeated(post.key):
            self.expected.update((app, self._txns.get(app)) for app in replay_transactions(post.replay.sender))
            try:
                moved = check_replay(post.replay, ChainMap(self.moved, self._txns))
            except (Conflict, Refusal) as refused:
                self._results.append((refused, False))
                return
        if post.key is None or self._is_new(post.key, post.rows.num_rows):
            self._add_rows(post.rows, post)
            if post.replay is not None:
                self._move_positions(post.replay.sender, moved)
            self._results.append((Outcome(post.rows.num_rows), True))

    def _is_accepted(self, post: Post) -> bool:
        """Whether the table has all columns of a post, or can get them."""
        try:
            definition = self.definition if post.growth is None else post.growth.apply_to(self.definition)
        except Invalid:
            return False
        return {OP, *definition.schema.names}.issuperset(post.rows.column_names)

    def _is_repeated(self, key: Key | None) -> bool:
        return key is not None and (key.app in self._txns or key.text in self.keys)

    def _is_new(self, key: Key, count: int) -> bool:
        """Whether a request with this key is new; otherwise its outcome is added."""
        self.expected[key.app] = self._txns.get(key.app)
        try:
            earlier = key.seq_in(self._txns)
        except Invalid as error:
            self._results.append((error, False))
            return False
        if earlier is not None:
            self._results.append((Outcome(count, seq=earlier, is_repeated=True), False))
            return False
        first = self.keys.setdefault(key.text, key)
        if first is key:
            return True
        if first == key:
            self._results.append((Outcome(count, is_repeated=True), True))
        else:
            self._results.append((key_reused(key.text, "Nothing of this body was applied."), False))
        return False

    def _add_chunk(self, post: Post, chunk: ChunkHeader, places: Places) -> None:
        sender = chunk.sender
        for app in (sender.life_app, *map(sender.position_app, chunk.ranges)):
            self.expected[app] = self._txns.get(app)
        try:
            found = find_new_rows(chunk, places, ChainMap(self.moved, self._txns))
        except (Conflict, Refusal) as refused:
            self._results.append((refused, False))
            return
        new = post.rows if found.is_new is None else post.rows.filter(pa.array(found.is_new))
        self._add_rows(new, post)
        self._move_positions(sender, found.moved)
        outcome = Outcome(new.num_rows, post.rows.num_rows - new.num_rows)
        self._results.append((outcome, bool(found.moved)))

    def _move_positions(self, sender: Sender, moved: Mapping[str, int]) -> None:
        if sender.life_app in moved:
            # The first chunk of a new life: positions of an older life do not go into this commit.
            self.begun.add(sender)
            own = f"from/{sender.sink}/"
            self.moved = {app: at for app, at in self.moved.items() if not app.startswith(own)}
        self.moved.update(moved)

    def _add_rows(self, rows: pa.Table, post: Post) -> None:
        if not rows.num_rows:
            return
        self.pieces.append(rows)
        if post.growth is not None:
            grown = post.growth.apply_to(self.definition)
            if grown is not self.definition:
                self.definition = grown
                self.growths.append(post.growth)

    def rows(self, definition: TableDef) -> pa.Table:
        """All rows in order. Some may have been checked before a column was added, so they get it here."""
        columns = columns_of(definition)
        return pa.concat_tables([conform(piece, columns) for piece in self.pieces])

    def results(self, seq: int | None) -> list[Outcome | Failure]:
        return [
            replace(found, seq=seq) if isinstance(found, Outcome) and is_in_commit else found
            for found, is_in_commit in self._results
        ]
