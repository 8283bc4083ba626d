"""The Python of Spark's workers is looked at before a task needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from strandline.engines import workers
from strandline.engines.workers import DUCKDB, NEEDED, OBJECT_STORE, WorkerPython, check_workers
from strandline.errors import Unavailable
from strandline.spark_source import register
from support import ITEMS, no_job, one_connect_server, options_for, python, refused

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
GOOD = {"pyarrow": "25.0.0", "numpy": "2.3.0", "duckdb": "1.5", "obstore": "0.12"}


class Session:
    """A session whose workers are known."""

    def __init__(self, python: Any) -> None:
        self._strandline_workers = python


def test_a_python_with_everything_is_fine() -> None:
    check_workers(Session(WorkerPython("/usr/bin/python3", HERE, GOOD)), (DUCKDB, OBJECT_STORE))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "packages", "said"),
    [
        ("3.9", GOOD, "both need the same version"),
        (HERE, {}, "lacks numpy and pyarrow"),
        (HERE, {"pyarrow": "25.0.0", "numpy": "2", "duckdb": "1.5"}, "lacks obstore"),
        (HERE, {"pyarrow": "25.0.0", "numpy": "2", "obstore": "0.12"}, "lacks duckdb"),
        (HERE, {**GOOD, "pyarrow": "14.0.2"}, "pyarrow is 14.0.2"),
    ],
)
def test_another_python_is_refused_with_what_to_set(version: str, packages: dict[str, str], said: str) -> None:
    session: Any = Session(WorkerPython("/usr/bin/python3", version, packages))
    with refused(Unavailable) as caught:
        check_workers(session, (DUCKDB, OBJECT_STORE))
    assert said in caught.value.message and "/usr/bin/python3" in caught.value.message
    assert f"PYSPARK_PYTHON={sys.executable}" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("said", "explained"),
    [
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11, PySpark",
            "Spark's workers run Python 3.9, and this process runs Python 3.11",
        ),
        ('java.io.IOException: Cannot run program "python9": error=2', "Spark's workers cannot run python9"),
    ],
)
def test_a_look_that_fails_is_explained(said: str, explained: str) -> None:
    found = workers._explain_failure(said)
    assert found is not None and found.startswith(explained)
    assert workers._explain_failure("the cluster has no cores") is None


def test_the_look_finds_this_python_and_its_packages() -> None:
    found = WorkerPython(**json.loads(workers._make_look((*NEEDED, "no_such_package"))(0)))
    assert (found.path, found.version) == (sys.executable, HERE)
    assert set(found.packages) == set(NEEDED)


def test_our_own_local_session_needs_no_look(spark: Any) -> None:
    started_s = time.monotonic()
    check_workers(spark)
    assert time.monotonic() - started_s < 0.5
    assert spark._strandline_workers == workers._same_python(spark)


@pytest.fixture
def lacking(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Say that the workers' Python lacks a package."""

    def lack(package: str) -> None:
        packages = {name: version for name, version in GOOD.items() if name != package}
        monkeypatch.setattr(spark, "_strandline_workers", WorkerPython("/usr/bin/python3", HERE, packages))

    return lack


def test_tasks_that_need_duckdb_say_so_before_they_run(
    spark: Any, items: Any, lake: Any, tmp_path: Path, lacking: Callable[[str], None]
) -> None:
    lacking("duckdb")
    items.upsert(spark.range(9))
    assert items.to_spark().count() == 9, "neither writes nor reads need it"
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n')
    needs: list[Callable[[], Any]] = [
        lambda: items.compact(full=True, engine="spark"),
        lambda: lake.ingest("items", tmp_path / "a.jsonl", missing="null", engine="spark"),
        lambda: lake.ingest("others", tmp_path / "a.jsonl", key=[], engine="spark"),
        lambda: register(spark),
    ]
    for need in needs:
        with no_job(spark), refused(Unavailable) as caught:
            need()
        assert "which lacks duckdb" in caught.value.message
    assert items.head == 1


def test_tasks_that_need_an_object_store_say_so_before_they_run(
    spark: Any,
    s3_lake: Any,
    seaweed: str,
    lake: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lacking: Callable[[str], None],
) -> None:
    settings = options_for(seaweed)
    monkeypatch.setenv("AWS_ENDPOINT_URL", settings.pop("endpoint"))
    for name, value in settings.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    remote = s3_lake()
    table = remote.create_table("items", ITEMS, key=["id"])
    table.upsert([{"id": 1, "name": "a"}])
    local = lake.create_table("items", ITEMS, key=["id"], cluster_by=["name"])
    local.upsert([{"id": 1, "name": "a"}])
    with remote.storage.output("inbox/a.jsonl") as stream:
        stream.write(b'{"id": 1}\n')
    lacking("obstore")
    needs: list[Callable[[], Any]] = [
        lambda: table.upsert(spark.range(9), missing="null"),
        table.to_spark,
        lambda: table.compact(full=True, engine="spark"),
        lambda: table.export(tmp_path / "out", engine="spark"),
        lambda: local.export(remote.storage.url("out"), options=options_for(seaweed), engine="spark"),
        lambda: lake.ingest("items", remote.storage.url("inbox"), missing="null", engine="spark"),
    ]
    for need in needs:
        with no_job(spark), refused(Unavailable) as caught:
            need()
        assert "which lacks obstore" in caught.value.message
    assert (table.head, local.head) == (1, 1)


CODE = """
import sys, time
from pyspark.sql import SparkSession
import strandline as sl
if sys.argv[2] == "connect":
    builder = SparkSession.builder.remote("local[1]")
else:
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.getOrCreate()
table = sl.Lake(sys.argv[1], spark=spark).create_table("items", "id:int64", key=["id"])
for _ in range(2):
    started_s = time.monotonic()
    try:
        table.upsert(spark.range(3))
    except sl.StrandlineError as error:
        print(error.kind, error, sep="|")
    print("seconds", time.monotonic() - started_s)
print(table.head)
"""


@pytest.mark.parametrize("session", ["classic", "connect"])
def test_a_second_python_without_packages_is_named_before_any_job(tmp_path: Path, session: str) -> None:
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other)], check=True)
    program = str(other / "bin" / "python")
    with one_connect_server() if session == "connect" else nullcontext():
        done = python(
            CODE, str(tmp_path / "lake"), session, timeout_s=240, PYSPARK_PYTHON=program, PYTHONPATH=_clean_path()
        )
    assert done.returncode == 0, done.stderr[-3000:]
    said = [line for line in done.stdout.splitlines() if line.startswith("Unavailable|")]
    assert len(said) == 2 and len(set(said)) == 1
    assert f"{program} (Python {HERE}), which lacks numpy and pyarrow" in said[0]
    assert f"PYSPARK_PYTHON={sys.executable}" in done.stdout
    assert done.stdout.splitlines()[-1] == "0"


def _clean_path() -> str:
    """The path of our own package alone."""
    return str(Path(workers.__file__).parents[2]) + os.pathsep
