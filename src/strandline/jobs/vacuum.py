"""Keep a table small: trim its log, let old baseline versions go, delete the files that nothing needs.

How far back a table stays readable is a seq, the lowest of what its holders ask for (`holds`): the setting `keep`,
every live pin and the mark of every living consumer. The newest baseline version that holds nothing after that seq
stays, and the log from its marks on. First this is said, in commits of baseline (`kept_from`) and log (`trim`), so
that a reader of something older gets `NotRetained`; the files go when it has been so for the grace time.

A file that no commit claims is given up by a commit first (`doomed`): a writer that was asleep and wakes to claim it
finds that commit in its way. So no commit ever claims a deleted file, whatever the clocks say.

After a crash: what was said holds, what was not deleted is found again by the next run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from strandline.crash import crash_point
from strandline.errors import Corrupt, NotFound
from strandline.progress import Progress, silent
from strandline.storage.commits import Action
from strandline.storage.delta import DeltaLog
from strandline.storage.open import FileInfo, Storage
from strandline.storage.snapshot import PURGE, Draft, Snapshot
from strandline.tables.baseline import BaselineState
from strandline.tables.merge import TableAt, vnodes_of
from strandline.tables.pins import Pin, least
from strandline.tables.rejects import Rejects
from strandline.tables.store import TableStore

_AT_ONCE = 100


@dataclass(frozen=True)
class TrimBlocker:
    """Who keeps a table from being trimmed past a seq."""

    seq: int
    who: str


@dataclass(frozen=True)
class VacuumReport:
    """What a vacuum did, or would do. `held_by` is who keeps the table from being trimmed further, `oldest` the first
    seq that can be read; `waiting_files` are needed by nobody, but not yet for the grace time. `is_held`: the log has
    changes that stay because of `held_by`. `is_unfolded`: more could be trimmed if it were folded."""

    table: str
    trimmed_to: int
    trimmed_files: int
    baseline_from: int
    held_by: TrimBlocker
    deleted_files: int
    deleted_bytes: int
    commit_files: int
    waiting_files: int
    waiting_bytes: int
    oldest: int
    is_held: bool
    is_unfolded: bool
    grace_s: float
    keep_s: float
    is_dry_run: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Sweep:
    """The files of one Delta table that nothing needs, and those that wait for it to have been so for long enough.
    `doomed` are those that no commit has ever claimed."""

    delta: DeltaLog
    unneeded: list[FileInfo] = field(default_factory=list)
    waiting: list[FileInfo] = field(default_factory=list)
    doomed: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(info.size for info in self.unneeded)


@dataclass(frozen=True)
class Decision:
    """How much of the past goes: baseline versions before `version`, changes up to `trim_to`; who keeps the rest."""

    version: int
    trim_to: int
    hold: TrimBlocker


def holds(table: TableStore, *, now_s: float, keep_s: float) -> list[TrimBlocker]:
    """Everyone who needs the table's past, the one furthest back first."""
    log = table.log.refresh()
    kept = log.head if keep_s <= 0 else table.log.delta.version_before(now_s - keep_s)
    found = [TrimBlocker(log.trimmed_to if kept is None else kept, "the setting keep")]
    for pin in table.pins.live(now_s):
        if pin.seq is not None:
            found.append(TrimBlocker(pin.seq, f"pin {pin.name} ({pin.why}, {pin.holder})"))
    found += [TrimBlocker(seq, f"sink {name}") for seq, name in table.readers.marks()]
    return sorted(found, key=lambda hold: hold.seq)


def _decide(table: TableStore, baseline: BaselineState, now_s: float, keep_s: float) -> Decision:
    hold = holds(table, now_s=now_s, keep_s=keep_s)[0]
    kept = [(v, marks) for v, marks in table.baseline.versions(baseline) if v >= baseline.kept_from]
    wanted = [(v, m) for v, m in kept if max(m) <= hold.seq]
    if not wanted:
        # A version that the hold wants may be lost.
        table.baseline.check_kept()
    chosen = max(wanted, default=(kept[0] if kept else (0, (0,))))
    # Of versions with the same folds the first: nothing is gained by giving it up.
    version, marks = next(((v, m) for v, m in kept if m == chosen[1]), chosen)
    return Decision(version, min(*marks, hold.seq), hold)


def vacuum(
    table: TableStore,
    *,
    grace_s: float | None = None,
    keep_s: float | None = None,
    dry_run: bool = False,
    progress: Progress = silent,
) -> VacuumReport:
    """Trim the log and delete what nothing needs; `grace_s` and `keep_s` stand in for the table's settings."""
    storage, settings = table.log.storage, table.definition.settings
    grace_s = settings.grace if grace_s is None else grace_s
    keep_s = settings.keep if keep_s is None else keep_s
    for delta in _deltas(table):
        delta.check_unbroken()
    now_s = storage.now_s()
    merge = table.merge()
    baseline, log = merge.baseline, merge.log
    decided = _decide(table, baseline, now_s, keep_s)
    trimmed = [file for seq, file in log.by_seq if seq <= decided.trim_to]
    if not dry_run:
        if any(delta.chain.has_gap() for delta in _deltas(table)):
            # Nothing is said about a table of which something is lost that is wanted.
            for part in _parts(table, table.pins.live(now_s), now_s, grace_s, decided.version):
                _unbroken_from(part)
        decided = _announce(table, now_s, keep_s)
        _checkpoint(table.baseline.delta)
        _checkpoint(table.log.delta)
    pins = table.pins.live(now_s)
    parts = _parts(table, pins, now_s, grace_s, decided.version)
    writing_s = min((pin.writes_since_s for pin in pins if pin.writes_since_s is not None), default=now_s)
    # A file may bear a time slightly before the moment at which its writer looked at the clock.
    before_s = min(now_s - grace_s, writing_s - 1) if grace_s > 0 or writing_s < now_s else float("inf")
    sweeps = [sweep(part, before_s=before_s) for part in parts]
    # The log's commit files also tell its history and times, for as long as they can be asked for.
    floors = [min(part.floor, decided.hold.seq) if part.delta is table.log.delta else part.floor for part in parts]
    stale: list[FileInfo] = []
    for part, low in zip(parts, floors, strict=True):
        base = part.delta.base_checkpoint(low, part.floor)
        old = part.delta.files_before(base) if base is not None else []
        # Nothing of a chain goes that does not hold: what is damaged could then no longer be found out.
        if base is None or not old or not part.commits:
            continue
        stale += old
        if not dry_run:
            part.delta.chain.checkpoints.set_alone(base)
    if dry_run and grace_s <= 0:
        # What would be trimmed would also be deleted at once.
        paths = {f"{log.folder}/{file.path}" for file in trimmed}
        sweeps[0].unneeded += [info for info in storage.list(log.folder) if info.path in paths]
    report = VacuumReport(
        table.name,
        max(log.trimmed_to, decided.trim_to if trimmed else 0),
        len(trimmed),
        max(decided.version, baseline.kept_from),
        decided.hold,
        sum(len(found.unneeded) for found in sweeps),
        sum(found.bytes for found in sweeps),
        len(stale),
        sum(len(found.waiting) for found in sweeps),
        sum(info.size for found in sweeps for info in found.waiting),
        table.oldest,
        any(seq > decided.hold.seq for seq, _ in log.by_seq),
        min(baseline.marks) < decided.hold.seq and _has_unfolded(merge),
        grace_s,
        keep_s,
        dry_run,
    )
    if not dry_run:
        done = 0
        for found in sweeps:
            for count in _deleted(storage, found):
                done += count
                progress(done, report.deleted_files, table.name)
        storage.delete(info.path for info in stale)
        crash_point("vacuum.cleaned")
    return report


def _has_unfolded(merge: TableAt) -> bool:
    marks = merge.baseline.marks
    return any(marks[vnode] < seq for seq, file in merge.log_files() for vnode in vnodes_of(file, len(marks)))


def _announce(table: TableStore, now_s: float, keep_s: float) -> Decision:
    """Say what can no longer be read: first the baseline's versions, then the log's changes.

    A pin takes a version of the baseline after it is there. So one that was not seen here either makes the decision
    be taken again, or finds it said and is refused. The trim needs no second look: what the remaining versions can
    read does not reach behind it."""
    decisions: list[Decision] = []

    def decide(state: BaselineState) -> int:
        decisions.append(_decide(table, state, now_s, keep_s))
        return decisions[-1].version

    table.baseline.keep_from(decide)
    crash_point("vacuum.announced")
    decided = decisions[-1]
    if any(seq <= decided.trim_to for seq, _ in table.log.refresh().by_seq):
        table.log.trim(decided.trim_to, epoch=table.readers.renewed_epoch())
    crash_point("vacuum.trimmed")
    return decided


def _checkpoint(delta: DeltaLog) -> None:
    """A checkpoint, unless the last commit has one: commit files before it can then be cleaned away. `Unavailable`
    where nothing could be cleaned away."""
    if delta.refresh().version > max(delta.chain.files()[1], default=0):
        delta.checkpoint(is_wanted=True)


def sweep(part: Part, *, before_s: float) -> Sweep:
    """What no version from the floor on needs and what is older than `before_s`; what else waits for that."""
    delta = part.delta
    # The listing first: what is claimed after it is not in it, or is found among the commits.
    listing = {info.path.removeprefix(f"{delta.folder}/"): info for info in delta.storage.list(delta.folder)}
    floor, needed = _unbroken_from(part)
    head = delta.refresh()
    found = Sweep(delta)
    spare = {name: info for name, info in listing.items() if is_ours(name) and name not in head.files}
    if not spare:
        return found
    readable = set(delta.at(max(part.kept, floor)).files)
    known: set[str] = set()
    for version, actions in part.commits.items():
        for action in actions:
            if "add" in action:
                needed.update([action["add"]["path"]] if version > floor else ())
                readable.update([action["add"]["path"]] if version > part.kept else ())
            known.update(action[kind]["path"] for kind in ("add", "remove") if kind in action)
    for name, info in spare.items():
        if name in needed and name in readable:
            continue
        if name in needed or info.modified_s >= before_s:
            found.waiting.append(info)
            continue
        found.unneeded.append(info)
        if name not in known:
            found.doomed.append(name)
    return found


def _unbroken_from(part: Part) -> tuple[int, set[str]]:
    """The floor, or what another vacuum left of it, and the files of that version; `Corrupt` when a commit file after
    it is missing."""
    delta, floor = part.delta, part.floor
    while True:
        try:
            delta.check_unbroken(floor)
            return floor, set(delta.at(floor).files)
        except (Corrupt, NotFound):
            # Another vacuum may have cleaned further than this one wanted to.
            if delta.oldest() <= floor:
                raise
            floor = delta.oldest()


def is_ours(name: str) -> bool:
    """Whether a file's name is one that Strandline gives to data files."""
    stem, _, rest = name.partition("-")
    is_numbered = stem == "spool" or (stem.isdigit() and len(stem) >= 4)
    return is_numbered and len(rest) == 40 and rest.endswith(".parquet") and "/" not in name


def _deleted(storage: Storage, found: Sweep) -> Iterable[int]:
    """Delete in portions; yields how many each had. What was never claimed is given up by a commit first."""
    unclaimed = set(found.doomed)
    doomed = set(unclaimed)

    def build(snapshot: Snapshot, now_ms: int) -> Draft | None:
        doomed.difference_update(snapshot.files)
        return Draft(doomed=sorted(doomed)) if doomed else None

    if doomed:
        found.delta.commit("VACUUM", build)
        crash_point("vacuum.doomed")
    going = [
        info.path
        for info in found.unneeded
        if (name := info.path.removeprefix(f"{found.delta.folder}/")) in doomed or name not in unclaimed
    ]
    for start in range(0, len(going), _AT_ONCE):
        storage.delete(going[start : start + _AT_ONCE])
        crash_point("vacuum.some_deleted")
        yield len(going[start : start + _AT_ONCE])


@dataclass(frozen=True)
class Part:
    """One of a table's Delta tables: its oldest version of which files may still be read by someone who has opened it,
    and the oldest that can be opened now."""

    delta: DeltaLog
    floor: int
    kept: int

    @cached_property
    def commits(self) -> dict[int, list[Action]]:
        """What its commit files say, once each is proved; `Corrupt` otherwise."""
        return self.delta.chain.read_all(self.delta.refresh().version)


def _parts(table: TableStore, pins: Sequence[Pin], now_s: float, grace_s: float, kept_from: int) -> list[Part]:
    """Log, baseline and refused rows; `kept_from` is what the baseline keeps its versions from, or is about to."""
    log, baseline = table.log.delta, table.baseline.delta
    then = _current_at(baseline, now_s, grace_s)
    # Versions that were given up only since then may still be read by someone who came before.
    announced = min(max(table.baseline.at(then).kept_from, kept_from if grace_s <= 0 else 0), then)
    parts = [
        _part(log, _current_at(log, now_s, grace_s), [pin.log_version for pin in pins]),
        _part(baseline, announced, [pin.baseline_version for pin in pins], table.baseline.refresh().kept_from),
    ]
    parts += [_part(delta, _current_at(delta, now_s, grace_s), ()) for delta in _deltas(table)[2:]]
    return parts


def _deltas(table: TableStore) -> list[DeltaLog]:
    """The table's Delta tables: log, baseline, and refused rows if there are any; `Corrupt` when one is gone."""
    table.baseline.refresh()
    rejects = Rejects(table.log.storage, table.entry)
    return [table.log.delta, table.baseline.delta, *([rejects.log.delta] if rejects.state() is not None else [])]


def _part(delta: DeltaLog, floor: int, pinned: Sequence[int | None], kept: int | None = None) -> Part:
    # What a purge has erased goes after the grace time, whoever reads it: no pin holds a version from before it.
    head = delta.refresh()
    lowest = max(least(pinned, floor), min(head.txns.get(PURGE, 0), floor), delta.oldest())
    return Part(delta, lowest, head.version if kept is None else kept)


def _current_at(delta: DeltaLog, now_s: float, grace_s: float) -> int:
    """The version that was current a grace time ago: someone may have opened it just then."""
    found = delta.refresh().version if grace_s <= 0 else delta.version_before(now_s - grace_s)
    return max(delta.oldest(), found or 0)
