"""Requests that wait for their commit: as many as fit into memory, and one commit at a time for each table.

While a commit of a table runs, other requests wait, and the next commit takes them all. So under load many requests
share a commit. A request is answered when its commit is durable.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from types import TracebackType

from strandline.crash import crash_point
from strandline.errors import StrandlineError
from strandline.server.commit import Outcome, commit_posts
from strandline.server.requests import Post
from strandline.sinks.forward.refusal import Failure, Refusal, busy, too_large
from strandline.tables.log import Log

Result = Outcome | Failure
COMMIT_BYTES = 128 << 20
_LOOK_S = 0.001


@dataclass
class MemoryBudget:
    """The memory for all requests of the server, from their first byte to their answer. Threads share it."""

    most_bytes: int
    most_requests: int
    bytes: int = 0
    requests: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def claim(self, size: int) -> Claim:
        """A claim for a request of `size` bytes; 429 when there is no room."""
        if self.requests >= self.most_requests:
            raise busy(f"{self.requests} requests are running; this server takes no more at once")
        claim = Claim(self)
        claim.hold(size)
        return claim


@dataclass
class Claim:
    """The memory of one request, while its block runs."""

    budget: MemoryBudget
    size: int = 0

    def hold(self, size: int) -> None:
        """Hold `size` bytes from now on; 429 when other requests leave no room."""
        budget = self.budget
        with budget.lock:
            others = budget.bytes - self.size
            if size > self.size and others + size > budget.most_bytes:
                if size > budget.most_bytes:
                    raise too_large(f"the request takes {size} bytes in memory; the limit is {budget.most_bytes}")
                raise busy(f"running requests hold {budget.bytes} bytes; the limit is {budget.most_bytes}")
            budget.bytes, self.size = others + size, size

    def __enter__(self) -> Claim:
        with self.budget.lock:
            self.budget.requests += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.budget.lock:
            self.budget.requests -= 1
            self.budget.bytes -= self.size


@dataclass
class TableQueue:
    """The posts that wait for a commit of one table. Only the event loop uses it; commits run in `commits`.

    `arriving` is the number of requests for the table that are still being received. A commit waits a moment for
    them, or when the commit before had more posts. A single client never waits."""

    log: Log
    commits: Executor
    arriving: Callable[[], int]
    commit_rows: int
    linger_s: float
    _waiting: deque[tuple[Post, asyncio.Future[Result]]] = field(default_factory=deque)
    _work: asyncio.Task[None] | None = None
    _last_posts: int = 1

    async def put(self, posts: Sequence[Post]) -> list[Result]:
        """Commit these posts in order; the outcome of each, when all are done."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Result]] = [loop.create_future() for _ in posts]
        self._waiting.extend(zip(posts, futures, strict=True))
        crash_point("receiver.queued")
        if self._work is None or self._work.done():
            self._work = loop.create_task(self._commit_all())
        return list(await asyncio.gather(*futures))

    async def drain(self) -> None:
        """Wait until no post waits."""
        if self._work is not None:
            await self._work

    async def _commit_all(self) -> None:
        while self._waiting:
            await self._linger()
            group = self._take_group()
            results: Sequence[Result | Exception]
            try:
                results = await asyncio.get_running_loop().run_in_executor(
                    self.commits, commit_posts, self.log, [post for post, _ in group]
                )
            except Exception as error:
                results = [error] * len(group)
            for (_, future), result in zip(group, results, strict=False):
                if not future.done():
                    _set_outcome(future, result)
            self._waiting.extendleft(reversed(group[len(results) :]))

    async def _linger(self) -> None:
        """Wait a moment: clients that were answered together send their next requests at nearly the same time."""
        until_s = time.monotonic() + self.linger_s
        while (self.arriving() or len(self._waiting) < self._last_posts) and time.monotonic() < until_s:
            await asyncio.sleep(_LOOK_S)

    def _take_group(self) -> list[tuple[Post, asyncio.Future[Result]]]:
        group = [self._waiting.popleft()]
        rows, size = group[0][0].rows.num_rows, group[0][0].rows.nbytes
        while self._waiting:
            post = self._waiting[0][0]
            rows, size = rows + post.rows.num_rows, size + post.rows.nbytes
            if rows > self.commit_rows or size > COMMIT_BYTES:
                break
            group.append(self._waiting.popleft())
        self._last_posts = len(group)
        return group


def _set_outcome(future: asyncio.Future[Result], result: Result | Exception) -> None:
    if isinstance(result, Outcome | StrandlineError | Refusal):
        future.set_result(result)
    else:
        future.set_exception(result)
