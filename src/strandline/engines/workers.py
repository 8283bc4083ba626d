"""The Python that runs Spark's tasks: looked at once per session, before the first job that needs it.

PySpark takes `python3` from the path of the workers, which may be another Python than this process has, or one without
the packages that tasks need. Such a task would end in a `ModuleNotFoundError`. The look is a small job that needs no
package. A local session whose workers run this process's Python needs no look.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.storage.open import Storage

NEEDED = ("numpy", "pyarrow")
"""The packages that every task needs."""
DUCKDB = "duckdb"
"""The package that tasks need to fold, to read files of other people, and for `format("strandline")`."""
OBJECT_STORE = "obstore"
"""The package that tasks need for files in an object store."""
_LEAST_ARROW = 25
_VERSION = re.compile(r"Python in worker has different version:? '?([\d.]+)'? than that in driver:? '?([\d.]+)")
_looking = threading.Lock()


@dataclass(frozen=True)
class WorkerPython:
    """The Python of a worker: its path, its version as in `3.12`, and the versions of the packages it has."""

    path: str
    version: str
    packages: Mapping[str, str]


def packages_for(stores: Iterable[Storage]) -> Collection[str]:
    """The packages that tasks need to read and write these stores."""
    return () if all(store.is_local for store in stores) else (OBJECT_STORE,)


def check_workers(spark: SparkSession, packages: Collection[str] = ()) -> None:
    """`Unavailable`, with what to set, unless the session's workers can run tasks that need these packages too."""
    with _looking:
        found = getattr(spark, "_strandline_workers", None)
        if found is None:
            found = spark._strandline_workers = _find_python(spark)
    if isinstance(found, Unavailable):
        raise found
    if not isinstance(found, WorkerPython):
        return
    fault = _find_fault(found, packages)
    if fault is not None:
        raise _python_error(f"Spark's workers run {found.path} (Python {found.version}), {fault}")


def _find_python(spark: SparkSession) -> WorkerPython | Unavailable | str:
    """The workers' Python; the path alone when it is that of this process; the error when no task can run."""
    mine = _same_python(spark)
    if mine is not None:
        return mine
    from pyspark.sql import functions as F

    look = F.udf(_make_look((*NEEDED, DUCKDB, OBJECT_STORE)), "string", useArrow=False)
    try:
        (row,) = spark.range(1).select(look("id").alias("found")).collect()
    except Exception as error:
        explained = _explain_failure(str(error))
        if explained is None:
            raise
        return _python_error(explained)
    return WorkerPython(**json.loads(row["found"]))


def _same_python(spark: SparkSession) -> str | None:
    """The path of this process's Python when the tasks of a local session run it, too."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return None
    context = spark.sparkContext
    path = shutil.which(context.pythonExec) if context.master.startswith("local") else None
    return path if path is not None and os.path.abspath(path) == os.path.abspath(sys.executable) else None


def _make_look(packages: Collection[str]) -> Callable[[Any], str]:
    def look(_: Any) -> str:
        """Runs in a worker. A function inside of a function travels with its code, so the worker imports nothing."""
        import importlib
        import json
        import sys

        found = {}
        for name in packages:
            try:
                found[name] = str(getattr(importlib.import_module(name), "__version__", ""))
            except Exception:
                continue
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return json.dumps({"path": sys.executable, "version": version, "packages": found})

    return look


def _find_fault(python: WorkerPython, packages: Collection[str]) -> str | None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python.version != here:
        return f"and this process runs Python {here}; both need the same version"
    missing = [name for name in (*NEEDED, *packages) if name not in python.packages]
    if missing:
        return f"which lacks {' and '.join(missing)}"
    arrow = python.packages["pyarrow"]
    if int(arrow.partition(".")[0] or 0) < _LEAST_ARROW:
        return f"whose pyarrow is {arrow}; tasks need {_LEAST_ARROW} or newer"
    return None


def _explain_failure(said: str) -> str | None:
    """Why no task could run, when it is the fault of the workers' Python."""
    versions = _VERSION.search(said)
    if versions is not None:
        worker, driver = versions.groups()
        return f"Spark's workers run Python {worker}, and this process runs Python {driver}; both need the same version"
    program = re.search(r'Cannot run program "([^"]+)"', said)
    return None if program is None else f"Spark's workers cannot run {program.group(1)}"


def _python_error(message: str) -> Unavailable:
    setting = f"PYSPARK_PYTHON={shlex.quote(sys.executable)}"
    return Unavailable(
        message,
        hint=f"Set the workers' Python before the session starts: {setting}\n"
        "On a cluster, ship an environment with pyarrow (venv-pack or conda-pack): spark.archives=env.tar.gz#env and"
        " PYSPARK_PYTHON=./env/bin/python. See docs/spark.md",
    )
