"""The one place that makes a Spark session.

The first call that needs it starts it, which takes about ten seconds; work that the driver does itself never does. A
caller's own session (classic or Connect) is used as it is. The package's code is sent to the executors, so it need not
be installed there; pyarrow must be, and duckdb for folds.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from strandline.engines.background import run_beside
from strandline.engines.spark_settings import SETTINGS, is_connect, small_batches
from strandline.engines.workers import check_workers, packages_for
from strandline.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.storage.open import Storage

JAVA = 17
Lane = Callable[[Iterator[Any]], Iterator[Any]]
OnProgress = Callable[[int, int], None]
_REMOTE_TASKS = 8
TASK_BYTES = 1 << 30
_SMALL_TASK_BYTES = 64 << 20
_MOST_TASKS = 1024
# The stages of a job that shuffles once; Spark itself does not know their number at first.
_STAGES = 3
_SHARES = 1000
_KILLED_S = 2.5
_DESCRIPTION = "spark.job.description"
_starting = threading.Lock()


def session(given: SparkSession | None = None) -> SparkSession:
    """`given`, else the session that runs in this process, else a new one (`STRANDLINE_SPARK` names its master)."""
    with _starting:
        spark = given or _active_session() or _start()
        _ship_package(spark)
        return spark


def _active_session() -> SparkSession | None:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _start() -> SparkSession:
    check_java()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("strandline")
    master = _master()
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
    on_interrupt = signal.getsignal(signal.SIGINT)
    spark = builder.getOrCreate()
    if threading.current_thread() is threading.main_thread():
        # PySpark's own handler calls the JVM inside of another call; `running_job` ends the tasks in order.
        signal.signal(signal.SIGINT, on_interrupt)
    logging.getLogger().addFilter(_is_worth_logging)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """False for the message that a call of the JVM was interrupted: its caller gets the exception."""
    return "while sending command" not in record.getMessage()


def check_java() -> None:
    """`Unavailable`, with the command to type, without a Java that Spark runs on."""
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


def can_run(given: SparkSession | None = None) -> bool:
    """Whether there is a session, or one could be started."""
    try:
        if given is None and _active_session() is None and not _master().startswith("sc://"):
            check_java()
    except Unavailable:
        return False
    return True


def is_local(given: SparkSession | None = None) -> bool:
    """Whether the tasks of the session, or of the one that would be started, run on this machine."""
    spark = given or _active_session()
    master = _master() if spark is None else str(spark.conf.get("spark.master", ""))
    return master.startswith("local")


def _master() -> str:
    return os.environ.get("STRANDLINE_SPARK", "local[*]")


def run_lane(
    frame: DataFrame,
    lane: Lane,
    schema: str,
    *,
    stores: Iterable[Storage] = (),
    packages: Collection[str] = (),
) -> DataFrame:
    """The DataFrame of the batches that `lane` returns for each partition. Its tasks read and write `stores`, beside
    the lane's own `storage`, and need `packages`: the workers' Python is looked at first."""
    names = frame.columns
    own = getattr(lane, "storage", None)
    look_at_workers(frame.sparkSession, (*packages, *packages_for([*stores, *([] if own is None else [own])])))

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        return lane(batch.rename_columns(names) for batch in batches)

    # The name of the operator in a plan.
    run.__name__ = getattr(lane, "__name__", type(lane).__name__)
    # Spark looks the columns up by their names, where a dot leads into a struct and a backtick is a fault.
    return frame.toDF(*[f"c{at}" for at in range(len(names))]).mapInArrow(run, schema)


def parts_frame(spark: SparkSession, parts: Sequence[bytes]) -> DataFrame:
    """What tasks need that read files by themselves (`part`): one part for each task."""
    rows = list(enumerate(parts))
    return spark.createDataFrame(rows, "at int, part binary").repartitionById(len(rows), "at").select("part")


def look_at_workers(spark: SparkSession, packages: Collection[str]) -> None:
    """`Unavailable`, with what to set, unless the Python of the workers has what tasks need and these packages."""
    with named_jobs(spark, "look at the Python of the workers"):
        check_workers(spark, packages)


def collect(frame: DataFrame, name: str | None = None) -> list[Any]:
    """The rows of a job of ours; outside of a `running_job`, `name` says what it does. `Unavailable` when Spark has no
    disk space left, or when its workers lack a package."""
    try:
        with named_jobs(frame.sparkSession, name) if name else nullcontext():
            rows: list[Any] = frame.collect()
        return rows
    except Exception as error:
        lacking = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", str(error))
        if lacking is not None:
            raise Unavailable(
                f"the Python of Spark's workers has no package {lacking.group(1)!r}",
                hint="Install strandline's requirements there, or name a Python that has them: PYSPARK_PYTHON=/path",
            ) from error
        said = re.search(rf"(/[^\s()]*)?[ (]*{os.strerror(errno.ENOSPC)}", str(error))
        if said is None:
            raise
        path = said.group(1) or os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
        raise Unavailable(
            f"Spark has no space left on the disk of {path}",
            hint="Free some space there, or name another folder: SPARK_LOCAL_DIRS=/large/folder",
            path=path,
        ) from error


@dataclass
class Jobs:
    """The number of Spark jobs of a block, set at its end; 0 for a remote session, which does not tell."""

    count: int = 0


@contextmanager
def running_job(
    spark: SparkSession, row_bytes: int, watch: OnProgress | None = None, *, name: str = ""
) -> Iterator[Jobs]:
    """Around a job of ours over rows of about this size. Batches stay small for wide rows, in a caller's session too;
    `watch` is called with the share of the job that is done; when the block fails, the job's tasks are ended. `name`
    says what the job does, as in `named_jobs`."""
    with (
        small_batches(spark, row_bytes),
        (_remote_job if is_connect(spark) else _classic_job)(spark, _Progress(watch)) as jobs,
        named_jobs(spark, name),
    ):
        yield jobs


@contextmanager
def named_jobs(spark: SparkSession, name: str) -> Iterator[None]:
    """Say what the jobs of a block do, such as "compact messages, 16 vnodes": it is their description in the Spark UI,
    and a tag of their operations in Spark Connect."""
    text = f"strandline: {name}" if name else "strandline"
    if is_connect(spark):
        tag = text.replace(",", ";")  # a comma would end the tag
        is_new = tag not in spark.getTags()
        spark.addTag(tag)
        try:
            yield
        finally:
            if is_new:
                spark.removeTag(tag)
        return
    context = spark.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, text)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)


class _Progress:
    """Reports the share of a job that is done, which never falls, although Spark adds stages on the way."""

    def __init__(self, watch: OnProgress | None) -> None:
        self._watch = watch
        self._reported = 0

    def hear(self, stages: Sequence[tuple[int, int]]) -> None:
        """`stages` are pairs: tasks done, and all tasks."""
        known = [done / whole for done, whole in stages if whole]
        now = int(_SHARES * sum(known) / max(_STAGES, len(known)))
        if self._watch is not None and now > self._reported:
            self._reported = now
            self._watch(now, _SHARES)


@contextmanager
def _remote_job(spark: SparkSession, share: _Progress) -> Iterator[Jobs]:
    tag = f"strandline-{uuid.uuid4().hex}"

    def hear(stages: Any = None, **_: Any) -> None:
        share.hear([(stage.num_completed_tasks, stage.num_tasks) for stage in stages or ()])

    try:
        spark.registerProgressHandler(hear)
        spark.addTag(tag)
        yield Jobs()
    except BaseException:
        spark.interruptTag(tag)
        raise
    finally:
        spark.removeTag(tag)
        spark.removeProgressHandler(hear)


@contextmanager
def _classic_job(spark: SparkSession, share: _Progress) -> Iterator[Jobs]:
    context, group = spark.sparkContext, f"strandline-{uuid.uuid4().hex}"
    tracker = context.statusTracker()

    def stages() -> list[Any]:
        jobs = [job for number in tracker.getJobIdsForGroup(group) if (job := tracker.getJobInfo(number))]
        return [stage for job in jobs for number in job.stageIds if (stage := tracker.getStageInfo(number))]

    def poll(is_over: Callable[[float], bool]) -> None:
        while not is_over(0.5):
            share.hear([(stage.numCompletedTasks, stage.numTasks) for stage in stages()])

    names = ("spark.jobGroup.id", _DESCRIPTION, "spark.job.interruptOnCancel")
    before = {name: context.getLocalProperty(name) for name in names}
    jobs = Jobs()
    try:
        context.setJobGroup(group, "strandline", interruptOnCancel=True)
        with run_beside(poll):
            yield jobs
    except BaseException:
        # Running tasks would go on writing. Ctrl-C reaches the JVM as well, which may be gone.
        with suppress(Exception):
            context.cancelJobGroup(group)
        # Spark kills a worker that does not react after two seconds; its task counts as ended before that.
        time.sleep(_KILLED_S)
        raise
    finally:
        with suppress(Exception):
            jobs.count = len(tracker.getJobIdsForGroup(group))
        for name, value in before.items():
            context.setLocalProperty(name, value)


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at once; a guess for a remote session, which does not tell."""
    return _REMOTE_TASKS if is_connect(spark) else int(spark.sparkContext.defaultParallelism)


def tasks_for(spark: SparkSession, raw_bytes: int) -> int:
    """The number of tasks to write so many bytes: as many as run at once, more for many bytes, and fewer for few bytes,
    which would become many small files."""
    at_once = min(parallelism(spark), raw_bytes // _SMALL_TASK_BYTES)
    return max(1, min(_MOST_TASKS, max(at_once, raw_bytes // TASK_BYTES)))


def _ship_package(spark: SparkSession) -> None:
    if not getattr(spark, "_strandline_shipped", False):
        spark.addArtifacts(_package_file(), pyfile=True)
        spark._strandline_shipped = True


@cache
def _package_file() -> str:
    """The path of this package as a zip file, which executors may fetch until the process ends."""
    folder = tempfile.mkdtemp(prefix="strandline-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "strandline.zip")
    root = resources.files("strandline")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, resources.as_file(root) as package:
        for file in sorted(package.rglob("*.py")):
            archive.write(file, os.path.join("strandline", file.relative_to(package)))
    return path
