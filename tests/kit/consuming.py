"""A state with one consumer that works: what the tests of consumers, marks and epoch begin with.

A test module takes the fixtures that it needs by assignment, as in `registry = consuming.registry`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pytest

from strandline.state.consumers import ConsumerRecord, Registration, Registry, preview
from strandline.state.database import Database
from strandline.state.intents import Intent, IntentDraft
from strandline.state.leases import Leases
from strandline.state.marks import Marks, begin_intent

FACTS: dict[str, Any] = {
    "kind": "sink",
    "table": "t",
    "table_generation": "g1",
    "destination": "s3://a",
    "definition": {"where": "x"},
}


@pytest.fixture
def state(state_url: str) -> Iterator[Database]:
    with Database(state_url, timeout_s=20) as opened:
        yield opened


@pytest.fixture
def registry(state: Database) -> Registry:
    return Registry(state)


@pytest.fixture
def marks(state: Database) -> Marks:
    return Marks(state)


@pytest.fixture
def leases(state: Database) -> Leases:
    return Leases(state)


@pytest.fixture
def consumer(registry: Registry) -> ConsumerRecord:
    return registry.register("a", **FACTS).consumer


@pytest.fixture
def fence(leases: Leases, consumer: ConsumerRecord) -> int:
    return leases.acquire(consumer.lease, "me", 600).fence


def open_intent(
    marks: Marks,
    consumer: ConsumerRecord,
    fence: int,
    *,
    lane: str = "0",
    vnodes: Collection[int] = (0, 1),
    after: int = 0,
    upto: int = 5,
    cuts: Any = None,
) -> Intent:
    draft = IntentDraft(lane, vnodes, after, upto, 0, cuts)
    with marks._state.transaction() as connection:
        return begin_intent(connection, consumer, draft, fence)


def foresee(registry: Registry, marks: Marks, name: str, **told: Any) -> Registration:
    """What is foreseen for the consumer that the state has now."""
    found = next((each for each in registry.all() if each.name == name), None)
    under_way = [] if found is None else marks.intents(found)
    return preview(name, found=found, under_way=under_way, **told)
