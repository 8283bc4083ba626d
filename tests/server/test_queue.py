"""Requests that wait for their commit: as many as fit, and a commit at a time."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from strandline.server.queue import MemoryBudget, TableQueue
from strandline.server.requests import make_posts
from strandline.sinks.forward.refusal import Refusal


def test_a_full_budget_refuses_what_is_new_and_takes_it_later():
    budget = MemoryBudget(100, 2)
    with budget.claim(60) as first:
        for size, status in ((41, 429), (100, 429), (101, 413)):
            with pytest.raises(Refusal) as caught:
                budget.claim(size)
            assert caught.value.status == status
        with budget.claim(40) as second:
            with pytest.raises(Refusal):
                budget.claim(0)
            with pytest.raises(Refusal):
                second.hold(41)
            first.hold(10)
            second.hold(90)
    assert (budget.bytes, budget.requests) == (0, 0)
    with budget.claim(0) as alone:
        alone.hold(100)
        with pytest.raises(Refusal) as caught:
            alone.hold(101)  # not even the only one may pass the whole budget
        assert (caught.value.status, budget.bytes) == (413, 100)


def posts_for(table, *ids):
    return make_posts(pa.table({"id": list(ids)}), table.definition)


def run_queue(table, act, **options):
    async def run():
        with ThreadPoolExecutor(1) as commits:
            facts = {"arriving": lambda: 0, "commit_rows": 100, "linger_s": 0.0, **options}
            queue = TableQueue(table.log, commits, **facts)
            found = await act(queue)
            await queue.drain()
            return found

    return asyncio.run(run())


def test_posts_that_wait_together_share_a_commit(items):
    async def act(queue):
        first = asyncio.ensure_future(queue.put(posts_for(items, 1)))
        second = asyncio.ensure_future(queue.put([*posts_for(items, 2), *posts_for(items, 3)]))
        return [*await first, *await second]

    assert [each.seq for each in run_queue(items, act)] == [1, 1, 1]
    assert items.to_arrow().num_rows == 3


def test_a_commit_ends_before_the_post_that_would_pass_its_rows(items):
    async def act(queue):
        return await queue.put([post for at in range(0, 6, 2) for post in posts_for(items, at, at + 1)])

    assert [each.seq for each in run_queue(items, act, commit_rows=4)] == [1, 1, 2]


def test_a_commit_waits_a_moment_for_requests_that_arrive(items):
    async def act(queue):
        first = asyncio.ensure_future(queue.put(posts_for(items, 1)))
        await asyncio.sleep(0.02)
        arriving.clear()
        return [*await queue.put(posts_for(items, 2)), *await first]

    arriving = [1]
    assert {each.seq for each in run_queue(items, act, arriving=lambda: len(arriving), linger_s=20.0)} == {1}


def test_a_fault_that_nobody_foresaw_reaches_every_post_of_its_commit(items, monkeypatch):
    async def act(queue):
        found = await asyncio.gather(queue.put(posts_for(items, 1)), return_exceptions=True)
        monkeypatch.undo()
        return [*found, *await queue.put(posts_for(items, 2))]

    monkeypatch.setattr("strandline.server.queue.commit_posts", lambda log, posts: 1 / 0)
    fault, outcome = run_queue(items, act)
    assert isinstance(fault, ZeroDivisionError) and outcome.seq == 1
