"""Notes about the upkeep of a lake: what waits to be folded, what could be deleted, which pins hold rows, each with the
command that does something about it."""

from __future__ import annotations

from strandline.consumers import compaction_plan
from strandline.engines.duck import Duck
from strandline.jobs.doctor.finding import Finding
from strandline.jobs.doctor.tables import TableExam
from strandline.jobs.leftovers import Leftover, leftovers
from strandline.jobs.vacuum import vacuum
from strandline.model import duration
from strandline.model.settings import TableSettings
from strandline.storage.open import Storage
from strandline.tables.store import TableStore


def table_health(exam: TableExam, duck: Duck) -> list[Finding]:
    """Notes about a sound table."""
    storage, entry = exam.log.storage, exam.entry
    table = TableStore(entry, storage, duck)
    where = storage.url(entry.folder)
    found = []
    for part in exam.parts:
        foreign = part.foreign_files()
        if foreign:
            what = f"{count_files(len(foreign))} that Strandline did not make, such as {foreign[0]}"
            found.append(Finding("note", entry.name, what, storage.url(part.folder)))
    plan = compaction_plan.plan(table)
    if plan.due:
        first = plan.due[0]
        due = f"{len(plan.due)} of {table.definition.vnodes} vnodes"
        what = f"{due} are due to be compacted; vnode {first.vnode}: {first.why}"
        found.append(Finding("note", entry.name, what, where, command=f"compact {entry.name}"))
    if plan.packs:
        what = f"{plan.packed_files:,} small files of the log are due to be packed"
        found.append(Finding("note", entry.name, what, where, command=f"compact {entry.name}"))
    cleaned = vacuum(table, dry_run=True)
    if cleaned.waiting_files:
        wait = "waits" if cleaned.waiting_files == 1 else "wait"
        what = f"{count_files(cleaned.waiting_files)} {wait} for the grace time, {cleaned.waiting_bytes:,} bytes"
        found.append(Finding("note", entry.name, what, where))
    if cleaned.deleted_files:
        what = f"{count_files(cleaned.deleted_files)} that nothing needs, {cleaned.deleted_bytes:,} bytes"
        found.append(Finding("note", entry.name, what, where, command=f"vacuum {entry.name}"))
    now_s = storage.now_s()
    for pin in table.pins.live(now_s):
        left = duration.to_text(round(pin.expires_s - now_s))
        what = f"pin {pin.name} ({pin.why}, {pin.holder}) holds seq {pin.seq} for {left} more"
        if pin.seq is not None:
            found.append(Finding("note", entry.name, what, where))
    return found


def lake_health(storage: Storage) -> list[Finding]:
    """Files outside the lake's tables: a table that the catalog lost is wrong, the rest are notes."""
    return [
        Finding(
            "wrong" if found.is_lost else "note",
            found.table,
            _describe(found),
            storage.url(found.where) if found.where else storage.uri,
            command="vacuum" if found.is_deletable else None,
        )
        for found in leftovers(storage, now_s=storage.now_s(), grace_s=TableSettings().grace)
    ]


def _describe(found: Leftover) -> str:
    if found.is_deletable:
        return f"{count_files(len(found.infos))} {found.what}, {found.bytes:,} bytes"
    return f"a folder of {count_files(len(found.infos))} {found.what}. {found.advice}"


def count_files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"
