"""Fixtures for every test. One Spark session and one S3 server serve the whole run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings

import strandline as sl
from support import BUCKET, ITEMS, options_for, python, seaweedfs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ.setdefault("STRANDLINE_SPARK", "local[2]")
# A test's jobs are short: the JVM's second compiler and its parallel collectors cost them more than they save.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# A shell's background job starts with Ctrl-C ignored, and so would every child of a test.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("STRANDLINE_SPARK_MEMORY", "1g")
# Test processes that run side by side get the width of a terminal. The command line's output in tests has none.
os.environ.pop("COLUMNS", None)

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
    from strandline.engines.spark import session

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


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a real PostgreSQL server, reached through a socket in a folder of its own."""
    import psycopg

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says which folder it takes when the desktop names none
        import pgserver

    folder = tempfile.mkdtemp(prefix="strandline-postgres-")
    server = pgserver.get_server(folder, cleanup_mode="stop")
    try:
        url = server.get_uri()
        with psycopg.connect(url, autocommit=True) as connection:
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                connection.execute(f"ALTER SYSTEM SET {setting} = off")
            connection.execute("SELECT pg_reload_conf()")
        yield url
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres: str) -> str:
    """The URL of a schema of this test's own."""
    return _new_schema(postgres)


@pytest.fixture(params=["sqlite", "postgresql"])
def new_state_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Names an empty state database, another one at each call; the test runs for each kind of database."""
    if request.param == "sqlite":
        return lambda: f"sqlite:///{tmp_path / uuid.uuid4().hex}.db"
    server: str = request.getfixturevalue("postgres")
    return lambda: _new_schema(server)


@pytest.fixture
def state_url(new_state_url: Callable[[], str]) -> str:
    """The URL of one empty state database."""
    return new_state_url()


def _new_schema(server: str) -> str:
    import psycopg

    schema = f"t{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return f"{server}&options=-csearch_path%3D{schema}"


FORKS = """
import json, os, sys, traceback
source, count, *arguments = sys.argv[1:]
names = {}
exec(source, names)
gate, held = os.pipe()
children = []
for number in range(int(count)):
    out, into = os.pipe()
    child = os.fork()
    if not child:
        os.close(held)
        os.read(gate, 1)  # until the last one is there
        try:
            os.write(into, json.dumps(names["work"](number, *arguments)).encode())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(into)
    children.append((child, out))
os.close(held)
answers = []
for child, out in children:
    answer = os.fdopen(out).read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    answers.append((code, json.loads(answer) if answer else None))
print(json.dumps(answers))
"""


@pytest.fixture
def in_processes() -> Callable[..., list[tuple[int, Any]]]:
    """Runs `work(number, *arguments)` of a source in so many processes that begin at once; each one's exit code and
    answer. They are forks of one process of their own, which is quicker than to start each."""

    def run(source: str, count: int, *arguments: str, is_sound: bool = True) -> list[tuple[int, Any]]:
        ended = python(FORKS, source, str(count), *arguments)
        assert ended.returncode == 0, ended.stderr
        answers = [(code, answer) for code, answer in json.loads(ended.stdout)]
        assert not is_sound or {code for code, _ in answers} == {0}, ended.stderr
        return answers

    return run


@pytest.fixture
def make_table(lake: sl.Lake) -> Callable[..., sl.Table]:
    """Creates tables under names of their own."""
    names = (f"t{number}" for number in range(10_000))

    def create(schema: pa.Schema = ITEMS, **options: object) -> sl.Table:
        return lake.create_table(next(names), schema, **options)

    return create
