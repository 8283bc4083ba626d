"""The one place that opens DuckDB.

A lake has one instance. It reaches files below the lake's root and nothing else, and its configuration is locked,
so that user SQL cannot leave the lake whatever it says.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from typing import Any

import duckdb
import pyarrow as pa

from strandline.dialect import literal
from strandline.errors import Corrupt, Invalid, StrandlineError, Unavailable
from strandline.storage import Storage


def default_memory_bytes() -> int:
    """Half of this machine's memory, at most 16 GiB."""
    return min(16 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


def translated(error: duckdb.Error) -> StrandlineError:
    """What a failure of DuckDB means to the caller."""
    said = str(error).strip()
    if isinstance(error, duckdb.OutOfMemoryException):
        return Unavailable(
            "the read needs more memory than the lake's DuckDB may use",
            hint="Select fewer columns or rows, or open the lake with a larger cache_bytes.",
        )
    # Only files are read here, and only those that a commit claims.
    if isinstance(error, duckdb.IOException) or ".parquet" in said:
        path = re.search(r"[^\s'\"]+\.parquet", said)
        return Corrupt(
            f"a file of the lake is missing or damaged: {said.splitlines()[0]}",
            hint="See what is affected: strandline doctor",
            path=path.group(0) if path else None,
        )
    return Invalid(f"the query failed: {said}")


class Duck:
    """A lake's DuckDB, opened when first needed. Each caller works on a cursor of its own."""

    def __init__(self, storage: Storage, memory_bytes: int | None = None) -> None:
        self._storage = storage
        self._memory_bytes = memory_bytes or default_memory_bytes()
        self._opening = threading.Lock()

    @cached_property
    def _connection(self) -> Any:
        connection = duckdb.connect(":memory:")
        filesystem = self._storage.duckdb_filesystem()
        if filesystem is not None:
            connection.register_filesystem(filesystem)
        spill = os.path.join(tempfile.gettempdir(), f"strandline-{os.getpid()}")
        for setting in (
            f"memory_limit = '{self._memory_bytes}B'",
            f"temp_directory = {literal(spill)}",
            "TimeZone = 'UTC'",
            "preserve_insertion_order = false",
            "parquet_metadata_cache = true",
            f"allowed_directories = [{literal(self._storage.uri.rstrip('/') + '/')}]",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            connection.execute(f"SET {setting}")
        return connection

    def cursor(self) -> Any:
        with self._opening:
            return self._connection.cursor()

    @contextmanager
    def transaction(self, *, read_only: bool = False) -> Iterator[Any]:
        """A cursor inside a transaction, which is kept when the block ends well and undone when it raises."""
        with closing(self.cursor()) as cursor:
            cursor.execute("BEGIN TRANSACTION" + (" READ ONLY" if read_only else ""))
            try:
                yield cursor
            except BaseException as error:
                with suppress(duckdb.Error):
                    cursor.execute("ROLLBACK")
                if isinstance(error, duckdb.Error):
                    raise translated(error) from error
                raise
            cursor.execute("COMMIT")

    def run(self, *statements: str) -> None:
        """Run statements as one transaction: all of them or none."""
        with self.transaction() as cursor:
            for statement in statements:
                cursor.execute(statement).fetchall()

    def table(self, sql: str) -> pa.Table:
        with self.transaction() as cursor:
            return cursor.sql(sql).to_arrow_table()
