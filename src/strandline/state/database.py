"""The state of a lake's consumers: one small database, SQLite beside a local lake or PostgreSQL by URL.

This module owns the connection, the transactions, the database's clock and the translation of the driver's errors.
Tables belong to the modules that use them and share one `metadata`. State and lake share an id and a rising epoch, by
which a lost, foreign or outdated state is noticed (see `epoch`).

After a crash: each transaction is complete or absent, and a commit that returned survives a power loss.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    event,
    func,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from strandline.crash import crash_point
from strandline.errors import Conflict, Corrupt, Internal, Invalid, StrandlineError, Unavailable
from strandline.model.scrub import holds_secret, scrub_text
from strandline.model.text import check_text
from strandline.state import file_rights, sqlite_file
from strandline.state.address import EXPECTED, file_of, parse_url, public_url, secrets_of

FORMAT = 1
FILE = "state.db"
TIMEOUT_S = 30.0

metadata = MetaData()
# The names have a prefix: a PostgreSQL database may hold tables of other programs too.
meta = Table(
    "strandline_meta",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("format", Integer, nullable=False),
    Column("lake_id", Text),
    Column("epoch", BigInteger, nullable=False),
    Column("pending", BigInteger, nullable=False),
)

_CREATING = 0x5374726E  # the advisory lock under which tables are created
_SQLITE_NOW = text("SELECT (julianday('now') - 2440587.5) * 86400.0")
_POSTGRES_NOW = text("SELECT extract(epoch FROM clock_timestamp())::float8")


class Database:
    """An open state database, made when missing. Safe to share between threads; any number of processes may open it.
    A SQLite file that this process may not write can be read; a transaction is then `Unavailable`.

    `timeout_s` bounds how long a call waits for a connection or for another's lock."""

    def __init__(self, url: str | URL | os.PathLike[str], *, timeout_s: float = TIMEOUT_S) -> None:
        self._url = parse_url(url)
        self._timeout_s = timeout_s
        self._secrets = secrets_of(self._url)
        self._path = file_of(self._url)
        self._file: tuple[int, int] | None = None
        self._made: set[str] = set()
        self._copy: sqlite_file.PrivateCopy | None = None
        self.shown = public_url(self._url)
        if self._path is not None:
            file_rights.make_private(self._path)
        with self._translate_errors():
            self._engine = self._new_engine()
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def for_lake(uri: str, is_local: bool, url: str | os.PathLike[str] | None = None) -> Database:
        """The state of the lake at `uri`: the database at `url`, or a file in the folder of a local lake."""
        if url is not None:
            return Database(url)
        if not is_local:
            raise Invalid(
                f"{uri} is not a folder on this machine, so its state (the marks of sinks) needs a database",
                hint="Name one: Lake(…, state='postgresql://user@host/database'), or for one machine"
                " state='sqlite:////folder/state.db'; on the command line --state or STRANDLINE_STATE.",
            )
        return Database(URL.create("sqlite", database=os.path.join(uri, FILE)))

    def __repr__(self) -> str:
        return f"Database({self.shown!r})"

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection that no thread is using."""
        self._engine.dispose()
        if self._copy is not None:
            self._copy.close()

    # --- transactions ------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Change the state: the whole block or nothing. After `Unavailable` the commit may have landed: reload.

        SQLite has one writer at a time, from the first statement on (BEGIN IMMEDIATE). PostgreSQL runs READ COMMITTED.
        That is enough because every decision is made under a lock. Each change begins with SELECT … FOR UPDATE (or FOR
        SHARE) of the row that stands for what it changes: a lease, a consumer or `meta`. The lock waits for others and
        then reads their newest version. Later statements read what belongs to that row, each as of its own start; it
        changes only under the same lock. A row that may be missing is inserted first (`insert_missing`). Locks are
        taken in one order, `meta`, lease, consumers by name, which rules out deadlocks."""
        with self._translate_errors():
            self._check_file()
            self._leave_copy(is_writing=True)
            with self._engine.connect() as connection:
                with connection.execution_options(is_writing=True).begin():
                    yield connection
                    crash_point("state.before_commit")
                crash_point("state.committed")
            self._check_file()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read the state as of one moment, without blocking a writer."""
        with self._translate_errors():
            self._check_file()
            self._leave_copy()
            with self._engine.connect() as connection:
                if not self._is_sqlite:
                    connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
                with connection.begin():
                    yield connection

    def ensure(self, *tables: Table) -> None:
        """Create the missing tables; any number of processes may do this at once."""
        if not self.has(*tables):
            with self.transaction() as connection:
                self._create_tables(connection, *tables)
            self._made |= {table.name for table in tables}

    def has(self, *tables: Table) -> bool:
        """Whether all these tables exist."""
        names = {table.name for table in tables}
        if not names <= self._made:
            with self.reading() as connection:
                self._made |= set(inspect(connection).get_table_names())
        return names <= self._made

    # --- the lake ----------------------------------------------------------------------------------------------

    def lake_id(self) -> str | None:
        """The lake that this state belongs to; None before the first `bind`."""
        with self.reading() as connection:
            found: str | None = connection.execute(select(meta.c.lake_id)).scalar_one()
        return found

    def bind(self, lake_id: str) -> None:
        """Make this the state of that lake; `Conflict` when it belongs to another lake."""
        check_text("lake id", lake_id)
        found = self.lake_id()
        if found is None:
            with self.transaction() as connection:
                found = connection.execute(select(meta.c.lake_id).with_for_update()).scalar_one()
                if found is None:
                    connection.execute(update(meta).values(lake_id=lake_id))
                    return
        if found != lake_id:
            raise Conflict(
                f"{self.shown} is the state of the lake {found}, not of {lake_id}",
                hint="Give each lake a state of its own: another file, database or schema.",
                state=self.shown,
                lake=lake_id,
                found=found,
            )

    # --- opening -----------------------------------------------------------------------------------------------

    @property
    def _is_sqlite(self) -> bool:
        return self._path is not None

    def _new_engine(self) -> Engine:
        if self._path is not None:
            self._copy = sqlite_file.PrivateCopy.if_needed(self._path)
            engine = create_engine(
                self._url,
                hide_parameters=True,
                **(
                    {"connect_args": {"timeout": self._timeout_s}, "pool_timeout": self._timeout_s}
                    if self._copy is None
                    else {"creator": self._copy.connect, "poolclass": NullPool}
                ),
            )
            event.listen(engine, "connect", sqlite_file.prepare)
            event.listen(engine, "begin", sqlite_file.begin)
            return engine
        wait_ms = max(1, int(self._timeout_s * 1000))
        settings = {"connect_timeout": max(2, int(self._timeout_s)), "tcp_user_timeout": wait_ms}
        engine = create_engine(
            self._url,
            hide_parameters=True,
            pool_timeout=self._timeout_s,
            pool_pre_ping=True,
            connect_args={name: value for name, value in settings.items() if name not in self._url.query},
        )

        def prepare(connection: Any, _: object) -> None:
            # A client that stalls inside a transaction loses it, so that others do not wait for ever.
            with connection.cursor() as cursor:
                cursor.execute(f"SET lock_timeout = {wait_ms}; SET idle_in_transaction_session_timeout = {wait_ms}")
            connection.commit()

        event.listen(engine, "connect", prepare)
        return engine

    def _leave_copy(self, *, is_writing: bool = False) -> None:
        """Go back from the copy to the file once the file can be written; until then a change is `Unavailable`."""
        if self._copy is None or self._path is None:
            return
        refused = sqlite_file.write_refusal(self._path)
        if refused is None:
            self.close()
            self._engine = self._new_engine()
        elif is_writing:
            raise refused

    def _open(self) -> None:
        with self.reading() as connection:
            names = inspect(connection).get_table_names()
            is_made = inspect(connection).has_table(meta.name)
        self._made = set(names)
        if not is_made:
            if names and self._is_sqlite:
                raise Invalid(
                    f"{self.shown} is the database of another program: it holds {', '.join(names[:3])}",
                    hint="Name another file.",
                    state=self.shown,
                )
            self._use_wal()
            with self.transaction() as connection:
                self._create_tables(connection, meta)
                insert_missing(connection, meta, id=1, format=FORMAT, epoch=0, pending=0)
        with self.reading() as connection:
            found = connection.execute(select(meta)).one_or_none()
        if found is None:
            raise Corrupt(f"{self.shown} has lost its first row", hint="Restore it from a backup.", state=self.shown)
        if found.format > FORMAT:
            raise Invalid(
                f"{self.shown} has format {found.format}; this version of Strandline reads up to {FORMAT}",
                hint="Upgrade: pip install -U strandline",
                format=found.format,
                state=self.shown,
            )
        self._file = self._find_file()

    def _create_tables(self, connection: Connection, *tables: Table) -> None:
        if not self._is_sqlite:
            # Without the lock, CREATE TABLE IF NOT EXISTS fails for one of two processes that run it at once.
            connection.execute(select(func.pg_advisory_xact_lock(_CREATING)))
        metadata.create_all(connection, tables=tables)

    def _use_wal(self) -> None:
        """Let readers and the writer of a SQLite file work at once; the file keeps this mode."""
        if not self._is_sqlite:
            return
        deadline_s = time.monotonic() + self._timeout_s
        with self._translate_errors():
            connection = self._engine.raw_connection()
            try:
                while True:
                    try:
                        connection.cursor().execute("PRAGMA journal_mode = WAL")
                        return
                    except sqlite3.OperationalError as error:
                        # Another process is switching too: SQLite does not wait for it here, as it does elsewhere.
                        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                            raise
                        time.sleep(0.01)
            finally:
                connection.close()

    def _find_file(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _check_file(self) -> None:
        """`Corrupt` unless the SQLite file is still the opened one: writes to a deleted file vanish silently."""
        if self._file is not None and self._file != (found := self._find_file()):
            raise Corrupt(
                f"{self.shown} was {'deleted' if found is None else 'replaced'} while it was in use",
                hint="Open the lake again; the last writes may be lost.",
                state=self.shown,
            )

    # --- errors ------------------------------------------------------------------------------------------------

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """The one place that turns the driver's errors into ours."""
        try:
            yield
        except StrandlineError:
            raise
        except (SQLAlchemyError, sqlite3.Error, ImportError) as error:
            # A cause that repeats a secret is left out.
            raise self._to_own_error(error) from (None if holds_secret(error, self._secrets) else error)

    def _to_own_error(self, error: Exception) -> StrandlineError:
        origin = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        reason = scrub_text(str(origin), self._secrets)
        if isinstance(error, ImportError):
            return Unavailable(
                f"the driver for {self.shown} is not installed: {reason}",
                hint="Install it: pip install 'psycopg[binary]'",
                state=self.shown,
            )
        if isinstance(origin, sqlite3.Error):
            refused = sqlite_file.file_error(origin, self._path or "")
            if refused is not None:
                return refused
            kind, hint = sqlite_file.kind_of(origin)
        else:
            kind, hint = _postgres_kind(error, origin)
        return kind(f"{self.shown}: {reason}", hint=hint, state=self.shown)


def now_s(connection: Connection) -> float:
    """The database's clock, in seconds since 1970: the one clock that all processes of a state share. It is read at
    the call, not at the start of the transaction, so it is right after a wait for a lock."""
    is_sqlite = connection.dialect.name == "sqlite"
    return float(connection.execute(_SQLITE_NOW if is_sqlite else _POSTGRES_NOW).scalar_one())


def insert_missing(connection: Connection, table: Table, **values: Any) -> None:
    """Insert a row unless its key exists, so that there is a row to lock; waits for another insert of the same key."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    connection.execute(insert(table).values(**values).on_conflict_do_nothing())


def _postgres_kind(error: Exception, origin: BaseException) -> tuple[type[StrandlineError], str | None]:
    code = getattr(origin, "sqlstate", None) or ""
    if code in ("42P01", "42703", "42804", "XX001", "XX002"):
        return Corrupt, sqlite_file.RESTORE
    if code == "42501":
        return Invalid, "Grant this user the right to create and change tables in that schema."
    if code.startswith("22"):
        return Invalid, None
    if isinstance(error, IntegrityError) or code[:2] in ("23", "42", "0A"):
        return Internal, None
    if not code and isinstance(error, DBAPIError) and type(origin).__name__ == "ProgrammingError":
        return Invalid, EXPECTED
    # No connection, a lock timeout, a serialization failure, a server that shuts down or is full.
    return Unavailable, "Is the server up, and is the address right? If so, try again."
