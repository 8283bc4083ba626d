"""The one place that makes a Spark session.

It starts lazily, about ten seconds after the first call that needs it, and never for work that the driver does
itself. A caller's own session (classic or Connect) is used as it is. The package's code travels to the executors
with the session, so it need not be installed there; pyarrow must be.
"""

from __future__ import annotations

import atexit
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from strandline.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JAVA = 17
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Arrow batches bounded by bytes: unbounded ones of wide rows took over a gigabyte a worker.
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
    # Above this many paths a read starts a listing job; the paths are known from the commit already.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.io.compression.codec": "zstd",
    "spark.sql.shuffle.partitions": "8",
}
_starting = threading.Lock()


def session(given: SparkSession | None = None) -> SparkSession:
    """`given`, else the session that runs in this process, else a new one (`STRANDLINE_SPARK` names its master)."""
    with _starting:
        spark = given or _running() or _start()
        _ship(spark)
        return spark


def _running() -> SparkSession | None:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _start() -> SparkSession:
    check_java()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("strandline")
    master = os.environ.get("STRANDLINE_SPARK", "local[*]")
    if master.startswith("sc://"):
        return builder.remote(master).getOrCreate()
    builder = builder.master(master)
    if master.startswith("local"):
        # Workers run this interpreter, not whichever comes first on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.driver.memory", os.environ.get("STRANDLINE_SPARK_MEMORY", "4g"))
        quiet = resources.files("strandline") / "log4j2.properties"
        builder = builder.config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{quiet}")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def check_java() -> None:
    """`Unavailable`, with the command to type, unless a Java that Spark runs on is there."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    hint = "Install it: apt-get install openjdk-17-jre-headless (Debian, Ubuntu) or brew install openjdk@17 (macOS)."
    if not java or not os.path.exists(java):
        raise Unavailable(f"Spark needs Java {JAVA} or newer, and no java was found", hint=hint)
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if found and int(found.group(1)) < JAVA:
        raise Unavailable(f"Spark needs Java {JAVA} or newer; {java} is version {found.group(1)}", hint=hint)


def is_running() -> bool:
    """Whether this process has started a JVM."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None


def run_lane(frame: DataFrame, lane: Callable[[Iterator[Any]], Iterator[Any]], schema: str) -> DataFrame:
    """The DataFrame of what `lane` makes of each partition's Arrow batches."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        return lane(batches)

    return frame.mapInArrow(run, schema)


def _ship(spark: SparkSession) -> None:
    if not getattr(spark, "_strandline_shipped", False):
        spark.addArtifacts(_package_file(), pyfile=True)
        spark._strandline_shipped = True


@cache
def _package_file() -> str:
    """This package as a zip file, which executors may fetch at any time until the process ends."""
    folder = tempfile.mkdtemp(prefix="strandline-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "strandline.zip")
    with open(path, "wb") as file:
        file.write(_package())
    return path


def _package() -> bytes:
    """This package's Python files as a zip."""
    root = resources.files("strandline")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, resources.as_file(root) as folder:
        for path in sorted(folder.rglob("*.py")):
            archive.write(path, os.path.join("strandline", path.relative_to(folder)))
    return buffer.getvalue()
