"""Fixtures for the suites that every sink passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import strandline as sl
from destinations import FAR, MIRRORS, NEAR, Destination, Servers
from support import ITEMS


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """What places share; a server starts when the first test needs it."""
    started = Servers(tmp_path_factory.mktemp("servers"), lambda: request.getfixturevalue("seaweed"))
    yield started
    started.close()


@pytest.fixture
def place_of(servers: Servers, tmp_path: Path) -> Iterator[Callable[[str], Destination]]:
    """Makes an empty place of a kind."""
    yield lambda kind: (NEAR | FAR | MIRRORS)[kind](servers, tmp_path)
    servers.close_gates()


@pytest.fixture(params=[*NEAR, *FAR])
def there(request: pytest.FixtureRequest, place_of: Callable[[str], Destination]) -> Destination:
    """An empty place of each kind."""
    return place_of(request.param)


@pytest.fixture(params=[*NEAR, *FAR, *MIRRORS])
def anywhere(request: pytest.FixtureRequest, place_of: Callable[[str], Destination]) -> Destination:
    """An empty place of each kind, mirrors too: for what does not depend on changes."""
    return place_of(request.param)


@pytest.fixture(params=["delta-mirror", "iceberg-mirror"])
def mirror(request: pytest.FixtureRequest, place_of: Callable[[str], Destination]) -> Destination:
    """An empty place that mirrors the table."""
    return place_of(request.param)


@pytest.fixture(params=list(NEAR))
def near(request: pytest.FixtureRequest, place_of: Callable[[str], Destination]) -> Destination:
    """An empty place of each kind but those on S3, which are slower: for what does not depend on where files lie."""
    return place_of(request.param)


@pytest.fixture
def items(lake: sl.Lake) -> sl.Table:
    """An empty keyed table, which is folded only when a test says so."""
    return lake.create_table("items", ITEMS, key=["id"], vnodes=4, compact_ratio=1e9, compact_age="1000d")
