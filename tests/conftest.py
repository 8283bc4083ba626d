"""Fixtures for every test. One Spark session and one S3 server serve the whole run."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings

import strandline as sl
from support import BUCKET, ITEMS, options_for, seaweedfs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ.setdefault("STRANDLINE_SPARK", "local[2]")
os.environ.setdefault("STRANDLINE_SPARK_MEMORY", "1g")

settings.register_profile(
    "suite",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
settings.load_profile("suite")


def _has_jvm() -> bool:
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._gateway is not None


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session, as the product makes it."""
    from strandline.spark import session

    started = session()
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def _no_spark_unless_asked(request: pytest.FixtureRequest) -> Iterator[None]:
    had = _has_jvm()
    yield
    if not had and "spark" not in request.fixturenames:
        assert not _has_jvm(), "this test started Spark: it must use the fixture 'spark'"


@pytest.fixture
def lake(tmp_path: Path) -> sl.Lake:
    return sl.Lake(tmp_path / "lake")


@pytest.fixture
def items(lake: sl.Lake) -> sl.Table:
    """An empty keyed table."""
    return lake.create_table("items", ITEMS, key=["id"], vnodes=4)


@pytest.fixture(scope="session")
def seaweed() -> Iterator[str]:
    """The address of a real S3 server."""
    with seaweedfs() as endpoint:
        yield endpoint


@pytest.fixture
def s3_lake(seaweed: str) -> Callable[..., sl.Lake]:
    """Opens a lake of this test's own on the S3 server, as often as asked."""
    prefix = uuid.uuid4().hex

    def open_lake(endpoint: str = seaweed, **options: object) -> sl.Lake:
        return sl.Lake(f"s3://{BUCKET}/{prefix}", storage_options=options_for(endpoint), **options)

    return open_lake


@pytest.fixture
def make_table(lake: sl.Lake) -> Callable[..., sl.Table]:
    """Creates tables under names of their own."""
    names = (f"t{number}" for number in range(10_000))

    def create(schema: pa.Schema = ITEMS, **options: object) -> sl.Table:
        return lake.create_table(next(names), schema, **options)

    return create
