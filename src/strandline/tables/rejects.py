"""Rows that an ingest refused, kept beside their table with the reason.

They have a log of their own, made when the first row is refused. The refused rows of a file are committed before the
good ones, under a transaction that names the file and its content, so a load that is repeated after a crash neither
loses nor doubles them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.crash import crash_point
from strandline.errors import Conflict, Corrupt, NotFound
from strandline.model.change import UPSERT
from strandline.model.definition import TableDef
from strandline.storage import digest
from strandline.storage.open import Storage
from strandline.storage.snapshot import DataFile, Draft, Snapshot
from strandline.tables.catalog import Entry
from strandline.tables.log import Log, LogState, prepare

SCHEMA = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("column", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("names", pa.list_(pa.string())),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
_SHOWN = [name for name in SCHEMA.names if name != "names"]
_FLUSH_ROWS = 10_000
_FLUSH_CHARS = 32 << 20


@dataclass(frozen=True)
class Reject:
    """A refused row: its place, the faulty column if there is one, the reason, its text, and for CSV the columns of
    its fields."""

    file: str
    line: int
    column: str | None
    reason: str
    text: str
    names: list[str] | None = None

    def printable(self) -> Reject:
        """The same without half surrogate pairs, which file names and JSON escapes may hold."""
        return replace(
            self,
            file=_printable(self.file),
            column=None if self.column is None else _printable(self.column),
            reason=_printable(self.reason),
            text=_printable(self.text),
        )


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


class Rejects:
    """The refused rows of one table."""

    def __init__(self, storage: Storage, entry: Entry) -> None:
        self._storage = storage
        self._name = f"{entry.name}_rejects"
        self.folder = f"{entry.folder}/rejects"
        self.log = Log(storage, self.folder)

    def state(self) -> LogState | None:
        """The log of refused rows, or None when no row was ever refused; `Corrupt` when rows are there and their log is
        gone."""
        try:
            return self.log.refresh()
        except NotFound:
            if not any(info.path.endswith(".parquet") for info in self._storage.list(self.folder)):
                return None
        # Look again: the log is made before the first file.
        try:
            return self.log.refresh()
        except NotFound as error:
            raise Corrupt(
                f"{self._storage.url(self.folder)} holds refused rows, but the log that names them is gone",
                hint="Restore its folder _delta_log from a backup. If this lake is an unfinished copy, copy it again.",
                path=f"{self.folder}/_delta_log",
            ) from error

    def count(self) -> int:
        state = self.state()
        return 0 if state is None else sum(file.rows for _, file in state.by_seq)

    def tokens(self) -> Collection[str]:
        """The transactions of the refused rows."""
        state = self.state()
        return () if state is None else state.snapshot.txns.keys()

    def latest(self, limit: int) -> list[dict[str, object]]:
        """The last `limit` refused rows, oldest first; `Corrupt` when one of their files is missing or damaged."""
        state = self.state()
        found: list[dict[str, object]] = []
        for seq, file in reversed(state.by_seq if state else []):
            if len(found) >= limit:
                break
            path = f"{self.folder}/{file.path}"
            digest.check(self._storage, [(path, file)])
            rows = pq.read_table(self._storage.input(path)).to_pylist()
            found = [{"seq": seq, **{name: row.get(name) for name in _SHOWN}} for row in rows] + found
        return found[-limit:] if limit else []

    def ensure(self) -> None:
        """Make the log unless it exists; when several processes try, one succeeds and the others use its log."""
        if self.state() is None:
            try:
                Log.create(self._storage, self.folder, self._name, TableDef.declare(SCHEMA, vnodes=1))
            except Conflict:
                self.log.refresh()
        self.log.redefine("EVOLVE", lambda definition: definition.evolve(SCHEMA))


class RejectedRows:
    """The refused rows beside one commit of good rows: written as they come, claimed together by `commit`."""

    def __init__(self, rejects: Rejects) -> None:
        self._rejects = rejects
        self._held: list[Reject] = []
        self._chars = 0
        self._files: list[DataFile] = []
        self._tokens: set[str] = set()

    def add(self, token: str, reject: Reject) -> None:
        self._tokens.add(token)
        self._held.append(reject)
        self._chars += len(reject.text)
        if len(self._held) >= _FLUSH_ROWS or self._chars >= _FLUSH_CHARS:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._rejects.ensure()
            definition = self._rejects.log.refresh().definition
            self._files += self._rejects.log.write(prepare(_build_table(self._held), definition, UPSERT), definition)
            self._held, self._chars = [], 0

    def commit(self) -> None:
        """Make the rows visible; a second call does nothing."""
        self._flush()
        if not self._files:
            return
        # From here on the commit owns the files: when its outcome is unclear, they must stay.
        files, tokens = self._files, self._tokens
        self._files, self._tokens = [], set()

        def amend(snapshot: Snapshot, draft: Draft) -> Draft:
            known = tokens & snapshot.txns.keys()
            if known:
                raise Conflict("another process is loading the same file; its refused rows are kept already")
            return replace(draft, txns={token: snapshot.version + 1 for token in tokens})

        crash_point("rejects.before_commit")
        self._rejects.log.commit(files, operation="REJECT", amend=amend)
        crash_point("rejects.committed")

    def discard(self) -> None:
        """Delete the written files that are not claimed."""
        self._rejects.log.discard(self._files)
        self._held, self._files = [], []


def _build_table(rejects: Sequence[Reject]) -> pa.Table:
    at = dt.datetime.now(dt.UTC)
    return pa.Table.from_pylist([{**vars(reject), "at": at} for reject in rejects], schema=SCHEMA)
