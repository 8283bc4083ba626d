"""Copy a lake while others write it: a backup, or, in the other direction, its restore.

A copy is a lake of its own with the same layout, the same id and the same commit files, byte for byte. The state to
copy is fixed first, all tables at nearly one moment: the catalog, then of each table the baseline, the log and the
refused rows. What the target has already is not copied again. Nothing in the target is deleted: it keeps files for
longer than the source does, also those with rows that were purged since. To be rid of these, make a new backup.

After a crash: a file of the target is there whole or not at all, and nothing names a file that is not there yet.
Data files come before the commit files that claim them; refused rows before the log, as ingest commits them; a
baseline's commit after the log's commits that it folds and before those that trim the log behind it. The catalog
comes last and changes as one: until then a first copy is no lake, and a repeated one has the tables it had, each as
it was or newer. Running the copy again completes it.

One case is weaker. When the source has cleaned away the commit files that lead on from what the target has, baseline
and log of that table jump, one right after the other. After a crash between the two jumps the table refuses reads
(`Corrupt`) until the copy is run again; it never shows wrong rows.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow.parquet as pq

from strandline.baseline import Baseline, BaselineState
from strandline.catalog import FOLDER, Catalog, CatalogState, Entry
from strandline.crash import crash_point
from strandline.errors import Conflict, Corrupt, Invalid, NotFound
from strandline.log import DROPPED, Log, LogState
from strandline.pins import Pins, new_pin
from strandline.progress import Progress, silent
from strandline.storage import FileInfo, Storage, open_storage
from strandline.storage.commits import CommitLog
from strandline.storage.delta import DeltaLog
from strandline.storage.snapshot import Snapshot

if TYPE_CHECKING:
    from strandline.lake import Lake

_WORKERS = 8
_CHUNK_BYTES = 8 << 20
_ENTRY = re.compile(rf"{FOLDER}/\d{{20}}\.json\Z")
_LOG_FILE = re.compile(r"(\d{20})\.(json|checkpoint\.parquet)\Z")
_POINTER = "_delta_log/_last_checkpoint"
# The store's own: what opening a lake proves itself with, and the claims of processes at work.
_PASSING = ("_check/", "pins/")

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class BackupReport:
    """What a copy did: for each table the seq that the target has it at, and how much was new to the target."""

    uri: str
    tables: tuple[tuple[str, int], ...]
    files_copied: int
    bytes_copied: int
    files_skipped: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "uri": self.uri,
            "tables": [{"name": name, "seq": seq} for name, seq in self.tables],
            "files_copied": self.files_copied,
            "bytes_copied": self.bytes_copied,
            "files_skipped": self.files_skipped,
            "seconds": self.seconds,
        }


def backup(
    lake: Lake,
    to: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress = silent,
) -> BackupReport:
    """Copy a lake to `to`, a path or `s3://bucket/prefix` that holds nothing or an earlier backup of this lake.

    `storage_options` are for an S3 target; the lake has its own."""
    return copy_lake(lake.storage, _opened(to, storage_options), progress=progress)


def restore(
    source: str | os.PathLike[str],
    root: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress = silent,
) -> BackupReport:
    """Copy the backup at `source` to `root`, which must hold nothing but what a restore of it left unfinished."""
    origin, target = _opened(source, storage_options), _opened(root, storage_options)
    _existing(Catalog(origin).refresh(), origin)
    if Catalog(target).refresh().exists:
        raise Invalid(
            f"there is a lake at {target.uri}; nothing was restored",
            hint="Restore to a place that is empty.",
            path=target.uri,
        )
    return copy_lake(origin, target, progress=progress)


def copy_lake(source: Storage, target: Storage, *, progress: Progress = silent) -> BackupReport:
    """Bring the target to the state that the source has now.

    The target holds nothing, or an earlier copy of the same lake: another lake or other files are `Invalid`, and one
    that was written to is a `Conflict`. A file that the source itself lacks is `Corrupt`. All this is looked at
    before anything is written. `progress` is told bytes; it is called from one thread at a time."""
    started_s = time.monotonic()
    _refuse_overlap(source, target)
    catalog = Catalog(source)
    state = _existing(catalog.refresh(), source)
    with ExitStack() as held, ThreadPoolExecutor(_WORKERS) as pool:
        run = _Run(source, target, pool, progress)
        visible = _visible(run, state)
        state, plans = _plans(run, catalog, visible, held)
        entries = _entries_to_copy(run, state.version)
        run.whole_bytes = sum(plan.bytes for plan in plans) + sum(len(data) for _, data in entries)
        target.check_put_new()
        for plan in plans:
            _copy_table(run, plan)
        _copy_catalog(run, entries)
    return BackupReport(
        target.uri,
        tuple(sorted((plan.entry.name, plan.log.version) for plan in plans)),
        run.files_copied,
        run.bytes_copied,
        run.files_skipped,
        round(time.monotonic() - started_s, 3),
    )


class _Run:
    """One copy under way: its two sides, its workers, and the count of what they did."""

    def __init__(self, source: Storage, target: Storage, pool: ThreadPoolExecutor, progress: Progress) -> None:
        self.source = source
        self.target = target
        self.whole_bytes = 0
        self.files_copied = self.bytes_copied = self.files_skipped = 0
        self._pool = pool
        self._progress = progress
        self._done_bytes = 0
        self._lock = threading.Lock()

    def each(self, work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """The results of `work`, by all workers; the first failure cancels what has not begun."""
        return list(self._pool.map(work, items))

    def advance(self, count: int, what: str) -> None:
        with self._lock:
            self._done_bytes += count
            # A checkpoint may have grown since it was listed.
            self._progress(min(self._done_bytes, self.whole_bytes), self.whole_bytes, what)

    def copied(self, size: int) -> None:
        with self._lock:
            self.files_copied += 1
            self.bytes_copied += size

    def stream(self, file: _DataFile, what: str) -> None:
        """Copy a file of any size. Data that are gone by now were of a state older than the fixed one, unless live."""
        path, size = file.info.path, 0
        try:
            with self.source.input(path) as opened, self.target.output(path) as output:
                while chunk := opened.read(_CHUNK_BYTES):
                    output.write(chunk)
                    size += len(chunk)
                    self.advance(len(chunk), what)
                if file.is_data and size != file.info.size:
                    raise _corrupt(self.source, path, what, f"has {size} bytes, not {file.info.size}")
        except FileNotFoundError as error:
            if self.source.exists(path):
                raise
            if not file.is_data:
                raise _cleaned(self.source, path) from error
            if file.is_live:
                raise _corrupt(self.source, path, what, "is gone") from error
            self.advance(file.info.size - size, what)
        else:
            self.copied(size)

    def put(self, path: str, what: str, data: bytes | None = None) -> None:
        """Copy a commit file; should it be there by now, it must be the same."""
        if data is None:
            data = self.read(path)
        if not self.target.put_new(path, data) and self.target.read(path) != data:
            raise _diverged(self.target, path)
        self.copied(len(data))
        self.advance(len(data), what)

    def read(self, path: str) -> bytes:
        """A file of the source that was there a moment ago."""
        try:
            return self.source.read(path)
        except FileNotFoundError as error:
            raise _cleaned(self.source, path) from error

    def read_same(self, path: str) -> bytes:
        """A commit file that both sides must have alike."""
        try:
            data = self.source.read(path)
        except FileNotFoundError as error:
            raise _diverged(self.target, path) from error
        if self.target.read(path) != data:
            raise _diverged(self.target, path)
        return data


# --- what to copy ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _DataFile:
    """A file to stream: data, or a checkpoint, which may be written anew at any time."""

    info: FileInfo
    is_live: bool
    is_data: bool = True


@dataclass(frozen=True)
class _Commit:
    """A commit file. `upto` is the highest seq that the baseline rests on from this commit on."""

    info: FileInfo
    version: int
    upto: int


@dataclass(frozen=True)
class _Part:
    """One Delta table of a table, up to a fixed version: what of it the target lacks.

    `is_gapless`: with these commits a reader of the target gets from where it is to `version` one by one."""

    folder: str
    version: int
    data: Sequence[_DataFile]
    checkpoints: Sequence[_DataFile]
    commits: Sequence[_Commit]
    pointer: bytes | None
    is_gapless: bool

    @property
    def paths(self) -> list[str]:
        """The commit files, in order."""
        return [commit.info.path for commit in self.commits]

    @property
    def bytes(self) -> int:
        files = [*(file.info for file in (*self.data, *self.checkpoints)), *(commit.info for commit in self.commits)]
        return sum(info.size for info in files) + len(self.pointer or b"")


@dataclass(frozen=True)
class _Plan:
    """A table. `is_visible`: the target's catalog names it already, so that what is copied shows at once."""

    entry: Entry
    is_dropped: bool
    is_visible: bool
    log: _Part
    baseline: _Part
    rejects: _Part | None

    @property
    def parts(self) -> list[_Part]:
        return [self.log, self.baseline, *([self.rejects] if self.rejects else [])]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def in_order(self) -> tuple[list[str | _Part], list[str | _Part]]:
        """The commit files of log and baseline, each part's followed by the part, for its pointer: up to the end of
        the log, and the rest.

        Each of the baseline's comes as soon as the log has what it folds. So a commit that trims the log, or takes
        a purge's delete out of it, comes after the baseline's commit that the source made before it. Where commits
        are missing that is not known, and the baseline comes first: readers refuse one that is ahead of its log,
        while a log that is ahead could show purged rows. Commits of the log behind a gap are not read before its
        pointer has changed."""
        if not self.log.is_gapless:
            return [*self.log.paths, *self.baseline.paths, self.baseline, self.log], []
        if not self.baseline.is_gapless:
            return [*self.baseline.paths, self.baseline, *self.log.paths, self.log], []
        is_early = [commit.upto < self.log.version for commit in self.baseline.commits]
        early = [(commit.version, 0, commit.info.path) for commit in self.log.commits]
        early += [(c.upto, 1, c.info.path) for c, is_ in zip(self.baseline.commits, is_early, strict=True) if is_]
        late = self.baseline.paths[sum(is_early) :]
        return [*(path for *_, path in sorted(early)), self.log], [*late, self.baseline]


def _plans(run: _Run, catalog: Catalog, visible: Collection[str], held: ExitStack) -> tuple[CatalogState, list[_Plan]]:
    """The fixed state of the catalog and of each of its tables."""
    while True:
        state = catalog.refresh()
        run.files_skipped = 0
        plans = [_plan(run, entry, entry.generation in visible, held) for entry in state.tables.values()]
        live = {entry.generation for entry in catalog.refresh().tables.values()}
        if all(plan.entry.generation in live for plan in plans if plan.is_dropped):
            return state, plans
        # Dropped since we read the catalog: the copy would name a table that no longer takes writes.


def _plan(run: _Run, entry: Entry, is_visible: bool, held: ExitStack) -> _Plan:
    run.advance(0, entry.name)
    baseline, log, rejects = _fixed(run.source, entry)
    # While the copy runs, cleaning leaves alone every version that there is now.
    pin = new_pin("backup", log_version=0, baseline_version=0)
    held.enter_context(Pins(run.source, entry.generation).held(pin))
    # Listed after the state is fixed: whatever that state needs is there.
    here = {info.path: info for info in run.source.list(entry.folder)}
    there = {info.path: info for info in run.target.list(entry.folder)}

    def part(folder: str, snapshot: Snapshot) -> _Part:
        return _part(run, entry.name, f"{entry.folder}/{folder}", snapshot, here, there)

    return _Plan(
        entry,
        DROPPED in log.snapshot.configuration,
        is_visible,
        part("log", log.snapshot),
        part("baseline", baseline.snapshot),
        None if rejects is None else part("rejects", rejects),
    )


def _fixed(source: Storage, entry: Entry) -> tuple[BaselineState, LogState, Snapshot | None]:
    """The baseline, then the log, then the refused rows: so none holds less than an earlier one rests on."""
    log = Log(source, f"{entry.folder}/log")
    try:
        baseline = Baseline(source, f"{entry.folder}/baseline", log.refresh().definition.vnodes)
        folded, changes = baseline.refresh(), log.refresh()
        while min(folded.marks) < changes.trimmed_to:
            # Folded and trimmed in between: there is a newer baseline.
            before, folded = folded, baseline.refresh()
            if folded.version == before.version:
                what = f"is trimmed to seq {changes.trimmed_to}, but the baseline holds only {min(folded.marks)}"
                raise _corrupt(source, log.folder, entry.name, what)
            changes = log.refresh()
        if max(folded.marks) > changes.head:
            what = f"ends at seq {changes.head}, but the baseline is folded to {max(folded.marks)}"
            raise _corrupt(source, log.folder, entry.name, what)
    except NotFound as error:
        raise _corrupt(source, entry.folder, entry.name, f"is in the catalog, but: {error.message}") from error
    try:
        rejects = DeltaLog(source, f"{entry.folder}/rejects").refresh()
    except NotFound:
        rejects = None
    return folded, changes, rejects


def _part(
    run: _Run,
    table: str,
    folder: str,
    snapshot: Snapshot,
    here: Mapping[str, FileInfo],
    there: Mapping[str, FileInfo],
) -> _Part:
    """Compare one Delta table on both sides. Every commit file that both have is read on both and must be alike."""
    commits, checkpoints = _unbroken(*_log_files(here, folder), snapshot.version)
    theirs, _ = _log_files(there, folder)
    # The target may be ahead of the state fixed here, by another copy at work, but not of the source.
    run.each(run.read_same, [info.path for version, info in theirs.items() if version > snapshot.version])

    def read(version: int) -> tuple[set[str], int]:
        """The files that a commit adds, and the highest seq that it says is folded."""
        path = commits[version].path
        actions = _actions(run.read_same(path) if path in there else run.read(path), run.source, path, table)
        seqs = [a["txn"]["version"] for a in actions if "txn" in a and a["txn"]["appId"].startswith("fold/")]
        return {action["add"]["path"] for action in actions if "add" in action}, max(seqs, default=0)

    versions = sorted(commits)
    needed = set(snapshot.files)
    missing = []
    upto = 0
    for version, (added, seq) in zip(versions, run.each(read, versions), strict=True):
        needed |= added
        upto = max(upto, seq)
        if commits[version].path not in there:
            missing.append(_Commit(commits[version], version, upto))
    if 0 not in commits:
        # What the first checkpoint names was added by commits that are gone.
        first = DeltaLog(run.source, folder).checkpoint_at(min(checkpoints, default=-1))
        if first is None:
            raise _cleaned(run.source, folder)
        needed |= set(first.files)
    for file in snapshot.files.values():
        info = here.get(f"{folder}/{file.path}")
        if info is None or info.size != file.size:
            what = "is missing" if info is None else f"has {info.size} bytes; its commit says {file.size}"
            raise _corrupt(run.source, f"{folder}/{file.path}", table, what)

    def lacking(infos: Iterable[FileInfo]) -> list[FileInfo]:
        """Names are not used twice, so what has the same size is the same."""
        return [info for info in infos if info.path not in there or there[info.path].size != info.size]

    # A file of an older state may have been cleaned away; then that state can no longer be read in the source.
    data = [here[path] for name in sorted(needed) if (path := f"{folder}/{name}") in here]
    streamed = [_DataFile(i, i.path.removeprefix(f"{folder}/") in snapshot.files) for i in lacking(data)]
    new_checkpoints = [_DataFile(info, False, is_data=False) for info in lacking(checkpoints.values())]
    pointer = _pointer(run.source, folder, checkpoints)
    old_pointer = _read_or_nothing(run.target, f"{folder}/{_POINTER}") if f"{folder}/{_POINTER}" in there else b""
    run.files_skipped += len(data) + len(checkpoints) + len(commits)
    run.files_skipped -= len(streamed) + len(new_checkpoints) + len(missing)
    after = range(_pointed(old_pointer) + 1, snapshot.version + 1)
    return _Part(
        folder,
        snapshot.version,
        streamed,
        new_checkpoints,
        missing,
        pointer if pointer is not None and _pointed(old_pointer) < _pointed(pointer) else None,
        is_gapless=all(version in commits or version in theirs for version in after),
    )


def _log_files(listing: Mapping[str, FileInfo], folder: str) -> tuple[dict[int, FileInfo], dict[int, FileInfo]]:
    """The commit files and the checkpoints of a Delta table, by version."""
    commits: dict[int, FileInfo] = {}
    checkpoints: dict[int, FileInfo] = {}
    start = f"{folder}/_delta_log/"
    for path, info in listing.items():
        if path.startswith(start) and (found := _LOG_FILE.fullmatch(path, len(start))):
            (commits if found.group(2) == "json" else checkpoints)[int(found.group(1))] = info
    return commits, checkpoints


def _unbroken(
    commits: Mapping[int, FileInfo], checkpoints: Mapping[int, FileInfo], version: int
) -> tuple[dict[int, FileInfo], dict[int, FileInfo]]:
    """The commits that lead to `version` without a gap, and the checkpoints from which they lead there.

    What lies before a gap leads nowhere: leftovers of cleaning, or, in a copy, what it had before it jumped."""
    first = version + 1
    while first - 1 in commits:
        first -= 1
    return (
        {at: commits[at] for at in range(first, version + 1)},
        {at: info for at, info in checkpoints.items() if first - 1 <= at <= version},
    )


def _pointer(source: Storage, folder: str, checkpoints: Mapping[int, FileInfo]) -> bytes | None:
    """The source's pointer to a checkpoint; one to the last that is copied, if it points behind the fixed state."""
    if not checkpoints:
        return None
    data = _read_or_nothing(source, f"{folder}/{_POINTER}")
    if _pointed(data) in checkpoints:
        return data
    last = max(checkpoints)
    with source.input(checkpoints[last].path) as file:
        return json.dumps({"version": last, "size": pq.read_metadata(file).num_rows}).encode()


def _pointed(data: bytes) -> int:
    try:
        return int(json.loads(data)["version"])
    except (ValueError, KeyError, TypeError):
        return -1


def _read_or_nothing(storage: Storage, path: str) -> bytes:
    try:
        return storage.read(path)
    except FileNotFoundError:
        return b""


def _actions(data: bytes, storage: Storage, path: str, table: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in data.splitlines() if line.strip()]
    except ValueError as error:
        raise _corrupt(storage, path, table, f"is not JSON lines: {error}") from error


# --- copying ---------------------------------------------------------------------------------------------------


def _copy_table(run: _Run, plan: _Plan) -> None:
    def stream(file: _DataFile) -> None:
        run.stream(file, plan.entry.name)

    def put(steps: Sequence[str | _Part]) -> None:
        if not plan.is_visible:
            # Nobody looks yet, so the order does not matter.
            run.each(lambda path: run.put(path, plan.entry.name), [step for step in steps if isinstance(step, str)])
            steps = [step for step in steps if not isinstance(step, str)]
        for step in steps:
            if isinstance(step, str):
                run.put(step, plan.entry.name)
            else:
                _point(run, step, plan.entry.name)

    run.each(stream, [file for part in plan.parts for file in part.data])
    crash_point("backup.data_copied")
    # A checkpoint counts for readers here when the pointer names it, for others at once: its data are there.
    run.each(stream, [file for part in plan.parts for file in part.checkpoints])
    if plan.rejects:
        put([*plan.rejects.paths, plan.rejects])
    early, late = plan.in_order()
    put(early)
    crash_point("backup.log_copied")
    put(late)
    crash_point("backup.table_copied")


def _point(run: _Run, part: _Part, what: str) -> None:
    """Write the pointer to the last checkpoint; the commits after that are there."""
    if part.pointer is not None:
        with run.target.output(f"{part.folder}/{_POINTER}") as output:
            output.write(part.pointer)
        run.copied(len(part.pointer))
        run.advance(len(part.pointer), what)


def _entries_to_copy(run: _Run, upto: int) -> list[tuple[str, bytes]]:
    """The catalog's entries that the target lacks, in order."""
    there = {info.path for info in run.target.list(FOLDER)}
    commits = CommitLog(run.source, FOLDER)
    paths = [commits.path(version) for version in range(upto + 1)]
    missing = [path for path in paths if path not in there]
    run.files_skipped += len(paths) - len(missing)
    return list(zip(missing, run.each(run.read, missing), strict=True))


def _copy_catalog(run: _Run, entries: Sequence[tuple[str, bytes]]) -> None:
    """The first entry that is missing comes last: readers stop before it, so all of them appear at once.

    One by one from the first on, a table that a later entry drops would show without its files."""
    run.each(lambda entry: run.put(entry[0], FOLDER, entry[1]), entries[1:])
    for path, data in entries[:1]:
        run.put(path, FOLDER, data)


# --- what is refused -------------------------------------------------------------------------------------------


def _visible(run: _Run, state: CatalogState) -> set[str]:
    """The generations that the target shows as tables; refuses a target that is no copy of this lake."""
    theirs = Catalog(run.target).refresh()
    if theirs.exists and theirs.lake_id != state.lake_id:
        raise Invalid(
            f"{run.target.uri} holds another lake, {theirs.lake_id}; nothing was copied",
            hint="Choose a target that is empty, or that holds a copy of this lake.",
            path=run.target.uri,
        )
    if not theirs.exists:
        _refuse_strangers(run, state)
    entries = [info.path for info in run.target.list(FOLDER) if _ENTRY.match(info.path)]
    run.each(run.read_same, entries)
    return {entry.generation for entry in theirs.tables.values()}


def _refuse_strangers(run: _Run, state: CatalogState) -> None:
    """Without a catalog the target holds only what an unfinished copy left: files of tables that this lake has had."""
    catalog = CommitLog(run.source, FOLDER)
    actions = run.each(lambda version: (catalog.read(version) or [{}])[0], range(state.version + 1))
    folders = tuple(f"{action['folder']}/" for action in actions if "create" in action)
    for info in run.target.list(""):
        if not (info.path.startswith((*folders, *_PASSING)) or _ENTRY.match(info.path)):
            raise Invalid(
                f"{run.target.uri} holds files and no copy of this lake, such as {info.path}; nothing was copied",
                hint="Choose a target that is empty, or that holds a copy of this lake.",
                path=info.path,
            )


def _refuse_overlap(source: Storage, target: Storage) -> None:
    (store, origin), (other, copy) = _place(source), _place(target)
    if store == other and (copy.startswith(origin) or origin.startswith(copy)):
        raise Invalid(
            f"{target.uri} and {source.uri} lie in each other; nothing was copied",
            hint="Choose a target outside the lake.",
            path=target.uri,
        )


def _place(storage: Storage) -> tuple[str, str]:
    """The store and the place in it, in a form that tells whether one place is inside another."""
    root = os.path.realpath(storage.uri) if storage.is_local else storage.uri
    return storage.delta_options.get("aws_endpoint", ""), f"{root.rstrip('/')}/"


def _existing(state: CatalogState, storage: Storage) -> CatalogState:
    if not state.exists:
        raise NotFound(f"no lake at {storage.uri}", path=storage.uri)
    return state


def _opened(uri: str | os.PathLike[str], options: Mapping[str, str] | None) -> Storage:
    """A side of the copy; S3 settings are for the side that is on S3."""
    address = os.fspath(uri)
    return open_storage(address, options if address.startswith("s3://") else None)


def _diverged(target: Storage, path: str) -> Conflict:
    return Conflict(
        f"{target.url(path)} is not as in the source: one of the two was written to apart from the other",
        hint="Choose a target that is empty, or that holds an unchanged copy of this lake.",
        path=path,
    )


def _cleaned(source: Storage, path: str) -> Conflict:
    return Conflict(
        f"{source.url(path)} was cleaned away while the lake was copied",
        hint="Copy it again: what is in the target already stays.",
        path=path,
    )


def _corrupt(storage: Storage, path: str, table: str, what: str) -> Corrupt:
    return Corrupt(
        f"{storage.url(path)} {what}; this state of the table was not copied",
        hint=f"Look at the lake: strandline --lake {storage.uri} doctor",
        table=table,
        path=path,
    )
