"""One commit for many requests.

What a request brings is decided on the snapshot that the commit is based on: what of a chunk the table has already,
and whether a repeated request was done before. When another process got ahead, all is decided anew on the newer one.
So rows and positions land together, and once, whoever sends them to whichever server of the lake.

After a crash: the commit is there whole or not at all; who got no answer repeats the request, and it counts once.
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
from strandline.server.idempotency import Key, reused
from strandline.server.requests import Post, columns_of
from strandline.server.table_growth import Growth
from strandline.sinks.forward.message import ChunkHeader, Places, Sender
from strandline.sinks.forward.positions import check_replay, find_new_rows, older_positions, replay_transactions
from strandline.sinks.forward.refusal import Failure, Refusal
from strandline.storage.snapshot import Draft, Snapshot
from strandline.tables.log import Log, prepare


@dataclass(frozen=True)
class Outcome:
    """What became of a request. `seq` is the commit that has it; None when it brought nothing new. Of a repeated
    request `rows` or `skipped` is None when its body was not counted again."""

    rows: int | None
    skipped: int | None = 0
    seq: int | None = None
    is_repeated: bool = False

    def to_dict(self) -> dict[str, Any]:
        repeated = {"repeated": True} if self.is_repeated else {}
        return {"rows": self.rows, "skipped": self.skipped, "seq": self.seq, **repeated}


def commit_posts(log: Log, posts: Sequence[Post]) -> list[Outcome | Failure]:
    """Commit the first of `posts`, all of them where one commit can say it; what became of each, in their order."""
    try:
        return until_landed(lambda: _commit(log, posts))
    except Conflict as error:
        raise Unavailable(
            "others commit to this table so often that there was no getting in between", hint="Nothing was applied."
        ) from error


def _commit(log: Log, posts: Sequence[Post]) -> list[Outcome | Failure]:
    plan = _planned(log, posts)
    while plan.growths:
        # The table becomes what applied requests need, in a commit of its own before theirs. Then all is decided anew.
        with suppress(Invalid):
            log.redefine("EVOLVE", plan.grown)
        crash_point("receiver.grown")
        plan = _planned(log, posts)
    if not plan.is_due:
        return plan.results(None)
    definition = plan.definition
    files = log.write(prepare(plan.rows(definition), definition, None), definition) if plan.pieces else []

    def amend(snapshot: Snapshot, draft: Draft) -> Draft:
        if any(snapshot.txns.get(app) != value for app, value in plan.expected.items()):
            raise Conflict("positions moved while the commit was made")
        keys = {key.app: key.packed(snapshot.version + 1) for key in plan.keys.values()}
        # From the snapshot: an older life may have got a vnode's position after the commit was decided.
        old = {app: at for sender in plan.begun for app, at in older_positions(snapshot.txns, sender).items()}
        return replace(draft, txns=plan.moved, expiring_txns=keys, forgotten_txns=old)

    seq = log.commit(files, operation="RECEIVE", amend=amend).seq
    crash_point("receiver.committed")
    return plan.results(seq)


def _planned(log: Log, posts: Sequence[Post]) -> _Plan:
    state = log.refresh()
    plan = _Plan(state.snapshot.txns, state.definition)
    for post in posts:
        if not plan.has_room_for(post):
            break
        plan.add(post)
    return plan


class _Plan:
    """What a commit will hold. `expected` are the transactions that it was decided on; `definition` is the table with
    the `growths` of all that is in it."""

    def __init__(self, txns: Mapping[str, int], definition: TableDef) -> None:
        self.definition = definition
        self.growths: list[Growth] = []
        self.expected: dict[str, int | None] = {}
        self.moved: dict[str, int] = {}
        self.keys: dict[str, Key] = {}
        self.begun: set[Sender] = set()
        self.pieces: list[pa.Table] = []
        # A dict, as every snapshot has it; nothing writes to it here.
        self._txns = cast("dict[str, int]", txns)
        self._results: list[tuple[Outcome | Failure, bool]] = []
        self._deleted: list[np.ndarray[Any, np.dtype[np.int64]]] = []

    @property
    def is_due(self) -> bool:
        return bool(self.pieces or self.moved)

    def has_room_for(self, post: Post) -> bool:
        """Whether no key with versions that the commit deletes is upserted after that."""
        if post.upserted is None or not self._deleted:
            return True
        return not any(np.isin(post.upserted, deleted).any() for deleted in self._deleted)

    def grown(self, definition: TableDef) -> TableDef:
        """The table with all that the commit needs; `Invalid` when it can no longer have it."""
        for growth in self.growths:
            definition = growth.applied(definition)
        return definition

    def add(self, post: Post) -> None:
        if not self._is_held(post):
            changed = "the table's columns changed while the request was under way"
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
            self._take(post.rows, post)
            if post.replay is not None:
                self._move(post.replay.sender, moved)
            self._results.append((Outcome(post.rows.num_rows), True))

    def _is_held(self, post: Post) -> bool:
        """Whether the table has all columns of a post, or can get them."""
        try:
            definition = self.definition if post.growth is None else post.growth.applied(self.definition)
        except Invalid:
            return False
        return {OP, *definition.schema.names}.issuperset(post.rows.column_names)

    def _is_repeated(self, key: Key | None) -> bool:
        return key is not None and (key.app in self._txns or key.text in self.keys)

    def _is_new(self, key: Key, count: int) -> bool:
        """Whether a request with this key is to be applied; otherwise what became of it is known."""
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
            self._results.append((reused(key.text, "Nothing of this body was applied."), False))
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
        self._take(new, post)
        self._move(sender, found.moved)
        outcome = Outcome(new.num_rows, post.rows.num_rows - new.num_rows)
        self._results.append((outcome, bool(found.moved)))

    def _move(self, sender: Sender, moved: Mapping[str, int]) -> None:
        if sender.life_app in moved:
            # A new life sends for the first time: what this commit would have kept of an older one is not kept.
            self.begun.add(sender)
            own = f"from/{sender.sink}/"
            self.moved = {app: at for app, at in self.moved.items() if not app.startswith(own)}
        self.moved.update(moved)

    def _take(self, rows: pa.Table, post: Post) -> None:
        if not rows.num_rows:
            return
        self.pieces.append(rows)
        if post.growth is not None:
            grown = post.growth.applied(self.definition)
            if grown is not self.definition:
                self.definition = grown
                self.growths.append(post.growth)

    def rows(self, definition: TableDef) -> pa.Table:
        """All rows in their order. Some may have been checked before a column was added."""
        columns = columns_of(definition)
        return pa.concat_tables([conform(piece, columns) for piece in self.pieces])

    def results(self, seq: int | None) -> list[Outcome | Failure]:
        return [
            replace(found, seq=seq) if isinstance(found, Outcome) and is_in_commit else found
            for found, is_in_commit in self._results
        ]
