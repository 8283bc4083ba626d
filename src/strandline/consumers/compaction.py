"""Pack the small files of the log, and fold the log into the baseline, the neediest vnodes first.

A vnode is due when its unfolded changes are many compared with its folded rows or are old, or when many of its rows are
expired (see `TableSettings`). One commit removes the old files, adds the new ones and moves the marks of those vnodes.
So compactors of other vnodes do not disturb it, and a rival for the same vnodes loses. Many small files of the log
become a few (see `packing`), which moves no mark and leaves the baseline alone.

After a crash: the commit landed with files and marks, or the new files are orphans and the old fold is valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from strandline.consumers.compaction_plan import VnodeNeed, folded_upto, plan_of
from strandline.consumers.contract import ConsumerReport, LaneEnd, Receipt
from strandline.consumers.damage import DegradedVnode, find_damage
from strandline.consumers.feed import RangeSize, size_of
from strandline.consumers.fold_files import discard, fold_on_driver, fold_on_spark
from strandline.consumers.loop import run_own
from strandline.consumers.packing import PackNeed, describe_packs, plan_packs
from strandline.consumers.reporting import sum_steps
from strandline.consumers.work import LOG, Work
from strandline.crash import crash_point
from strandline.engines.choice import BULK, DriverLimit
from strandline.errors import Conflict, Corrupt
from strandline.progress import Progress, silent
from strandline.state.marks import ConsumerState
from strandline.storage.snapshot import DataFile
from strandline.tables.broken import BrokenTable, try_table
from strandline.tables.collection import Tables
from strandline.tables.fold_problems import FoldProblems
from strandline.tables.log import Log
from strandline.tables.merge import TableAt
from strandline.tables.packing import Bundle, pack_files
from strandline.tables.pins import QUIET_S, is_abandoned, new_pin
from strandline.tables.store import TableStore

SPARK_VNODES = 1024


@dataclass(frozen=True)
class CompactReport:
    """What a compaction did. `claimed` counts the due vnodes that another process is folding; `degraded` are the vnodes
    that could not be folded. `packed_files` files of the log became `packs`."""

    table: str
    upto: int
    vnodes: int
    rows: int
    files: int
    removed_files: int
    bytes: int
    seconds: float
    engine: str
    claimed: int
    degraded: tuple[DegradedVnode, ...] = ()
    packed_files: int = 0
    packs: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Compaction:
    """The fold of one table as a consumer: its marks are in the baseline's commits. One object is one compaction, which
    folds a vnode once: later changes are left to the next one. With `full`, every vnode with changes is due."""

    kind = "compaction"
    destination = "baseline"

    def __init__(self, table: TableStore, *, full: bool = False, driver_rows: int = BULK.rows) -> None:
        self.name = f"{self.kind}/{table.name}"
        self.table = table.name
        self._table = table
        self._is_full = full
        self._limit = DriverLimit(driver_rows, BULK.raw_bytes)
        self._removed_files = 0
        self._folded: set[int] = set()
        self._reported: set[int] = set()
        self._unpackable: set[str] = set()
        self.degraded: dict[int, DegradedVnode] = {}
        self.claimed = 0

    def plan(self, tables: Tables, known: ConsumerState) -> Sequence[Work]:
        return self.due_works()

    def due_works(self) -> Sequence[Work]:
        """The packs that are due, and then the due vnodes: in one work when the driver can fold them, otherwise in
        groups, so that finished groups are kept when a later one fails."""
        merge = self._table.merge()
        due = self._find_due(merge)
        return [*self._pack_works(merge, due), *self._fold_works(merge, due)]

    def _fold_works(self, merge: TableAt, due: Sequence[VnodeNeed]) -> list[Work]:
        if not due:
            return []
        log_bytes = sum(file.raw_bytes for _, file in merge.log_files())
        rows = sum(need.rows + need.base_rows for need in due)
        is_small = self._limit.takes(rows=rows, raw_bytes=sum(need.base_bytes for need in due) + log_bytes)
        size = len(due) if is_small else SPARK_VNODES
        engine = "driver" if is_small else "spark"
        return [self._make_work(merge, due[at : at + size], engine) for at in range(0, len(due), size)]

    def _pack_works(self, merge: TableAt, due: Sequence[VnodeNeed]) -> list[Work]:
        """One work, without vnodes, for all packs that are due."""
        needs = [PackNeed.of(bundle) for bundle in self._find_packs(merge, due)]
        if not needs:
            return []
        after, upto = min(need.after for need in needs), max(need.upto for need in needs)
        extent = RangeSize(
            size_of(merge.log.files(max(after, merge.log.trimmed_to), upto)).commits,
            sum(need.rows for need in needs),
            sum(need.bytes for need in needs),
            sum(need.raw_bytes for need in needs),
        )
        why = describe_packs(sum(need.files for need in needs))
        return [Work(self._table, after, upto, LOG, (), extent, merge.definition.schema_id, "driver", why=why)]

    def _find_packs(self, merge: TableAt, due: Sequence[VnodeNeed], upto: int | None = None) -> list[Bundle]:
        """The packs that are due, of changes up to a seq, without those with a damaged file."""
        bundles = plan_packs(merge.log, folded_upto(merge, {need.vnode for need in due}), upto)
        return [bundle for bundle in bundles if self._unpackable.isdisjoint(f.path for _, f in bundle.files)]

    def _find_due(self, merge: TableAt) -> list[VnodeNeed]:
        """The due vnodes that no other process is folding, the neediest first."""
        done = self._folded | set(self.degraded)
        due = [need for need in plan_of(self._table, merge, self._is_full, None)[0].due if need.vnode not in done]
        claimed = self._claimed_vnodes() if due else set()
        self.claimed = sum(need.vnode in claimed for need in due)
        return [need for need in due if need.vnode not in claimed]

    def _make_work(self, merge: TableAt, due: Sequence[VnodeNeed], engine: str) -> Work:
        after = min(merge.baseline.marks[need.vnode] for need in due)
        files = merge.log_files()
        extent = RangeSize(
            len({seq for seq, _ in files}),
            # Rows of a vnode are estimates, at least one.
            min(sum(need.rows for need in due), sum(file.rows for _, file in files))
            + sum(need.base_rows for need in due),
            sum(need.base_bytes for need in due) + sum(file.size for _, file in files),
            sum(need.base_bytes for need in due) + sum(file.raw_bytes for _, file in files),
        )
        vnodes = (tuple(need.vnode for need in due),)
        why = f"{due[0].why} in vnode {due[0].vnode}"
        return Work(self._table, after, merge.seq, LOG, vnodes, extent, merge.definition.schema_id, engine, why=why)

    def _claimed_vnodes(self) -> set[int]:
        """The vnodes that another compactor has pinned."""
        pins = self._table.pins.all(is_strict=False)
        if not pins:
            return set()
        now_s = self._table.log.storage.now_s()
        return {v for pin in pins if pin.expires_s > now_s and not is_abandoned(pin) for v in pin.vnodes}

    def run(self, work: Work) -> Receipt:
        """Fold the vnodes of a work that are still due, up to the head, except those with a damaged file. A work
        without vnodes packs the log; after that the statistics may say more of some vnodes, and all that are due are
        folded."""
        receipt = Receipt()
        with self._table.folding:
            if not work.lanes:
                self._pack_log(receipt)
            try:
                for each in [work] if work.lanes else self._works_after_packing():
                    self._fold_due(each, receipt)
            finally:
                self._save_health()
        receipt.facts |= {"vnodes": len(self._folded), "claimed": self.claimed}
        new = sorted(set(self.degraded) - self._reported)
        self._reported |= set(new)
        receipt.ends |= {(vnode,): LaneEnd(error=_degraded_error(self.degraded[vnode])) for vnode in new}
        return receipt

    def _works_after_packing(self) -> list[Work]:
        merge = self._table.merge()
        return self._fold_works(merge, self._find_due(merge))

    def _fold_due(self, work: Work, receipt: Receipt) -> None:
        merge = self._table.merge()
        due = {need.vnode for need in self._find_due(merge)}
        while chosen := [vnode for vnode in work.vnodes if vnode in due and vnode not in self.degraded]:
            if not (found := self._fold_vnodes(merge, chosen, work.engine, receipt)):
                self._folded |= set(chosen)
                receipt.upto = merge.seq
                break
            self.degraded |= found

    def _pack_log(self, receipt: Receipt) -> None:
        """Pack the log until nothing is due: packs may make a larger one due. Later commits are left to the next
        compaction: while writers are quick, this one would not end. A damaged file is left alone."""
        log, packed, packs = self._table.log, 0, 0
        upto = log.refresh().head
        while True:
            merge = self._table.merge()
            if not (bundles := self._find_packs(merge, self._find_due(merge), upto)):
                break
            try:
                added = pack_files(log, bundles)
            except Corrupt as error:
                at_fault = {f.path for bundle in bundles for _, f in bundle.files if _is_named(error, log, f)}
                if not at_fault:
                    raise
                self._unpackable |= at_fault
                receipt.ends[()] = LaneEnd(error=error)
                continue
            packed += sum(len(bundle.files) for bundle in bundles)
            packs += len(added)
        receipt.facts |= {"packed_files": packed, "packs": packs}

    def _save_health(self) -> None:
        if self.degraded or self._folded:
            degraded = {str(vnode): asdict(found) for vnode, found in sorted(self.degraded.items())}
            FoldProblems(self._table.log.storage, self._table.entry.folder).write(degraded, self._folded)

    def _fold_vnodes(
        self, merge: TableAt, chosen: Sequence[int], engine: str, receipt: Receipt
    ) -> dict[int, DegradedVnode]:
        """Fold vnodes in one commit. When a file is damaged, nothing is folded; returns the vnodes that need it."""
        table = self._table
        claim = new_pin(
            "compaction", vnodes=tuple(chosen), writes_since_s=table.log.storage.now_s(),
            log_version=merge.log.head, baseline_version=merge.baseline.version,
        )  # fmt: skip
        part = merge.part(chosen)
        write, quiet_s = (fold_on_driver, QUIET_S) if engine == "driver" else (fold_on_spark, 0)
        with table.pins.held(claim, quiet_s=quiet_s):
            try:
                added, removed = write(table, part)
            except Exception as error:
                found = find_damage(table, part, error)
                if not found:
                    raise
                return found
            crash_point("fold.files_written")
            _, idle = plan_of(table, merge, self._is_full, None)
            try:
                table.baseline.commit_fold(
                    merge.baseline,
                    merge.definition,
                    upto=merge.seq,
                    vnodes=chosen,
                    idle=[vnode for vnode in idle if _is_worth_moving(merge, vnode)],
                    removed=removed,
                    added=added,
                )
            except Conflict:
                discard(table, added)
                raise
        crash_point("fold.committed")
        receipt.rows += sum(file.rows for file in added)
        receipt.bytes += sum(file.size for file in added)
        receipt.files += len(added)
        self._removed_files += len(removed)
        receipt.facts |= {"removed_files": self._removed_files, "engine": engine}
        return {}


def compact(
    table: TableStore, *, full: bool = False, driver_rows: int = BULK.rows, progress: Progress = silent
) -> CompactReport:
    """Fold every due vnode up to the head."""
    consumer = Compaction(table, full=full, driver_rows=driver_rows)
    works = consumer.due_works()
    step = sum_steps(progress, sum(work.extent.rows for work in works))
    done = ConsumerReport(name=consumer.name, table=table.name, kind=consumer.kind, destination=consumer.destination)
    run_own(consumer, works, consumer.due_works, report=done, step=step)
    return CompactReport(
        table=table.name,
        upto=done.upto or table.head,
        vnodes=done.facts.get("vnodes", 0),
        rows=done.rows,
        files=done.files,
        removed_files=done.facts.get("removed_files", 0),
        bytes=done.bytes,
        seconds=done.seconds,
        engine=done.facts.get("engine", "none"),
        claimed=consumer.claimed,
        degraded=tuple(found for _, found in sorted(consumer.degraded.items())),
        packed_files=done.facts.get("packed_files", 0),
        packs=done.facts.get("packs", 0),
    )


def compact_tables(
    tables: Tables, names: Iterable[str], *, full: bool = False, progress: Progress = silent
) -> list[CompactReport | BrokenTable]:
    """Compact these tables; a broken table does not stop the others."""

    def act(name: str) -> CompactReport:
        return compact(tables.table(name), full=full, progress=progress)

    return [try_table(name, partial(act, name)) for name in names]


def _is_named(error: Corrupt, log: Log, file: DataFile) -> bool:
    """Whether an error is about this file of the log."""
    return error.fields.get("path") == f"{log.folder}/{file.path}"


def _is_worth_moving(merge: TableAt, vnode: int) -> bool:
    """Whether to move the mark of a vnode without changes; in large tables not with every commit."""
    return merge.baseline.vnodes <= 64 or merge.seq - merge.baseline.marks[vnode] >= 100


def _degraded_error(found: DegradedVnode) -> Corrupt:
    return Corrupt(
        f"vnode {found.vnode} is not compacted: {found.message}: {found.path}",
        hint="See what is affected: strandline doctor --deep",
        path=found.path,
        vnode=found.vnode,
    )
