"""Keep a table small: trim its log, let old baseline versions go, delete the files that nothing needs.

A table stays readable from a seq on: the lowest seq that one of its `trim_blockers` needs. These are the setting
`keep`, every live pin, and the mark of every active consumer. The newest baseline version that has nothing after that
seq stays, and the log after its marks. A vacuum first announces this in a commit of the baseline (`kept_from`) and one
of the log (`trim`). From then on a reader of something older gets `NotRetained`. After the grace time the files are
deleted.

A file that no commit claims is first named by a commit (`doomed`). A slow writer that wants to claim it later meets
that commit and fails. So no commit ever claims a deleted file, whatever the clocks say.

After a crash: announcements hold, and the next run finds the files that were not deleted.
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
    """Someone who needs the changes of a table after `seq`."""

    seq: int
    who: str


@dataclass(frozen=True)
class VacuumReport:
    """What a vacuum did, or would do. `held_by` keeps the table from being trimmed further; `oldest` is the first seq
    that can be read. `waiting_files` are not needed, but the grace time is not over. `is_held`: the log has changes
    that stay because of `held_by`. `is_unfolded`: after a fold more could be trimmed. `given_up` are the first and the
    last seq that could be read before and no longer can."""

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
    given_up: tuple[int, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Sweep:
    """The files of one Delta table that nothing needs (`unneeded`), and those that wait for the grace time.
    No commit has ever claimed the `doomed` ones."""

    delta: DeltaLog
    unneeded: list[FileInfo] = field(default_factory=list)
    waiting: list[FileInfo] = field(default_factory=list)
    doomed: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(info.size for info in self.unneeded)


@dataclass(frozen=True)
class Decision:
    """What is given up: baseline versions before `version`, and changes up to `trim_to`. `hold` keeps the rest."""

    version: int
    trim_to: int
    hold: TrimBlocker


def trim_blockers(table: TableStore, *, now_s: float, keep_s: float) -> list[TrimBlocker]:
    """Everyone who needs earlier changes of the table, the lowest seq first."""
    log = table.log.refresh()
    kept = log.head if keep_s <= 0 else table.log.delta.version_before(now_s - keep_s)
    found = [TrimBlocker(log.trimmed_to if kept is None else kept, "the setting keep")]
    for pin in table.pins.live(now_s):
        if pin.seq is not None:
            found.append(TrimBlocker(pin.seq, f"pin {pin.name} ({pin.why}, {pin.holder})"))
    found += [TrimBlocker(seq, f"sink {name}") for seq, name in table.readers.marks()]
    return sorted(found, key=lambda hold: hold.seq)


def _decide_trim(table: TableStore, baseline: BaselineState, now_s: float, keep_s: float) -> Decision:
    hold = trim_blockers(table, now_s=now_s, keep_s=keep_s)[0]
    kept = [(v, marks) for v, marks in table.baseline.versions(baseline) if v >= baseline.kept_from]
    wanted = [(v, m) for v, m in kept if max(m) <= hold.seq]
    if not wanted:
        # The version that is needed may be lost.
        table.baseline.check_kept()
    chosen = max(wanted, default=(kept[0] if kept else (0, (0,))))
    # Of versions with the same marks keep the first: giving it up would free nothing.
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
    """Trim the log and delete files that nothing needs. `grace_s` and `keep_s` override the table's settings."""
    storage, settings = table.log.storage, table.definition.settings
    grace_s = settings.grace if grace_s is None else grace_s
    keep_s = settings.keep if keep_s is None else keep_s
    for delta in _deltas(table):
        delta.check_unbroken()
    now_s = storage.now_s()
    merge = table.merge()
    baseline, log = merge.baseline, merge.log
    decided = _decide_trim(table, baseline, now_s, keep_s)
    trimmed = [file for seq, file in log.by_seq if seq <= decided.trim_to]
    oldest_before = table.oldest
    if not dry_run:
        if any(delta.chain.has_gap() for delta in _deltas(table)):
            # Nothing is announced for a table that has lost a commit file it needs.
            for part in _parts(table, table.pins.live(now_s), now_s, grace_s, decided.version):
                _find_floor(part)
        decided = _announce_trim(table, now_s, keep_s)
        _write_checkpoint(table.baseline.delta)
        _write_checkpoint(table.log.delta)
    pins = table.pins.live(now_s)
    parts = _parts(table, pins, now_s, grace_s, decided.version)
    writing_s = min((pin.writes_since_s for pin in pins if pin.writes_since_s is not None), default=now_s)
    # The time of a file may be slightly before the time that its writer read from the clock.
    before_s = min(now_s - grace_s, writing_s - 1) if grace_s > 0 or writing_s < now_s else float("inf")
    sweeps = [sweep(part, before_s=before_s) for part in parts]
    # The log's commit files also hold its history and times, which readers may ask for.
    floors = [min(part.floor, decided.hold.seq) if part.delta is table.log.delta else part.floor for part in parts]
    stale: list[FileInfo] = []
    for part, low in zip(parts, floors, strict=True):
        base = part.delta.base_checkpoint(low, part.floor)
        old = part.delta.files_before(base) if base is not None else []
        # A damaged chain keeps all its files: without them the damage could no longer be found.
        if base is None or not old or not part.commits:
            continue
        stale += old
        if not dry_run:
            part.delta.chain.checkpoints.set_alone(base)
    if dry_run and grace_s <= 0:
        # Trimmed files would also be deleted at once.
        paths = {f"{log.folder}/{file.path}" for file in trimmed}
        sweeps[0].unneeded += [info for info in storage.list(log.folder) if info.path in paths]
    oldest = table.oldest
    if dry_run:
        kept_from, trim_to = max(decided.version, baseline.kept_from), decided.trim_to if trimmed else 0
        oldest = table.oldest_after(baseline, kept_from, max(log.trimmed_to, trim_to))
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
        (oldest_before, oldest - 1) if oldest > oldest_before else None,
    )
    if not dry_run:
        done = 0
        for found in sweeps:
            for count in _delete_files(storage, found):
                done += count
                progress(done, report.deleted_files, table.name)
        storage.delete(info.path for info in stale)
        crash_point("vacuum.cleaned")
    return report


def _has_unfolded(merge: TableAt) -> bool:
    marks = merge.baseline.marks
    return any(marks[vnode] < seq for seq, file in merge.log_files() for vnode in vnodes_of(file, len(marks)))


def _announce_trim(table: TableStore, now_s: float, keep_s: float) -> Decision:
    """Announce what can no longer be read: first the baseline's versions, then the log's changes.

    A new pin writes its file, and then a commit of the baseline. So a pin that `decide` did not see either makes it run
    again, or finds the announcement and is refused. The trim needs no second look: the remaining versions need nothing
    before it."""
    decisions: list[Decision] = []

    def decide(state: BaselineState) -> int:
        decisions.append(_decide_trim(table, state, now_s, keep_s))
        return decisions[-1].version

    table.baseline.keep_from(decide)
    crash_point("vacuum.announced")
    decided = decisions[-1]
    if any(seq <= decided.trim_to for seq, _ in table.log.refresh().by_seq):
        table.log.trim(decided.trim_to, epoch=table.readers.renewed_epoch())
    crash_point("vacuum.trimmed")
    return decided


def _write_checkpoint(delta: DeltaLog) -> None:
    """Write a checkpoint, unless the last commit has one: commit files before it can then be deleted. `Unavailable`
    when none could be deleted."""
    if delta.refresh().version > max(delta.chain.files()[1], default=0):
        delta.checkpoint(is_wanted=True)


def sweep(part: Part, *, before_s: float) -> Sweep:
    """Files that no version from the floor on needs: unneeded if older than `before_s`, else waiting."""
    delta = part.delta
    # List first: a file that is claimed later is not in the list, or is found among the commits.
    listing = {info.path.removeprefix(f"{delta.folder}/"): info for info in delta.storage.list(delta.folder)}
    floor, needed = _find_floor(part)
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


def _find_floor(part: Part) -> tuple[int, set[str]]:
    """The floor, or the oldest version that another vacuum left, and the files of that version. `Corrupt` when a
    commit file after it is missing."""
    delta, floor = part.delta, part.floor
    while True:
        try:
            delta.check_unbroken(floor)
            return floor, set(delta.at(floor).files)
        except (Corrupt, NotFound):
            # Another vacuum may have deleted more than this one wanted to.
            if delta.oldest() <= floor:
                raise
            floor = delta.oldest()


def is_ours(name: str) -> bool:
    """Whether a file's name is one that Strandline gives to data files."""
    stem, _, rest = name.partition("-")
    is_numbered = stem == "spool" or (stem.isdigit() and len(stem) >= 4)
    return is_numbered and len(rest) == 40 and rest.endswith(".parquet") and "/" not in name


def _delete_files(storage: Storage, found: Sweep) -> Iterable[int]:
    """Delete in portions and yield the size of each. A commit first names the files that were never claimed."""
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
    """One of a table's Delta tables. A reader may still read files of the version `floor`; `kept` is the oldest
    version that can be opened now."""

    delta: DeltaLog
    floor: int
    kept: int

    @cached_property
    def commits(self) -> dict[int, list[Action]]:
        """The actions of its commit files, each checked against its digest; `Corrupt` when one is damaged."""
        return self.delta.chain.read_all(self.delta.refresh().version)


def _parts(table: TableStore, pins: Sequence[Pin], now_s: float, grace_s: float, kept_from: int) -> list[Part]:
    """Log, baseline and refused rows. The baseline keeps its versions from `kept_from` on, or is about to."""
    log, baseline = table.log.delta, table.baseline.delta
    then = _version_at(baseline, now_s, grace_s)
    # A reader that came before may still read versions that were given up since then.
    announced = min(max(table.baseline.at(then).kept_from, kept_from if grace_s <= 0 else 0), then)
    parts = [
        _part(log, _version_at(log, now_s, grace_s), [pin.log_version for pin in pins]),
        _part(baseline, announced, [pin.baseline_version for pin in pins], table.baseline.refresh().kept_from),
    ]
    parts += [_part(delta, _version_at(delta, now_s, grace_s), ()) for delta in _deltas(table)[2:]]
    return parts


def _deltas(table: TableStore) -> list[DeltaLog]:
    """The table's Delta tables: log, baseline, and refused rows if there are any; `Corrupt` when one is missing."""
    table.baseline.refresh()
    rejects = Rejects(table.log.storage, table.entry)
    return [table.log.delta, table.baseline.delta, *([rejects.log.delta] if rejects.state() is not None else [])]


def _part(delta: DeltaLog, floor: int, pinned: Sequence[int | None], kept: int | None = None) -> Part:
    # Purged rows are deleted after the grace time, whoever reads them: no pin holds a version before the purge.
    head = delta.refresh()
    lowest = max(least(pinned, floor), min(head.txns.get(PURGE, 0), floor), delta.oldest())
    return Part(delta, lowest, head.version if kept is None else kept)


def _version_at(delta: DeltaLog, now_s: float, grace_s: float) -> int:
    """The version that was current one grace time ago: a reader may have opened it just then."""
    found = delta.refresh().version if grace_s <= 0 else delta.version_before(now_s - grace_s)
    return max(delta.oldest(), found or 0)
