"""Trim logs and delete what nothing needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

import strandline as sl
from strandline.cli.answer import Answer, Part, counted, moment, note, size, warning
from strandline.cli.broken import broken_data, broken_parts
from strandline.cli.options import DryRun, TableNames, Yes, parse_length
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call
from strandline.model import duration
from strandline.model.settings import TableSettings
from strandline.tables.broken import BrokenTable

if TYPE_CHECKING:
    from strandline.jobs.lake_vacuum import LakeVacuum
    from strandline.jobs.leftovers import Leftover
    from strandline.jobs.vacuum import VacuumReport


def vacuum(
    call: Call,
    names: TableNames = None,
    keep: Annotated[
        str | None, typer.Option(metavar="TIME", help="How far back a table stays readable, instead of its setting.")
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Delete files that nothing has needed for this long, instead of the table's setting."
        ),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> Answer:
    """Remove the part of the log that nobody may read any more, and delete the files that nothing needs.

    Without names it also deletes files outside of tables: of dropped tables, unfinished files. It asks before --keep or
    --grace lose more than the settings of a table do. Ends with 1 when a table failed."""
    keep_s, grace_s = parse_length(keep, "--keep"), parse_length(grace, "--grace")
    lake = call.lake()
    if not (yes or dry_run) and (keep_s is not None or grace_s is not None):
        found = lake.vacuum(names or (), grace=grace_s, keep=keep_s, dry_run=True)
        if losses := list(_list_losses(lake, found, keep_s, grace_s)):
            lost = ", ".join(dict.fromkeys(table for table, _ in losses))
            question = "\n".join([*(text for _, text in losses), "Give this up for good?"])
            call.confirm(question, "history is given up", table=lost)
    with progress_bar("Vacuuming") as progress:
        found = lake.vacuum(names or (), grace=grace_s, keep=keep_s, dry_run=dry_run, progress=progress)
    data = {**found.to_dict(), "lake": lake.storage.uri, "tables": [broken_data(table) for table in found.tables]}
    is_broken = any(isinstance(table, BrokenTable) for table in found.tables)
    return Answer(data, _tell(call, lake, found), is_well=not is_broken)


def _list_losses(
    lake: sl.Lake, found: LakeVacuum, keep_s: float | None, grace_s: float | None
) -> Iterator[tuple[str, str]]:
    """What --keep and --grace would give up that the settings keep: the table, and the loss in words."""
    for each in found.tables:
        if isinstance(each, BrokenTable):
            continue
        table = lake.table(each.table)
        settings = table.definition.settings
        if keep_s is not None and keep_s < settings.keep and each.given_up is not None:
            yield each.table, f"{each.table}: {_describe_span(table, *each.given_up)} can no longer be read."
        if grace_s is not None and grace_s < settings.grace and each.deleted_files:
            much = f"{counted(each.deleted_files, 'file')}, {size(each.deleted_bytes)}, go"
            since = f"reads that began in the last {duration.to_text(settings.grace)} may fail"
            yield each.table, f"{each.table}: {much} at once; {since}."
    if grace_s is not None and grace_s < TableSettings().grace:
        for leftover in found.leftovers:
            if leftover.is_dropped and leftover.is_deletable:
                name = leftover.table or leftover.where
                yield name, f"{name}: the dropped table can no longer be brought back."


def _describe_span(table: sl.Table, first: int, last: int) -> str:
    """Seqs, with the times of their commits where these are known."""
    seqs = f"seq {first}" if first == last else f"seqs {first} to {last}"
    times = [entry.at for entry in table.history() if first <= entry.seq <= last]
    return f"{seqs} (from {moment(min(times))} to {moment(max(times))} UTC)" if times else seqs


def _tell(call: Call, lake: sl.Lake, found: LakeVacuum) -> Iterator[Part]:
    for table in found.tables:
        if not isinstance(table, BrokenTable):
            yield f"{table.table}: {_describe_vacuum(table)}."
            yield from (note(f"  {text}") for text in _list_notes(call, table))
    for leftover in found.leftovers:
        yield _describe_leftover(lake, leftover, found.is_dry_run)
    yield from broken_parts(call, found.tables)
    if not found.tables and not found.leftovers:
        yield "There is nothing to vacuum."
    if found.is_dry_run:
        yield "Nothing was written."


def _describe_vacuum(report: VacuumReport) -> str:
    trim, delete = ("would trim", "delete") if report.is_dry_run else ("trimmed", "deleted")
    done = []
    if report.trimmed_files:
        done.append(f"{trim} the log to seq {report.trimmed_to} ({counted(report.trimmed_files, 'file')})")
    would = "would " if report.is_dry_run and not done else ""
    if report.deleted_files:
        done.append(f"{would}{delete} {counted(report.deleted_files, 'file')}, {size(report.deleted_bytes)}")
    elif report.commit_files:
        done.append(f"{would}{delete} {counted(report.commit_files, 'old commit file')}")
    return " and ".join(done) or "nothing to trim, nothing to delete"


def _list_notes(call: Call, report: VacuumReport) -> Iterator[str]:
    if report.trimmed_files and report.grace_s:
        yield f"Trimmed files are deleted by a vacuum {duration.to_text(report.grace_s)} or more later."
    elif report.trimmed_files and report.is_dry_run:
        yield "Without a grace time trimmed files are deleted at once."
    if report.waiting_files:
        waiting = f"{counted(report.waiting_files, 'file')}, {size(report.waiting_bytes)}"
        yield f"{waiting}: no longer needed, deleted {duration.to_text(report.grace_s)} after that at the earliest."
    if report.is_held:
        who = report.held_by.who
        who = f"keep ({duration.to_text(report.keep_s)})" if who == "the setting keep" else who
        yield f"Readable from seq {report.oldest} on; {who} keeps it so."
    if report.is_unfolded:
        yield f"Only what is compacted can be trimmed: {call.command(f'compact {report.table} --all')}"


def _describe_leftover(lake: sl.Lake, found: Leftover, is_dry_run: bool) -> Part:
    name = f"{found.table}: " if found.table else ""
    files = counted(len(found.infos), "file")
    if found.is_deletable:
        delete = "would delete" if is_dry_run else "deleted"
        return f"{name}{delete} {files} {found.what}, {size(found.bytes)}."
    where = lake.storage.url(found.where)
    return warning(f"{name}a folder of {files} {found.what}. It stays: {where}. {found.advice}")
