"""Trim logs and delete what nothing needs."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from strandline.cli.answer import Answer, counted, size
from strandline.cli.broken import broken_data, show_broken
from strandline.cli.options import TableNames, length, named
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call, verb
from strandline.jobs.leftovers import Leftover
from strandline.jobs.vacuum import VacuumReport
from strandline.lake import Lake, LakeVacuum
from strandline.model import duration
from strandline.tables.broken import BrokenTable


def register(app: typer.Typer) -> None:
    verb(app, "vacuum")(vacuum)


def vacuum(
    call: Call,
    names: TableNames = None,
    keep: Annotated[
        str | None, typer.Option(metavar="TIME", help="How far back a table stays readable, instead of its setting.")
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long a file must be unneeded to go, instead of the table's setting."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go; write nothing.")] = False,
) -> Answer:
    """Trim the log behind what must stay readable, and delete the files that nothing needs.

    Without names also what lies outside of tables: files of dropped ones, unfinished files. Ends with 1 when a table
    could not be done."""
    keep_s, grace_s = length(keep, "--keep"), length(grace, "--grace")
    lake = call.lake()
    with progress_bar("Vacuuming") as progress:
        found = lake.vacuum(named(lake, names), grace=grace_s, keep=keep_s, dry_run=dry_run, progress=progress)
    broken = [table for table in found.tables if isinstance(table, BrokenTable)]
    data = {
        **found.to_dict(),
        "lake": lake.storage.uri,
        "tables": [broken_data(t) if isinstance(t, BrokenTable) else t.to_dict() for t in found.tables],
        "leftovers": [_leftover_data(each) for each in found.leftovers],
    }
    return Answer(data, lambda out: _show(out, call, lake, found, keep_s, grace_s), 1 if broken else 0)


def _leftover_data(found: Leftover) -> dict[str, Any]:
    facts = {"table": found.table, "what": found.what, "where": found.where}
    return {**facts, "files": len(found.infos), "bytes": found.bytes, "is_deletable": found.is_deletable}


def _show(out: Console, call: Call, lake: Lake, found: LakeVacuum, keep_s: float | None, grace_s: float | None) -> None:
    for each in found.tables:
        if isinstance(each, VacuumReport):
            _show_table(out, call, lake, each, keep_s, grace_s)
    for leftover in found.leftovers:
        _show_leftover(out, lake, leftover, found.is_dry_run)
    show_broken(out, call, (each for each in found.tables if isinstance(each, BrokenTable)))
    if not found.tables and not found.leftovers:
        out.print("There is nothing to vacuum.")
    if found.is_dry_run:
        out.print("Nothing was written.")


def _show_table(
    out: Console, call: Call, lake: Lake, report: VacuumReport, keep_s: float | None, grace_s: float | None
) -> None:
    table = lake.table(report.table)
    trim, delete = ("would trim", "delete") if report.is_dry_run else ("trimmed", "deleted")
    files = f"{counted(report.deleted_files, 'file')}, {size(report.deleted_bytes)}"
    done = []
    if report.trimmed_files:
        done.append(f"{trim} the log to seq {report.trimmed_to} ({counted(report.trimmed_files, 'file')})")
    would = "would " if report.is_dry_run and not done else ""
    if report.deleted_files:
        done.append(f"{would}{delete} {files}")
    elif report.commit_files:
        done.append(f"{would}{delete} {counted(report.commit_files, 'old commit file')}")
    out.print(f"{report.table}: {' and '.join(done) or 'nothing to trim, nothing to delete'}.")
    grace_s = table.definition.settings.grace if grace_s is None else grace_s
    if report.trimmed_files and grace_s:
        _note(out, f"Trimmed files are deleted by a vacuum {duration.shown(grace_s)} or more later.")
    elif report.trimmed_files and report.is_dry_run:
        _note(out, "Without a grace time trimmed files are deleted at once.")
    held = report.held_by
    if report.waiting_files:
        waiting = f"{counted(report.waiting_files, 'file')}, {size(report.waiting_bytes)}"
        _note(out, f"{waiting}: no longer needed, deleted {duration.shown(grace_s)} after that at the earliest.")
    if any(seq > held.seq for seq, _ in table.log.refresh().by_seq):
        length_s = table.definition.settings.keep if keep_s is None else keep_s
        _note(out, f"Readable from seq {report.oldest} on; {_holder(held.who, length_s)} keeps it so.")
    folded_to = min(table.baseline.refresh().marks)
    if folded_to < held.seq and table.plan_compaction().waiting_rows:
        _note(out, f"Only what is folded can be trimmed: {call.command(f'compact {report.table} --all')}")


def _holder(who: str, keep_s: float) -> str:
    return f"keep ({duration.shown(keep_s)})" if who == "the setting keep" else who


def _note(out: Console, text: str) -> None:
    out.print(Text(f"  {text}", "dim"), soft_wrap=True)


def _show_leftover(out: Console, lake: Lake, found: Leftover, is_dry_run: bool) -> None:
    name = f"{found.table}: " if found.table else ""
    files = counted(len(found.infos), "file")
    if found.is_deletable:
        verb_ = "would delete" if is_dry_run else "deleted"
        out.print(f"{name}{verb_} {files} {found.what}, {size(found.bytes)}.", soft_wrap=True)
        return
    where = lake.storage.url(found.where)
    said = f"{name}a folder of {files} {found.what}. It stays: {where}. {found.advice}"
    out.print(Text(said, "yellow"), soft_wrap=True)
