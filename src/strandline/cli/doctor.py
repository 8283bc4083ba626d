"""Examine the lake, and repair what can be."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from strandline.cli.answer import Answer, counted
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call, verb
from strandline.doctor import Finding, Report, examine
from strandline.storage import open_storage


def register(app: typer.Typer) -> None:
    verb(app, "doctor")(doctor)


def doctor(
    call: Call,
    repair: Annotated[bool, typer.Option("--repair", help="Write bad checkpoints anew.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read every row as well.")] = False,
) -> Answer:
    """Examine the lake: does everything hold that should, and what waits to be done?

    Ends with 1 when something is wrong."""
    call.check_folder()
    storage = open_storage(call.path)
    if not any(True for _ in storage.list("catalog")):
        raise call.no_lake(f"no lake at {storage.uri}")
    with progress_bar("Examining") as progress:
        report = examine(storage, deep=deep, repair=repair, progress=progress)
    return Answer(report.to_dict(), lambda out: _show(out, call, report), 0 if report.is_sound else 1)


def _show(out: Console, call: Call, report: Report) -> None:
    for finding in report.findings:
        _show_finding(out, call, finding)
    read = f" and {counted(report.rows, 'row')}" if report.is_deep else ""
    out.print(f"Examined {counted(report.tables, 'table')}, {counted(report.files, 'file')}{read} in {report.uri}")
    open_ = [finding for finding in report.findings if not finding.is_repaired]
    wrong = sum(finding.severity == "wrong" for finding in open_)
    if not wrong:
        out.print(Text("Everything holds.", "green"))
    else:
        out.print(Text(f"{counted(wrong, 'thing is', 'things are')} wrong.", "bold red"))
    if any(finding.repair for finding in open_):
        out.print(f"Repair what can be: {call.command('doctor --repair')}")
    if any(finding.severity == "wrong" and not finding.repair for finding in open_):
        out.print(f"Put files that are missing or damaged back from a backup; then: {call.command('compact')}")


def _show_finding(out: Console, call: Call, finding: Finding) -> None:
    state = "repaired" if finding.is_repaired else finding.severity
    style = {"repaired": "green", "wrong": "bold red", "note": "yellow"}[state]
    name = f"{finding.table}: " if finding.table else ""
    out.print(Text.assemble((f"{state:8} ", style), name, finding.what), soft_wrap=True)
    out.print(Text(f"         {finding.where}", "dim"), soft_wrap=True)
    if finding.command:
        out.print(Text(f"         {call.command(finding.command)}", "dim"), soft_wrap=True)
