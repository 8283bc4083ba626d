"""The one place that opens DuckDB.

A lake has one instance. It can open files below the lake's root only, and its configuration is locked, so no user SQL
can leave the lake. `query.guard` limits user SQL to the tables.

An internal error ends a DuckDB instance: every later statement on it fails. The instance is then dropped, and the next
caller opens a new one. Tables of the old instance are gone; callers that keep tables compare `life`.

Instances are closed before the interpreter ends: a DuckDB thread that needs the interpreter after that aborts the
process.
"""

from __future__ import annotations

import atexit
import os
import re
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import duckdb
import pyarrow as pa

from strandline.engines import temp_folder
from strandline.engines.scan import literal
from strandline.errors import Corrupt, Invalid, StrandlineError, Unavailable
from strandline.model import secret
from strandline.model.scrub import first_line
from strandline.storage import os_errors
from strandline.storage.open import Storage

_CTRL_C = "Query interrupted"  # a RuntimeError of DuckDB's Python library, in place of KeyboardInterrupt
_ENDED = "database has been invalidated"
# The memory in a Spark task; larger vnodes are sorted in ranges of keys.
_TASK_BYTES = 512 << 20
# So many rows fit into it besides: DuckDB holds some vectors of 2,048 rows at once, also when it sorts on disk.
_TASK_ROWS = 7 * 2048
# The beginning of a DuckDB message, also when Arrow passes it on from the middle of a stream as its own error.
_SAID = re.compile(r"([A-Za-z][\w ]*) Error: ")


def default_memory_bytes() -> int:
    """Half of this machine's memory, at most 16 GiB."""
    return min(16 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


def is_duckdb_error(error: BaseException) -> bool:
    is_passed_on = isinstance(error, OSError) and error.errno is None and _SAID.match(str(error)) is not None
    return isinstance(error, duckdb.Error) or is_passed_on


def query_error(error: BaseException) -> Invalid:
    """DuckDB's words about a query that is wrong, without the name of their class."""
    what, _, near = _SAID.sub("", str(error).strip(), count=1).partition("\nCandidate bindings: ")
    names = near.partition("\n")[0]
    return Invalid(f"the query failed: {what}", hint=f"Did you mean: {names}?" if names else None)


def translate_error(error: BaseException, root: str) -> StrandlineError:
    """The error of ours for a failure of DuckDB; `root` is the lake's root."""
    said = str(error).strip()
    found = _SAID.match(said)
    kind = found.group(1) if found else ""
    if _ENDED in said:
        return _ended_error()
    if kind in ("INTERNAL", "FATAL"):
        return Invalid(
            f"DuckDB failed on this query with an internal error: {said.splitlines()[0]}",
            hint="Other queries still work. If every query of a table fails like this, it holds values that DuckDB"
            " cannot read: strandline doctor --deep",
        )
    if "offload" in said or "temp_directory" in said:
        return Unavailable(
            f"the read does not fit into memory, and {tempfile.gettempdir()} has no space left for its rows:"
            f" {said.splitlines()[0]}",
            hint="Select fewer columns or rows, free space there, or name another folder: TMPDIR=/large/folder",
            path=tempfile.gettempdir(),
        )
    if kind == "Out of Memory":
        return Unavailable(
            "the read needs more memory than the lake's DuckDB may use",
            hint="Select fewer columns or rows, or open the lake with a larger cache_bytes (in a command: --app).",
        )
    # Every file that is read here belongs to a commit. A value may look like the name of another file.
    found = re.search(re.escape(root.rstrip("/")) + r"/[^'\"\n]*?\.parquet", said)
    if kind == "IO" or found:
        path = found.group(0) if found else None
        refused = os_errors.from_message(
            said.splitlines()[0], path or tempfile.gettempdir(), "read" if path else "write"
        )
        return refused or Corrupt(
            f"a file of the lake is missing or damaged: {said.splitlines()[0]}",
            hint="See what is affected: strandline doctor --deep",
            path=path,
        )
    return query_error(error)


def _ended_error() -> Unavailable:
    return Unavailable(
        "another query ended DuckDB with an internal error while this one ran",
        hint="Run it again: DuckDB is reopened.",
    )


@contextmanager
def _raise_ctrl_c() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if str(error) != _CTRL_C:
            raise
        raise KeyboardInterrupt from error


class Duck:
    """A lake's DuckDB, opened when first needed. Each caller works on a cursor of its own."""

    def __init__(
        self,
        storage: Storage,
        memory_bytes: int | None = None,
        *,
        threads: int | None = None,
        spill_folder: str | None = None,
    ) -> None:
        self._storage = storage
        self.cache_bytes = memory_bytes or default_memory_bytes()
        """The memory for DuckDB and a query's result together."""
        self.result_bytes = self.cache_bytes // 4
        """The default limit on a query's result, which DuckDB's own limit does not count."""
        self._memory_bytes = self.cache_bytes - self.result_bytes
        self._threads = threads
        self._spill_folder = spill_folder
        self._opening = threading.Lock()
        self._connection: Any = None
        self._outages: Any = None
        self.life = 0
        """How many instances have ended; a table made in an earlier life is gone."""
        self._process = os.getpid()
        _ducks.add(self)

    @staticmethod
    @contextmanager
    def in_task(storage: Storage, row_bytes: int) -> Iterator[Duck]:
        """An instance for a Spark task: it has one thread, memory for rows of about this size, and spills into a folder
        of Spark's."""
        memory_bytes = _TASK_BYTES + _TASK_ROWS * row_bytes
        folders = os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
        with tempfile.TemporaryDirectory(prefix="strandline-spill-", dir=folders.split(",")[0]) as folder:
            duck = Duck(storage, memory_bytes, threads=1, spill_folder=os.path.join(folder, "duckdb"))
            with closing(duck):
                yield duck

    def _open(self) -> Any:
        connection = duckdb.connect(":memory:")
        filesystem = self._storage.duckdb_filesystem()
        if filesystem is not None:
            connection.register_filesystem(filesystem)
            self._outages = filesystem.outages
        for setting in (
            f"memory_limit = '{self._memory_bytes}B'",
            f"temp_directory = {literal(self._spill_folder or temp_folder.new_folder())}",
            *([f"threads = {self._threads}"] if self._threads else []),
            "TimeZone = 'UTC'",
            "preserve_insertion_order = false",
            "parquet_metadata_cache = true",
            "python_enable_replacements = false",
            "autoinstall_known_extensions = false",
            "autoload_known_extensions = false",
            f"allowed_directories = [{literal(self._storage.uri.rstrip('/') + '/')}]",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            connection.execute(f"SET {setting}")
        return connection

    def _begin(self, start: str, life: int | None) -> tuple[Any, Any]:
        """A connection and its cursor inside a transaction; with a `life`, of that instance only."""
        while True:
            with self._opening:
                if self._connection is None:
                    self._connection = self._open()
                if life not in (None, self.life):
                    raise _ended_error()
                connection = self._connection
            try:
                cursor = connection.cursor()
                cursor.execute(start)
                return connection, cursor
            except duckdb.Error as error:
                if not self._drop_if_dead(connection):
                    raise translate_error(error, self._storage.uri) from error

    def _drop_if_dead(self, connection: Any) -> bool:
        try:
            with closing(connection.cursor()) as cursor:
                cursor.execute("SELECT 1").fetchall()
            return False
        except duckdb.FatalException:
            with self._opening:
                # Open cursors keep the instance as long as they need it.
                if self._connection is connection:
                    self._connection = None
                    self.life += 1
            return True

    def close(self) -> None:
        """End the instance and its threads, once no cursor is open. The next caller opens a new instance."""
        connection, self._connection = self._connection, None
        # A forked child has a copy of the instance without its threads: closing it would wait for ever.
        if connection is not None and self._process == os.getpid():
            self.life += 1
            connection.close()

    @contextmanager
    def transaction(self, *, read_only: bool = False, life: int | None = None) -> Iterator[Any]:
        """A cursor inside a transaction: committed when the block ends well, rolled back when it raises.

        With a `life`, `Unavailable` when DuckDB was reopened since."""
        started_s = time.monotonic()
        with _raise_ctrl_c(), ExitStack() as open_:
            connection, begun = self._begin("BEGIN TRANSACTION" + (" READ ONLY" if read_only else ""), life)
            cursor = open_.enter_context(closing(begun))
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException as error:
                with suppress(duckdb.Error):
                    cursor.execute("ROLLBACK")
                if isinstance(error, Exception):
                    self._drop_if_dead(connection)
                # DuckDB may report damage when the store merely did not answer.
                if is_duckdb_error(error) or isinstance(error, Corrupt):
                    self._raise_outage(started_s)
                if is_duckdb_error(error):
                    raise translate_error(error, self._storage.uri) from error
                raise

    def _raise_outage(self, started_s: float) -> None:
        outage = self._outages.since(started_s) if self._outages is not None else None
        if outage is not None:
            said = first_line(outage, secret.store_secrets(self._storage.delta_options))
            raise Unavailable(
                f"{self._storage.uri} does not answer: {said}", hint="Try again when it does."
            ) from outage

    def run(self, *statements: str, life: int | None = None) -> None:
        """Run statements as one transaction: all of them or none."""
        with self.transaction(life=life) as cursor:
            for statement in statements:
                cursor.execute(statement).fetchall()

    def table(self, sql: str) -> pa.Table:
        with self.transaction() as cursor:
            return cursor.sql(sql).to_arrow_table()


_ducks: weakref.WeakSet[Duck] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for duck in list(_ducks):
        # An instance that another thread is using refuses to be closed.
        with suppress(duckdb.Error):
            duck.close()
