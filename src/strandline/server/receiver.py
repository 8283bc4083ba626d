"""Receive rows for the tables of a lake: from the body of a request to its commit.

After a crash: a request that was answered is in a commit. A request without an answer may be in one; it is safe to
repeat it, as the forward protocol describes.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa

from strandline.errors import Invalid, StrandlineError, Unavailable
from strandline.lake import Lake
from strandline.model.change import OP
from strandline.model.definition import TableDef
from strandline.model.stored_names import find_former_names
from strandline.server import body
from strandline.server.body import Body, BodyFormat
from strandline.server.commit import Outcome
from strandline.server.idempotency import HashedBody, Key, app_of
from strandline.server.memory_cost import Weight
from strandline.server.queue import Claim, MemoryBudget, Result, TableQueue
from strandline.server.requests import Post, hidden_columns, make_posts
from strandline.server.table_growth import (
    check_rounding,
    find_growth,
    grow_table,
    missing_column,
    narrow_rows,
    widest_fields,
)
from strandline.sinks.forward import positions
from strandline.sinks.forward.message import ChunkHeader, Replay, Sender
from strandline.sinks.forward.protocol import CHUNK_HEADER, KEY_HEADER, REPLAY_HEADER, TOO_LARGE
from strandline.sinks.forward.refusal import Refusal, malformed, too_large
from strandline.tables.store import TableStore

_CHECKERS = min(8, (os.cpu_count() or 1) + 2)
_COMMITTERS = 32
_UNFOLDED = 8
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """The limits of the server, for one request and for all at once. `body_columns` also counts fields of columns;
    requests may add columns to a table up to `table_columns`."""

    body_bytes: int = 64 << 20
    queue_bytes: int = 1 << 30
    queue_requests: int = 1000
    commit_rows: int = 200_000
    linger_ms: float = 5
    body_rows: int = 1_000_000
    body_columns: int = 4096
    table_columns: int = 1000

    def __post_init__(self) -> None:
        for name in ("body_bytes", "queue_requests", "commit_rows", "body_rows", "body_columns", "table_columns"):
            if getattr(self, name) < 1:
                raise Invalid(f"{name} is {getattr(self, name)}; expected 1 or more", setting=name)
        if self.linger_ms < 0:
            raise Invalid(f"linger_ms is {self.linger_ms}; expected 0 or more", setting="linger_ms")
        if self.queue_bytes < self.body_bytes:
            raise Invalid(
                f"queue_bytes is {self.queue_bytes}, less than the {self.body_bytes} of one body", setting="queue_bytes"
            )

    @property
    def weight_bytes(self) -> int:
        """The memory for one body, in all its forms together."""
        return min(_UNFOLDED * self.body_bytes, self.queue_bytes)


@dataclass(frozen=True)
class RequestHead:
    """The headers of a request."""

    form: BodyFormat
    chunk: ChunkHeader | None
    replay: Replay | None
    key: str | None
    length: int | None

    @property
    def sender(self) -> Sender | None:
        said = self.chunk or self.replay
        return None if said is None else said.sender

    @staticmethod
    def of(headers: Mapping[str, str]) -> RequestHead:
        """The headers, checked. The `Idempotency-Key` of a chunk is ignored, because its positions are stronger."""
        form = BodyFormat.of(headers.get("Content-Type"), headers.get("Content-Encoding"))
        said, again = headers.get(CHUNK_HEADER), headers.get(REPLAY_HEADER)
        if said is not None and again is not None:
            raise malformed(f"the request has both {CHUNK_HEADER} and {REPLAY_HEADER}; expected one of them")
        chunk = None if said is None else ChunkHeader.parse(said)
        key = headers.get(KEY_HEADER)
        if key is not None and not (1 <= len(key) <= 256 and key.isprintable()):
            raise malformed(f"the {KEY_HEADER} has {len(key)} characters; expected 1 to 256 printable ones")
        length = headers.get("Content-Length")
        return RequestHead(
            form,
            chunk,
            None if again is None else Replay.parse(again),
            None if chunk is not None else key,
            None if length is None else int(length),
        )


class Receiver:
    """The receiving side of a lake, for one event loop."""

    def __init__(self, lake: Lake, limits: Limits, *, evolve: bool = True) -> None:
        self._lake = lake
        self._limits = limits
        self._evolve = evolve
        self._budget = MemoryBudget(limits.queue_bytes, limits.queue_requests)
        self._arriving: Counter[str] = Counter()
        self._queues: dict[str, TableQueue] = {}
        self._checks = ThreadPoolExecutor(_CHECKERS, thread_name_prefix="check")
        self._commits = ThreadPoolExecutor(_COMMITTERS, thread_name_prefix="commit")
        self._is_closed = False

    async def close(self) -> None:
        """Refuse new requests and commit those that wait."""
        self._is_closed = True
        for queue in list(self._queues.values()):
            await queue.drain()
        self._checks.shutdown()
        self._commits.shutdown()

    async def ingest(self, name: str, headers: Mapping[str, str], stream: AsyncIterator[bytes]) -> Outcome:
        """Apply a request to a table; the outcome, when it is durable."""
        if self._is_closed:
            raise Unavailable("the server is stopping", hint="Send it again in a moment.")
        head = RequestHead.of(headers)
        with self._budget.claim(min(head.length or 0, self._limits.body_bytes)) as claim:
            self._arriving[name] += 1
            try:
                found = await self._receive_request(name, head, stream, claim)
            finally:
                self._arriving[name] -= 1
                if not self._arriving[name]:
                    del self._arriving[name]
            return found if isinstance(found, Outcome) else await self._commit_posts(*found)

    async def positions(self, name: str, sink: str, life: int | None) -> tuple[int | None, list[list[int]]]:
        """The life of a sink, and its positions in a table. Without `life` the newest one; None when the table has
        nothing of the sink."""
        asked = Sender.of(sink, life or 0)

        def found() -> tuple[int | None, list[list[int]]]:
            txns = self._find_table(name).log.refresh().snapshot.txns
            if life is None:
                newest = txns.get(asked.life_app)
                return newest, [] if newest is None else positions.list_positions(txns, Sender(sink, newest))
            positions.check_life(asked, txns)
            return life, positions.list_positions(txns, asked)

        return await self._run_check(found)

    async def _receive_request(
        self, name: str, head: RequestHead, stream: AsyncIterator[bytes], claim: Claim
    ) -> Outcome | tuple[TableStore, list[Post]]:
        most, length = self._limits.body_bytes, head.length or 0
        summed = HashedBody(stream, head.form.name)
        pieces = summed.pieces()
        data: bytearray | None = None
        try:
            body.check_length(length, most)
            data = await body.receive(pieces, most=most, hold=lambda size: claim.hold(max(size, length)))
        except Refusal as refused:
            if refused.status != TOO_LARGE or not await self._run_check(lambda: self._is_done(name, head)):
                raise
            # A request that was applied before is answered, also when the limit is lower now.
            claim.hold(0)
            await body.discard(pieces)
        key = None if head.key is None else Key(head.key, summed.digest)
        return await self._run_check(lambda: self._check_request(name, head, key, data, claim))

    def _check_request(
        self, name: str, head: RequestHead, key: Key | None, data: bytearray | None, claim: Claim
    ) -> Outcome | tuple[TableStore, list[Post]]:
        """The request's rows, ready for a commit, or its outcome when it was applied before. Runs in a thread. `data`
        is None for a body that is too large."""
        table = self._find_table(name)
        if done := self._find_outcome(table, head, key, data, claim):
            # A request that was applied before is not checked again: table and limits may have changed since.
            return done
        if data is None:
            raise too_large("the body is larger than the limit of this server")
        content = self._decode_body(head, data, claim)
        if head.chunk is None and not content.count:
            return Outcome(0)
        try:
            posts = self._make_posts(content, table.definition, head, key)
            for post in posts:
                content.weight.add_longest(post.rows)
            return table, [replace(post, replay=head.replay) for post in posts]
        except Invalid as error:
            error.fields.setdefault("table", name)
            raise

    def _make_posts(self, content: Body, definition: TableDef, head: RequestHead, key: Key | None) -> list[Post]:
        """The rows of a request, checked against the table with the columns it will have. It grows only for a sink."""
        chunk = head.chunk
        hidden = hidden_columns(is_chunk=chunk is not None)
        if head.sender is None:
            return make_posts(content.rows(pa.schema([*hidden, *definition.schema])), definition, key=key)
        known = {*definition.schema.names, *(field.name for field in hidden)}
        try:
            # A sender may not have renamed a column yet that was renamed here.
            former = find_former_names(definition.renames)
            rows = content.rows(pa.schema([*hidden, *widest_fields(definition)]), former)
            if not content.is_typed:
                rows = narrow_rows(rows, definition)
            growth = find_growth(rows, definition, known, self._limits.table_columns)
            if growth is not None and not self._evolve:
                known -= set(growth.columns.names)
                growth = None
            if growth is not None:
                definition = grow_table(definition, growth)
                known.update(definition.schema.names)
            check_rounding(rows, definition)
            return make_posts(rows, definition, chunk=chunk, key=key, growth=growth)
        except Invalid as error:
            if error.fields.get("column", OP) not in known:
                raise missing_column(error, definition) from error
            raise

    def _find_outcome(
        self, table: TableStore, head: RequestHead, key: Key | None, data: bytearray | None, claim: Claim
    ) -> Outcome | None:
        """The outcome of a request that was applied before; None for a new one."""
        txns = table.log.refresh().snapshot.txns
        if head.sender is not None:
            positions.check_life(head.sender, txns)
        seq = None if key is None else key.seq_in(txns)
        is_had = head.chunk is not None and positions.holds_chunk(head.chunk, txns)
        if seq is None and not is_had:
            return None
        try:
            count = None if data is None else self._decode_body(head, data, claim).count
        except (Refusal, Invalid):
            count = None
        return Outcome(0, count) if seq is None else Outcome(count, seq=seq, is_repeated=True)

    def _is_done(self, name: str, head: RequestHead) -> bool:
        """Whether a request was applied before, judged by its headers alone."""
        txns = self._find_table(name).log.refresh().snapshot.txns
        if head.sender is not None:
            positions.check_life(head.sender, txns)
        if head.chunk is not None:
            return positions.holds_chunk(head.chunk, txns)
        return head.key is not None and app_of(head.key) in txns

    def _decode_body(self, head: RequestHead, data: bytearray, claim: Claim) -> Body:
        limits = self._limits
        return body.decode(
            data, head.form, Weight(limits.weight_bytes, limits.body_rows, limits.body_columns, claim.hold)
        )

    def _find_table(self, name: str) -> TableStore:
        return self._lake.open_table(self._lake.catalog.refresh().get(name))

    async def _commit_posts(self, table: TableStore, posts: Sequence[Post]) -> Outcome:
        generation = table.entry.generation
        queue = self._queues.get(generation)
        if queue is None:
            queue = self._queues[generation] = TableQueue(
                table.log,
                self._commits,
                lambda: self._arriving[table.name],
                self._limits.commit_rows,
                self._limits.linger_ms / 1000,
            )
        return _join_outcomes(await queue.put(posts))

    async def _run_check(self, act: Callable[[], T]) -> T:
        found = await asyncio.get_running_loop().run_in_executor(self._checks, _catch_failure, act)
        if isinstance(found, Refusal | StrandlineError):
            raise found
        return found


def _catch_failure(act: Callable[[], T]) -> T | Refusal | StrandlineError:
    """The result of a check, or its error. The error loses its traceback, which would keep the body in memory."""
    try:
        return act()
    except (Refusal, StrandlineError) as error:
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)


def _join_outcomes(results: Sequence[Result]) -> Outcome:
    """The outcome of a request whose posts took several commits; raises the first failure."""
    total = Outcome(0)
    for result in results:
        if not isinstance(result, Outcome):
            raise result
        seq = total.seq if result.seq is None else result.seq
        rows, skipped = (total.rows or 0) + (result.rows or 0), (total.skipped or 0) + (result.skipped or 0)
        total = Outcome(rows, skipped, seq, result.is_repeated)
    return total
