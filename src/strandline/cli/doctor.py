"""Examine the lake, and repair what can be."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from strandline.cli.answer import Answer, counted
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call, verb
from strandline.doctor import Finding, Report, examine
from strandline.storage import open_storage

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def register(app: typer.Typer) -> None:
    verb(app, "doctor")(doctor)


def doctor(
    call: Call,
    repair: Annotated[
        bool, typer.Option("--repair", help="Delete leftovers past the grace time; write bad checkpoints anew.")
    ] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read every row as well.")] = False,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="How old leftovers must be: longer than your longest write.")
    ] = "1h",
) -> Answer:
    """Examine the lake: does everything hold that should? Ends with 1 when something is wrong."""
    grace_s = seconds(grace)
    call.check_folder()
    storage = open_storage(call.path)
    if not any(True for _ in storage.list("catalog")):
        raise call.no_lake(f"no lake at {storage.uri}")
    with progress_bar("Examining") as progress:
        report = examine(storage, deep=deep, repair=repair, grace_s=grace_s, progress=progress)
    again = call.command("doctor --repair" + ("" if grace == "1h" else f" --grace {grace}"))
    return Answer(report.to_dict(), lambda out: _show(out, report, again), 0 if report.is_sound else 1)


def seconds(text: str) -> float:
    """The length of a time such as `90s`, `30m`, `1h` or `7d`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a time; expected one such as 30m, 1h or 7d")
    return float(found.group(1)) * _UNITS[found.group(2)]


def _show(out: Console, report: Report, again: str) -> None:
    for finding in report.findings:
        _show_finding(out, finding)
    read = f" and {counted(report.rows, 'row')}" if report.is_deep else ""
    out.print(f"Examined {counted(report.tables, 'table')}, {counted(report.files, 'file')}{read} in {report.uri}")
    open_ = [finding for finding in report.findings if not finding.is_repaired]
    wrong = sum(finding.severity == "wrong" for finding in open_)
    if not wrong:
        out.print(Text("Everything holds.", "green"))
    else:
        out.print(Text(f"{counted(wrong, 'thing is', 'things are')} wrong.", "bold red"))
    if any(finding.repair for finding in open_):
        out.print(f"Repair what can be: {again}")


def _show_finding(out: Console, finding: Finding) -> None:
    state = "repaired" if finding.is_repaired else finding.severity
    style = {"repaired": "green", "wrong": "bold red", "note": "yellow"}[state]
    name = f"{finding.table}: " if finding.table else ""
    out.print(Text.assemble((f"{state:8} ", style), name, finding.what), soft_wrap=True)
    out.print(Text(f"         {finding.where}", "dim"), soft_wrap=True)
