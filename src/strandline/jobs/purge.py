"""Erase rows for good.

A delete comes first, so no later read shows the rows. Then the files that hold them are replaced: log files by files of
the same seq without those keys, baseline files in a commit that also gives up every earlier version, files of refused
rows by files without rows of those keys. The next vacuum after the grace time deletes the replaced files, and the
commit files whose statistics may quote a value. The delete is removed too, unless the holder of a pin or a consumer has
not read it yet; then it keeps the key until the log is trimmed.

After a crash: the rows are deleted or not. Another purge erases the rest.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.crash import crash_point
from strandline.errors import Conflict, Corrupt, Invalid
from strandline.model.change import DELETE, PACKED
from strandline.model.keys import hash_keys, vnode_of
from strandline.model.name_map import NameMap
from strandline.progress import Progress, silent
from strandline.retry import until_landed
from strandline.storage import digest
from strandline.storage.delta import RESTED_S
from strandline.storage.open import Storage
from strandline.storage.parquet import reader, writer
from strandline.storage.snapshot import DataFile, new_file_name, schema_id_of
from strandline.tables.log import Log, first_seq
from strandline.tables.merge import vnodes_of
from strandline.tables.pins import new_pin
from strandline.tables.rejects import Rejects
from strandline.tables.store import TableStore

Going = Callable[[pa.RecordBatch], pa.Array]


@dataclass(frozen=True)
class PurgeReport:
    """What a purge erased. `seq` is the seq of the delete. Rows are counted in files, old versions included."""

    table: str
    seq: int
    keys: int
    log_rows: int
    baseline_rows: int
    rejects: int
    is_delete_kept: bool
    vacuum_after: dt.datetime
    """A vacuum after this time deletes the bytes."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class PurgePlan:
    """A purge of `keys` keys; `present` of them are in the table now."""

    table: str
    keys: int
    present: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan_purge(table: TableStore, keys: pa.Table) -> PurgePlan:
    """What a purge would find."""
    names = list(table.definition.key)
    batches = (pa.Table.from_batches([batch]) for batch in table.to_batches(columns=names))
    present = sum(rows.join(keys, names, join_type="left semi").num_rows for rows in batches)
    return PurgePlan(table.name, keys.num_rows, present)


def purge(table: TableStore, keys: pa.Table, *, progress: Progress = silent) -> PurgeReport:
    """Erase the rows of these keys."""
    if not keys.num_rows:
        raise Invalid("no keys were given; nothing was purged", table=table.name)
    with table.pins.held(new_pin("purge", writes_since_s=table.log.storage.now_s())):
        return _erase_rows(table, keys, progress)


def _erase_rows(table: TableStore, keys: pa.Table, progress: Progress) -> PurgeReport:
    definition = table.definition
    seq = table.log.append(keys, definition, DELETE, operation="PURGE").seq
    crash_point("purge.deleted")
    matching = _PurgedKeys(keys, definition.key, definition.names)
    storage = table.log.storage
    is_held = _is_delete_needed(table)
    progress(1, 4, table.name)
    log_rows = until_landed(lambda: _purge_log(table, matching, seq))
    crash_point("purge.log_rewritten")
    progress(2, 4, table.name)
    baseline_rows = until_landed(lambda: _purge_baseline(table, matching, seq))
    crash_point("purge.baseline_rewritten")
    if not is_held:
        # Last, because a fold may need it until here.
        until_landed(lambda: _forget_delete(table, seq))
    progress(3, 4, table.name)
    rejects = Rejects(storage, table.entry)
    refused = until_landed(lambda: _purge_rejects(rejects, matching)) if rejects.state() is not None else 0
    for delta in (table.log.delta, table.baseline.delta, *([rejects.log.delta] if refused else [])):
        delta.checkpoint()
    progress(4, 4, table.name)
    free_s = storage.now_s() + max(definition.settings.grace, RESTED_S)
    free_at = dt.datetime.fromtimestamp(free_s, dt.UTC)
    return PurgeReport(table.name, seq, keys.num_rows, log_rows, baseline_rows, refused, is_held, free_at)


def _is_delete_needed(table: TableStore) -> bool:
    """Whether the holder of a pin, or a consumer, has not read the delete yet. A state that cannot be read may have
    such a consumer."""
    if any(pin.seq is not None for pin in table.pins.live(table.log.storage.now_s())):
        return True
    try:
        return bool(table.readers.marks())
    except Conflict:
        return True


class _PurgedKeys:
    """The purged keys, and which rows have one of them."""

    def __init__(self, keys: pa.Table, names: Sequence[str], in_files: NameMap) -> None:
        self.names = tuple(names)
        self._in_files = in_files
        self._is_text = [pa.types.is_string(keys.schema.field(name).type) for name in names]
        self._hashes = hash_keys([keys.column(name) for name in names])
        self._keys = {tuple(row[name] for name in names) for row in keys.to_pylist()}

    def vnodes(self, count: int) -> set[int]:
        return {vnode_of(hash_, count) for hash_ in self._hashes.to_pylist()}

    def rows(self, batch: pa.RecordBatch) -> pa.Array:
        """For each row, whether it has a purged key."""
        columns = [pa.chunked_array([batch.column(name)]) for name in self.names]
        maybe = pc.is_in(hash_keys(columns), value_set=self._hashes)
        if not pc.any(maybe, min_count=0).as_py():
            return maybe
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array([hit and row in self._keys for hit, row in zip(maybe.to_pylist(), rows, strict=True)])

    def texts(self, batch: pa.RecordBatch) -> pa.Array:
        """For each refused row, whether it has a purged key."""
        keys = {self._canonical_key(key) for key in self._keys}
        texts = batch.column("text").to_pylist()
        names = batch.column("names").to_pylist() if "names" in batch.schema.names else [None] * len(texts)
        parsed = [(_parse_reject(*row), row[0]) for row in zip(texts, names, strict=True)]
        return pa.array([self._is_purged(row, text, keys) for row, text in parsed], pa.bool_())

    def _canonical_key(self, key: Sequence[Any]) -> tuple[str, ...]:
        return tuple(_canonical_text(v, is_text=is_text) for v, is_text in zip(key, self._is_text, strict=True))

    def _is_purged(self, row: Mapping[str, Any] | None, text: str, keys: Collection[Sequence[str]]) -> bool:
        row = None if row is None else {self._in_files.column_of(name) or name: row[name] for name in row}
        if row is not None and all(name in row for name in self.names):
            return self._canonical_key([row[name] for name in self.names]) in keys
        # A row that cannot be parsed is erased when its text has every part of a key as a whole word.
        return any(all(value and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) for value in key) for key in keys)


def _parse_reject(text: str, names: Sequence[str] | None) -> Mapping[str, Any] | None:
    """A refused row's values by column; None when its text cannot be parsed."""
    if names is not None:
        for delimiter in ",\t;|":
            with suppress(csv.Error):
                fields = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
                if len(fields) == len(names):
                    return dict(zip(names, fields, strict=True))
        return None
    with suppress(ValueError):
        row = json.loads(text)
        return row if isinstance(row, dict) else None
    return None


def _canonical_text(value: Any, *, is_text: bool) -> str:
    """A key's value as text. Equal keys have equal texts, however they were written: 7, 007, " 7", 7.0."""
    if value is None:
        return ""
    if is_text and isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        plain = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
        return plain.date().isoformat() if plain.time() == dt.time() else plain.isoformat()
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    text = str(value).strip()
    for read in (int, _whole_number, dt.datetime.fromisoformat):
        with suppress(ValueError, OverflowError):
            return _canonical_text(found, is_text=False) if isinstance(found := read(text), dt.datetime) else str(found)
    return text.lower()


def _whole_number(text: str) -> int:
    number = float(text)
    if not number.is_integer():
        raise ValueError
    return int(number)


def _purge_log(table: TableStore, matching: _PurgedKeys, seq: int) -> int:
    """Rewrite the log files before the delete at `seq`. A row that was written after it is a new one and stays."""
    log = table.log.refresh()
    wanted = matching.vnodes(log.definition.vnodes)
    earlier = [file for at, file in log.by_seq if first_seq(at, file) < seq]
    files = [file for file in earlier if not wanted.isdisjoint(vnodes_of(file, log.definition.vnodes))]

    def is_going(batch: pa.RecordBatch) -> pa.Array:
        rows = matching.rows(batch)
        return pc.and_(rows, pc.less(batch.column(PACKED), seq)) if PACKED in batch.schema.names else rows

    columns = (*matching.names, PACKED)
    removed, added, rows = _rewrite_files(table.log.storage, table.log.folder, files, is_going, columns)
    try:
        table.log.rewrite(removed, added)
    except Conflict:
        table.log.discard(added)
        raise
    return rows


def _purge_baseline(table: TableStore, matching: _PurgedKeys, seq: int) -> int:
    """Rewrite the baseline files of vnodes that are folded to before the delete at `seq`. The other vnodes do not have
    the rows any more, or have new ones that were written after it."""
    merge = table.merge()
    base = merge.baseline
    files = [file for v in matching.vnodes(base.vnodes) if base.marks[v] < seq for file in base.files(v)]
    removed, added, rows = _rewrite_files(table.baseline.storage, base.folder, files, matching.rows, matching.names)
    try:
        table.baseline.commit_purge(base, merge.definition, removed=removed, added=added)
    except Conflict:
        table.baseline.storage.delete(f"{base.folder}/{file.path}" for file in added)
        raise
    return rows


def _forget_delete(table: TableStore, seq: int) -> int:
    log = table.log.refresh()
    own = [file for _, file in log.files(seq - 1, seq)] if seq > log.trimmed_to else []
    packs = [replace(file, within=None) for file in own if file.pack is not None]

    def is_going(batch: pa.RecordBatch) -> pa.Array:
        return pc.equal(batch.column(PACKED), seq)

    removed, added, _ = _rewrite_files(table.log.storage, table.log.folder, packs, is_going, [PACKED])
    removed += [file for file in own if file.pack is None]
    if not removed:
        return 0
    try:
        table.log.rewrite(removed, added)
    except Conflict:
        table.log.discard(added)
        raise
    return len(removed)


def _purge_rejects(rejects: Rejects, matching: _PurgedKeys) -> int:
    log: Log = rejects.log
    files = [file for _, file in log.refresh().by_seq]
    removed, added, rows = _rewrite_files(log.storage, log.folder, files, matching.texts, ("text", "names"))
    if not rows:
        return 0
    try:
        log.rewrite(removed, added)
    except Conflict:
        log.discard(added)
        raise
    return rows


def _rewrite_files(
    storage: Storage, folder: str, files: Sequence[DataFile], going: Going, columns: Sequence[str]
) -> tuple[list[DataFile], list[DataFile], int]:
    """Write the files again without their purged rows: the old files, the new files, the number of rows erased."""
    removed, added, gone = [], [], 0
    for file in files:
        path = f"{folder}/{file.path}"
        try:
            with reader.open_file(storage, path) as opened:
                inside = [name for name in columns if name in opened.schema_arrow.names]
                count = sum(going(batch).true_count for batch in reader.batches(opened, inside))
                if not count:
                    continue
                if damage := digest.find_fault(storage, path, file):
                    raise ValueError(damage)
                removed.append(file)
                gone += count
                name = partial(new_file_name, schema_id_of(file))
                kept = (batch.filter(pc.invert(going(batch))) for batch in reader.batches(opened))
                for new in writer.write_files(storage, folder, name, kept, opened.schema_arrow):
                    added.append(replace(new, partition=file.partition, pack=file.pack))
        except (OSError, ValueError) as error:
            storage.delete(f"{folder}/{new.path}" for new in added)
            raise Corrupt(
                f"{storage.url(path)} cannot be read: {str(error).splitlines()[0]}",
                hint="The rows are deleted but not yet erased. Put the file back from a backup and purge again.",
                path=path,
            ) from error
    return removed, added, gone
