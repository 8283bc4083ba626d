"""Keep a table small: trim its log, let old baseline versions go, delete the files that nothing needs.

How far back a table stays readable is a seq, the lowest of what its holders ask for: the setting `keep`, every live
pin, every consumer. The newest baseline version that holds nothing after that seq stays, and the log from its marks
on. First this is said, in commits of baseline (`kept_from`) and log (`trim`), so that a reader of something older
gets `NotRetained`; the files go when it has been so for the grace time, whoever still read them by then.

A file that no commit claims is given up by a commit first (`doomed`): a writer that was asleep and wakes to claim it
finds that commit in its way. So no commit ever claims a deleted file, whatever the clocks say.

After a crash: what was said holds, what was not deleted is found again by the next run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from strandline.crash import crash_point
from strandline.pins import Pin, least
from strandline.progress import Progress, silent
from strandline.rejects import Rejects
from strandline.storage import FileInfo, Storage
from strandline.storage.delta import DeltaLog, Draft, Snapshot

if TYPE_CHECKING:
    from strandline.table import Table

_CHECKPOINT_AFTER = 10
_AT_ONCE = 100


@dataclass(frozen=True)
class Hold:
    """Who keeps a table from being trimmed past a seq."""

    seq: int
    who: str


@dataclass(frozen=True)
class VacuumReport:
    """What a vacuum did, or would do. `held_by` is who keeps the table from being trimmed further."""

    table: str
    trimmed_to: int
    trimmed_files: int
    baseline_from: int
    held_by: Hold
    deleted_files: int
    deleted_bytes: int
    is_dry_run: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            **{name: value for name, value in self.__dict__.items() if name != "held_by"},
            "held_by": {"seq": self.held_by.seq, "who": self.held_by.who},
        }


@dataclass
class Sweep:
    """The files of one Delta table that nothing needs. `doomed` are those that no commit has ever claimed."""

    delta: DeltaLog
    unneeded: list[FileInfo] = field(default_factory=list)
    doomed: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(info.size for info in self.unneeded)


def holds(table: Table, *, now_s: float, keep_s: float, pins: Sequence[Pin]) -> list[Hold]:
    """Everyone who needs the table's past, the one furthest back first."""
    head = table.log.refresh().head
    kept = head if keep_s <= 0 else table.log.delta.version_at((now_s - keep_s) * 1000)
    found = [Hold(table.log.refresh().trimmed_to if kept is None else kept, "the setting keep")]
    found += [Hold(pin.seq, f"pin {pin.name} ({pin.why}, {pin.holder})") for pin in pins if pin.seq is not None]
    return sorted(found, key=lambda hold: hold.seq)


def vacuum(
    table: Table,
    *,
    grace_s: float | None = None,
    keep_s: float | None = None,
    dry_run: bool = False,
    progress: Progress = silent,
) -> VacuumReport:
    """Trim the log and delete what nothing needs; `grace_s` and `keep_s` stand in for the table's settings."""
    storage, care = table.log.storage, table.definition.care
    grace_s = care.grace if grace_s is None else grace_s
    keep_s = care.keep if keep_s is None else keep_s
    for delta in _deltas(table):
        delta.check_unbroken()
    now_s = storage.now_s()
    pins = table.pins.live(now_s)
    hold = holds(table, now_s=now_s, keep_s=keep_s, pins=pins)[0]
    baseline = table.baseline.refresh()
    kept = [(v, marks) for v, marks in table.baseline.versions(baseline) if v >= baseline.kept_from]
    chosen = max(((v, m) for v, m in kept if max(m) <= hold.seq), default=(kept[0] if kept else (0, (0,))))
    # Of versions with the same folds the first: nothing is gained by giving it up.
    version, marks = next(((v, m) for v, m in kept if m == chosen[1]), chosen)
    log = table.log.refresh()
    trim_to = min(*marks, hold.seq)
    trimmed = [file for seq, file in log.by_seq if seq <= trim_to]
    if not dry_run:
        table.baseline.keep_from(version)
        crash_point("vacuum.announced")
        if trimmed:
            table.log.trim(trim_to)
        crash_point("vacuum.trimmed")
        _checkpoint(table.baseline.delta)
        _checkpoint(table.log.delta)
    parts = _parts(table, pins, now_s, grace_s)
    writing_s = min((pin.writes_since_s for pin in pins if pin.writes_since_s is not None), default=now_s)
    before_s = min(now_s - grace_s, writing_s) if grace_s > 0 or writing_s < now_s else float("inf")
    sweeps = [sweep(part.delta, part.floor, before_s=before_s) for part in parts]
    report = VacuumReport(
        table.name,
        max(log.trimmed_to, trim_to if trimmed else 0),
        len(trimmed),
        max(version, baseline.kept_from),
        hold,
        sum(len(found.unneeded) for found in sweeps),
        sum(found.bytes for found in sweeps),
        dry_run,
    )
    if not dry_run:
        done = 0
        for found in sweeps:
            for count in _deleted(storage, found):
                done += count
                progress(done, report.deleted_files, table.name)
        for part in parts:
            # The log's commit files also tell its history and times, for as long as they can be asked for.
            floor = min(part.floor, hold.seq) if part.delta is table.log.delta else part.floor
            storage.delete(info.path for info in part.delta.before(floor, part.floor))
            crash_point("vacuum.cleaned")
    return report


def _checkpoint(delta: DeltaLog) -> None:
    """A checkpoint, if some commits lie behind the last one: commit files before it can then be cleaned away."""
    if delta.refresh().version - max(delta.log_files()[1], default=0) >= _CHECKPOINT_AFTER:
        delta.checkpoint()


def sweep(delta: DeltaLog, floor: int, *, before_s: float) -> Sweep:
    """What no version from `floor` on needs and what is older than `before_s`."""
    # The listing first: what is claimed after it is not in it, or is found among the commits.
    listing = list(delta.storage.list(delta.folder))
    delta.check_unbroken(floor)
    head = delta.refresh().version
    needed = set(delta.at(floor).files)
    known: set[str] = set()
    versions = sorted(v for v in delta.log_files()[0] if v <= head)
    with ThreadPoolExecutor(8) as pool:
        for version, actions in zip(versions, pool.map(delta.actions, versions), strict=True):
            for action in actions or ():
                if "add" in action and version > floor:
                    needed.add(action["add"]["path"])
                known.update(action[kind]["path"] for kind in ("add", "remove") if kind in action)
    found = Sweep(delta)
    for info in listing:
        name = info.path.removeprefix(f"{delta.folder}/")
        if name.startswith("_delta_log/") or not is_ours(name) or name in needed or info.modified_s >= before_s:
            continue
        found.unneeded.append(info)
        if name not in known:
            found.doomed.append(name)
    return found


def is_ours(name: str) -> bool:
    """Whether a file's name is one that Strandline gives to data files."""
    stem, _, rest = name.partition("-")
    is_numbered = stem == "spool" or (stem.isdigit() and len(stem) >= 4)
    return is_numbered and len(rest) == 40 and rest.endswith(".parquet") and "/" not in name


def _deleted(storage: Storage, found: Sweep) -> Iterable[int]:
    """Delete in portions; yields how many each had. What was never claimed is given up by a commit first."""
    doomed = set(found.doomed)

    def build(snapshot: Snapshot, now_ms: int) -> Draft | None:
        doomed.difference_update(snapshot.files)
        return Draft(doomed=sorted(doomed)) if doomed else None

    if doomed:
        found.delta.commit("VACUUM", build)
        crash_point("vacuum.doomed")
    going = [
        info.path
        for info in found.unneeded
        if (name := info.path.removeprefix(f"{found.delta.folder}/")) in doomed or name not in set(found.doomed)
    ]
    for start in range(0, len(going), _AT_ONCE):
        storage.delete(going[start : start + _AT_ONCE])
        crash_point("vacuum.some_deleted")
        yield len(going[start : start + _AT_ONCE])


@dataclass(frozen=True)
class Part:
    """One of a table's Delta tables, and its oldest version of which files may still be read."""

    delta: DeltaLog
    floor: int


def _parts(table: Table, pins: Sequence[Pin], now_s: float, grace_s: float) -> list[Part]:
    log, baseline = table.log.delta, table.baseline.delta
    then = _current_at(baseline, now_s, grace_s)
    # Versions that were given up only since then may still be read by someone who came before.
    announced = min(table.baseline.at(then).kept_from, then)
    parts = [
        _part(log, _current_at(log, now_s, grace_s), [pin.log_version for pin in pins]),
        _part(baseline, announced, [pin.baseline_version for pin in pins]),
    ]
    parts += [_part(delta, _current_at(delta, now_s, grace_s), ()) for delta in _deltas(table)[2:]]
    return parts


def _deltas(table: Table) -> list[DeltaLog]:
    """The table's Delta tables: log, baseline, and refused rows if there are any."""
    rejects = Rejects(table.log.storage, table.entry)
    return [table.log.delta, table.baseline.delta, *([rejects.log.delta] if rejects.state() is not None else [])]


def _part(delta: DeltaLog, floor: int, pinned: Sequence[int | None]) -> Part:
    return Part(delta, max(least(pinned, floor), delta.oldest()))


def _current_at(delta: DeltaLog, now_s: float, grace_s: float) -> int:
    """The version that was current a grace time ago: someone may have opened it just then."""
    if grace_s <= 0:
        return delta.refresh().version
    found = delta.version_at((now_s - grace_s) * 1000)
    return delta.oldest() if found is None else max(found, delta.oldest())
