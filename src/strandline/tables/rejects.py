"""Rows that an ingest refused, kept beside their table with the reason.

They have a log of their own, made when the first row is refused. The refused rows of a file are committed before the
good ones, under a transaction that names the file and its content, so a load that is repeated after a crash neither
loses nor doubles them. A row leaves when its file was loaded again whole, when a retry has loaded it, or when a person
drops it: its data file is replaced, in one commit, by one with the other rows.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.crash import crash_point
from strandline.errors import Conflict, Corrupt, NotFound
from strandline.model.change import UPSERT
from strandline.model.definition import TableDef
from strandline.storage import digest
from strandline.storage.open import Storage
from strandline.storage.parquet import writer
from strandline.storage.snapshot import DataFile, Draft, Snapshot, new_file_name, schema_id_of
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
        pa.field("dialect", pa.string()),
    ]
)
_SHOWN = [name for name in SCHEMA.names if name not in ("names", "dialect")]
_VALUE = re.compile(r"^(?:'.*'|\S+) (is not .+|does not fit .+)$", re.DOTALL)
_ATTEMPTS = 20

Files = list[DataFile]
_FLUSH_ROWS = 10_000
_FLUSH_CHARS = 32 << 20


@dataclass(frozen=True)
class Reject:
    """A refused row: its place, the faulty column if there is one, the reason, its text, and for CSV the columns of
    its fields and the dialect of its file."""

    file: str
    line: int
    column: str | None
    reason: str
    text: str
    names: list[str] | None = None
    dialect: str | None = None

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


@dataclass(frozen=True)
class RejectGroup:
    """Refused rows of one file with the same kind of reason: their number, and the line of the first one."""

    table: str
    file: str
    column: str | None
    reason: str
    count: int
    line: int
    at: dt.datetime

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class KeptRows:
    """The refused rows of one data file."""

    seq: int
    file: DataFile
    rows: pa.Table


class Rejects:
    """The refused rows of one table."""

    def __init__(self, storage: Storage, entry: Entry) -> None:
        self._storage = storage
        self._table = entry.name
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

    def latest(self, limit: int, *, file: str | None = None) -> list[dict[str, object]]:
        """The last `limit` refused rows, of one file or of all, oldest first; `Corrupt` when one of their files is
        missing or damaged."""
        found: list[dict[str, object]] = []
        for kept in self.kept(newest_first=True):
            if len(found) >= limit:
                break
            rows = kept.rows if file is None else kept.rows.filter(is_from(kept.rows, file))
            found = [{"seq": kept.seq, **{name: row.get(name) for name in _SHOWN}} for row in rows.to_pylist()] + found
        return found[-limit:] if limit else []

    def list(self) -> list[RejectGroup]:
        """The refused rows by file and kind of reason, in the order in which they were refused."""
        groups: dict[tuple[str, str | None, str], RejectGroup] = {}
        for kept in self.kept():
            for row in kept.rows.select([*_SHOWN]).drop_columns(["text"]).to_pylist():
                place = (row["file"], row["column"], _VALUE.sub(r"a value \1", row["reason"]))
                group = groups.get(place) or RejectGroup(self._table, *place, 0, row["line"], row["at"])
                groups[place] = replace(group, count=group.count + 1)
        return [*groups.values()]

    def kept(self, *, newest_first: bool = False) -> Iterator[KeptRows]:
        """The refused rows, one data file after the other."""
        state = self.state()
        pairs = state.by_seq if state else []
        for seq, file in reversed(pairs) if newest_first else pairs:
            yield KeptRows(seq, file, self.read(file))

    def read(self, file: DataFile) -> pa.Table:
        path = f"{self.folder}/{file.path}"
        digest.check(self._storage, [(path, file)])
        return pq.read_table(self._storage.input(path))

    def drop(self, *, file: str | None = None) -> int:
        """Forget refused rows, of one file or all; returns their number."""
        return self.remove(lambda kept: is_from(kept.rows, file))

    def remove(self, going: Callable[[KeptRows], pa.ChunkedArray]) -> int:
        """Remove the rows that `going` marks; returns their number. Rows that come in meanwhile are looked at too when
        another process changes the same files."""
        for _ in range(_ATTEMPTS):
            removed, added, count = [], [], 0
            for kept in self.kept():
                mask = going(kept)
                gone = pc.sum(mask, min_count=0).as_py() or 0
                if gone:
                    count += gone
                    removed.append(kept.file)
                    added += self.rewrite(kept, kept.rows.filter(pc.invert(mask)))
            if not removed:
                return 0
            if self.replace(removed, added):
                return count
        raise Conflict(f"other processes change the refused rows of {self._table!r} all the time")

    def rewrite(self, kept: KeptRows, rows: pa.Table) -> Files:
        """Some rows of a data file in a file of their own, which no commit claims yet; none for no rows."""
        if not rows.num_rows:
            return []
        name = partial(new_file_name, schema_id_of(kept.file))
        files = writer.write_files(self._storage, self.folder, name, rows.to_batches(), rows.schema)
        return [replace(file, partition=kept.file.partition) for file in files]

    def replace(self, removed: Sequence[DataFile], added: Sequence[DataFile]) -> bool:
        """Replace data files in one commit; False when another process was first."""
        try:
            self.log.rewrite(removed, added)
        except Conflict:
            self.log.discard(added)
            return False
        return True

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

    def give_files(self) -> Files:
        """The files with the rows so far, which no commit claims yet. The caller gives them to another batch."""
        self._flush()
        files, self._files = self._files, []
        return files

    def take_files(self, files: Sequence[DataFile], tokens: Collection[str]) -> None:
        """Add files that another process has written, with the tokens of their rows."""
        self._files += files
        self._tokens |= set(tokens)

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


def is_from(rows: pa.Table, file: str | None) -> pa.ChunkedArray:
    """Which rows are of this file, named by its whole path or the last part of it."""
    if file is None:
        return pa.chunked_array([pa.array([True] * rows.num_rows, pa.bool_())])
    files = rows.column("file")
    return pc.or_(pc.equal(files, file), pc.ends_with(files, "/" + file.removeprefix("./").lstrip("/")))


def _build_table(rejects: Sequence[Reject]) -> pa.Table:
    at = dt.datetime.now(dt.UTC)
    return pa.Table.from_pylist([{**vars(reject), "at": at} for reject in rejects], schema=SCHEMA)
