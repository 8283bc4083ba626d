"""The Python of Spark's workers is looked at before a task needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from strandline.engines import workers
from strandline.engines.workers import NEEDED, OBJECT_STORE, WorkerPython, check_workers
from strandline.errors import Unavailable
from support import one_connect_server, python, refused

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
GOOD = {"pyarrow": "25.0.0", "numpy": "2.3.0", "obstore": "0.12"}


class Session:
    """A session whose workers are known."""

    def __init__(self, python: Any) -> None:
        self._strandline_workers = python


def test_a_python_with_everything_is_fine() -> None:
    check_workers(Session(WorkerPython("/usr/bin/python3", HERE, GOOD)), (OBJECT_STORE,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "packages", "said"),
    [
        ("3.9", GOOD, "both need the same version"),
        (HERE, {}, "lacks numpy and pyarrow"),
        (HERE, {"pyarrow": "25.0.0", "numpy": "2"}, "lacks obstore"),
        (HERE, {**GOOD, "pyarrow": "14.0.2"}, "pyarrow is 14.0.2"),
    ],
)
def test_another_python_is_refused_with_what_to_set(version: str, packages: dict[str, str], said: str) -> None:
    session: Any = Session(WorkerPython("/usr/bin/python3", version, packages))
    with refused(Unavailable) as caught:
        check_workers(session, (OBJECT_STORE,))
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
