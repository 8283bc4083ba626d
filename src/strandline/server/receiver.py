"""Take rows for the tables of a lake: bodies in, commits out.

After a crash: a request that was answered is in a commit; one that was not may be, and is safe to repeat as the forward
protocol says.
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
from strandline.server import body
from strandline.server.body import Body, Form
from strandline.server.commit import Outcome
from strandline.server.idempotency import Key, Summed, app_of
from strandline.server.memory_cost import Weight
from strandline.server.queue import Claim, MemoryBudget, Result, TableQueue
from strandline.server.requests import Post, hidden_columns, posts_of
from strandline.server.table_growth import check_cuts, grown, growth_of, lacking, narrowed, widest
from strandline.sinks.forward import positions
from strandline.sinks.forward.message import ChunkHeader, Replay, Sender
from strandline.sinks.forward.protocol import CHUNK_HEADER, KEY_HEADER, REPLAY_HEADER, TOO_LARGE
from strandline.sinks.forward.refusal import Refusal, malformed, too_large
from strandline.table import Table

_CHECKERS = min(8, (os.cpu_count() or 1) + 2)
_COMMITTERS = 32
_UNFOLDED = 8
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What the server takes: of one request, and at once. `body_columns` counts the fields of columns as well;
    `table_columns` is how many a table may get by requests."""

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
        """What one body may take in memory, in all its forms together."""
        return min(_UNFOLDED * self.body_bytes, self.queue_bytes)


@dataclass(frozen=True)
class Head:
    """What a request says before its body."""

    form: Form
    chunk: ChunkHeader | None
    replay: Replay | None
    key: str | None
    length: int | None

    @property
    def sender(self) -> Sender | None:
        said = self.chunk or self.replay
        return None if said is None else said.sender

    @staticmethod
    def of(headers: Mapping[str, str]) -> Head:
        """The headers, checked; a chunk's positions say more than its `Idempotency-Key`, which is then left alone."""
        form = Form.of(headers.get("Content-Type"), headers.get("Content-Encoding"))
        said, again = headers.get(CHUNK_HEADER), headers.get(REPLAY_HEADER)
        if said is not None and again is not None:
            raise malformed(f"the request has both {CHUNK_HEADER} and {REPLAY_HEADER}; expected one of them")
        chunk = None if said is None else ChunkHeader.parse(said)
        key = headers.get(KEY_HEADER)
        if key is not None and not (1 <= len(key) <= 256 and key.isprintable()):
            raise malformed(f"the {KEY_HEADER} has {len(key)} characters; expected 1 to 256 that can be printed")
        length = headers.get("Content-Length")
        return Head(
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
        """Commit what waits; then nothing more is taken."""
        self._is_closed = True
        for queue in list(self._queues.values()):
            await queue.drained()
        self._checks.shutdown()
        self._commits.shutdown()

    async def ingest(self, name: str, headers: Mapping[str, str], stream: AsyncIterator[bytes]) -> Outcome:
        """Take a request for a table; what became of it, once that is durable."""
        if self._is_closed:
            raise Unavailable("the server is stopping", hint="Send it again in a moment.")
        head = Head.of(headers)
        with self._budget.claim(min(head.length or 0, self._limits.body_bytes)) as claim:
            self._arriving[name] += 1
            try:
                found = await self._checked(name, head, stream, claim)
            finally:
                self._arriving[name] -= 1
                if not self._arriving[name]:
                    del self._arriving[name]
            return found if isinstance(found, Outcome) else await self._committed(*found)

    async def positions(self, name: str, sink: str, life: int | None) -> tuple[int | None, list[list[int]]]:
        """How far a table has the changes of one life of a sink, and which life that is: the newest one without a
        number, None when it has nothing of the sink."""
        asked = Sender.of(sink, life or 0)

        def found() -> tuple[int | None, list[list[int]]]:
            txns = self._table(name).log.refresh().snapshot.txns
            if life is None:
                newest = txns.get(asked.life_app)
                return newest, [] if newest is None else positions.list_positions(txns, Sender(sink, newest))
            positions.check_life(asked, txns)
            return life, positions.list_positions(txns, asked)

        return await self._run(found)

    async def _checked(
        self, name: str, head: Head, stream: AsyncIterator[bytes], claim: Claim
    ) -> Outcome | tuple[Table, list[Post]]:
        most, length = self._limits.body_bytes, head.length or 0
        summed = Summed(stream, head.form.name)
        pieces = summed.pieces()
        data: bytearray | None = None
        try:
            body.check_length(length, most)
            data = await body.received(pieces, most=most, hold=lambda size: claim.hold(max(size, length)))
        except Refusal as refused:
            if refused.status != TOO_LARGE or not await self._run(lambda: self._is_known(name, head)):
                raise
            # A limit that was lowered since does not count for what is done.
            claim.hold(0)
            await body.passed(pieces)
        key = None if head.key is None else Key(head.key, summed.digest)
        return await self._run(lambda: self._check(name, head, key, data, claim))

    def _check(
        self, name: str, head: Head, key: Key | None, data: bytearray | None, claim: Claim
    ) -> Outcome | tuple[Table, list[Post]]:
        """The request's rows, ready for a commit; or its outcome when it is done already. Runs in a thread. `data` is
        None for a body that is too large to be held."""
        table = self._table(name)
        if done := self._done(table, head, key, data, claim):
            # What was taken once is not judged again by what the table, or this server, has become since.
            return done
        if data is None:
            raise too_large("the body is larger than this server takes")
        content = self._decoded(head, data, claim)
        if head.chunk is None and not content.count:
            return Outcome(0)
        try:
            posts = self._posts(content, table.definition, head, key)
            for post in posts:
                content.weight.add_longest(post.rows)
            return table, [replace(post, replay=head.replay) for post in posts]
        except Invalid as error:
            error.fields.setdefault("table", name)
            raise

    def _posts(self, content: Body, definition: TableDef, head: Head, key: Key | None) -> list[Post]:
        """The rows of a request, checked against the table as it will be when they are applied. It grows for a sink."""
        chunk = head.chunk
        hidden = hidden_columns(is_chunk=chunk is not None)
        if head.sender is None:
            return posts_of(content.rows(pa.schema([*hidden, *definition.schema])), definition, key=key)
        known = {*definition.schema.names, *(field.name for field in hidden)}
        try:
            rows = content.rows(pa.schema([*hidden, *widest(definition)]))
            if not content.is_typed:
                rows = narrowed(rows, definition)
            growth = growth_of(rows, definition, known, self._limits.table_columns)
            if growth is not None and not self._evolve:
                known -= set(growth.columns.names)
                growth = None
            if growth is not None:
                definition = grown(definition, growth)
                known.update(definition.schema.names)
            check_cuts(rows, definition)
            return posts_of(rows, definition, chunk=chunk, key=key, growth=growth)
        except Invalid as error:
            if error.fields.get("column", OP) not in known:
                raise lacking(error, definition) from error
            raise

    def _done(self, table: Table, head: Head, key: Key | None, data: bytearray | None, claim: Claim) -> Outcome | None:
        """What became of a request that is done already; None for one that is new."""
        txns = table.log.refresh().snapshot.txns
        if head.sender is not None:
            positions.check_life(head.sender, txns)
        seq = None if key is None else key.seq_in(txns)
        is_had = head.chunk is not None and positions.holds_chunk(head.chunk, txns)
        if seq is None and not is_had:
            return None
        try:
            count = None if data is None else self._decoded(head, data, claim).count
        except (Refusal, Invalid):
            count = None
        return Outcome(0, count) if seq is None else Outcome(count, seq=seq, is_repeated=True)

    def _is_known(self, name: str, head: Head) -> bool:
        """Whether a request is done already, as far as its head tells."""
        txns = self._table(name).log.refresh().snapshot.txns
        if head.sender is not None:
            positions.check_life(head.sender, txns)
        if head.chunk is not None:
            return positions.holds_chunk(head.chunk, txns)
        return head.key is not None and app_of(head.key) in txns

    def _decoded(self, head: Head, data: bytearray, claim: Claim) -> Body:
        limits = self._limits
        return body.decode(
            data, head.form, Weight(limits.weight_bytes, limits.body_rows, limits.body_columns, claim.hold)
        )

    def _table(self, name: str) -> Table:
        self._lake.catalog.refresh().get(name)
        return self._lake.table(name)

    async def _committed(self, table: Table, posts: Sequence[Post]) -> Outcome:
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
        return _together(await queue.put(posts))

    async def _run(self, act: Callable[[], T]) -> T:
        found = await asyncio.get_running_loop().run_in_executor(self._checks, _settled, act)
        if isinstance(found, Refusal | StrandlineError):
            raise found
        return found


def _settled(act: Callable[[], T]) -> T | Refusal | StrandlineError:
    """What became of a check. An error goes without its traceback, which would hold the body for as long."""
    try:
        return act()
    except (Refusal, StrandlineError) as error:
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)


def _together(results: Sequence[Result]) -> Outcome:
    """What became of one request whose posts took several commits; the first of them that failed speaks for it."""
    total = Outcome(0)
    for result in results:
        if not isinstance(result, Outcome):
            raise result
        seq = total.seq if result.seq is None else result.seq
        rows, skipped = (total.rows or 0) + (result.rows or 0), (total.skipped or 0) + (result.skipped or 0)
        total = Outcome(rows, skipped, seq, result.is_repeated)
    return total
