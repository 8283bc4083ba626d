"""Examine the lake, and repair what can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from strandline.cli.answer import Answer, counted
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call, verb
from strandline.errors import Conflict, StrandlineError
from strandline.jobs.doctor import Finding, Report, examine
from strandline.jobs.doctor.finding import Severity
from strandline.pipeline.recover_marks import adopt_state
from strandline.pipeline.status import ConsumerStatus
from strandline.storage.open import Storage, open_storage
from strandline.tables.catalog import Catalog


def register(app: typer.Typer) -> None:
    verb(app, "doctor")(doctor)


def doctor(
    call: Call,
    repair: Annotated[bool, typer.Option("--repair", help="Replace bad checkpoints by a new one.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read every row as well.")] = False,
    adopt_state: Annotated[
        bool, typer.Option("--adopt-state", help="Recover the marks of sinks from their destinations.")
    ] = False,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="SINK", help="With --adopt-state: retire this sink unasked.")
    ] = None,
) -> Answer:
    """Examine the lake: does everything hold that should, and what waits to be done?

    Ends with 1 when something is wrong.

    With --adopt-state, after the state of the lake's sinks was lost or put back from an old copy: ask every destination
    how far it has come, and go on from there. Ends with 1 when a sink waits for you to say where it goes on."""
    if adopt_state:
        return _adopted(call, skip or ())
    if skip:
        raise typer.BadParameter("--skip goes with --adopt-state")
    if call.app is not None:
        return _examined(call, call.lake().storage, deep, repair)
    call.check_folder()
    storage = open_storage(call.path)
    if not any(True for _ in storage.list("catalog")):
        Catalog(storage).check_whole()
        raise call.no_lake(f"no lake at {storage.uri}")
    return _examined(call, storage, deep, repair)


def _examined(call: Call, storage: Storage, deep: bool, repair: bool) -> Answer:
    with progress_bar("Examining") as progress:
        report = examine(storage, deep=deep, repair=repair, progress=progress)
    is_damaged = any(finding.is_for_a_person for finding in report.findings)
    report = replace(report, findings=(*report.findings, *_state_findings(call)))
    return Answer(report.to_dict(), lambda out: _show(out, call, report, is_damaged), 0 if report.is_sound else 1)


def _state_findings(call: Call) -> list[Finding]:
    """Whether the lake's sinks can go on: its state is there and is not an older one, and none of them has failed."""
    try:
        lake = call.lake()
        if lake.has_state:
            lake.state.epoch.check()
        found = lake.status().marked if lake.has_state or lake.declared else ()
        return [_sink_finding(sink) for sink in found if sink.error]
    except StrandlineError as error:
        command = "doctor --adopt-state" if isinstance(error, Conflict) else None
        return [Finding("wrong", None, error.message, error.fields.get("state", call.path), command=command)]


def _sink_finding(sink: ConsumerStatus) -> Finding:
    """A sink that failed. One whose destination did not answer goes on by itself when it does."""
    told = (sink.last.body.get("error") if sink.last else None) or {}
    is_passing = told.get("kind") == "Unavailable" and told.get("message") == sink.error
    what = f"sink {sink.name} failed{', and the next tick tries again' if is_passing else ''}: {sink.error}"
    severity: Severity = "note" if is_passing else "wrong"
    if sink.is_retired:
        return Finding("wrong", sink.table, sink.error or "", sink.destination, command=f"mark reset {sink.name}")
    return Finding(severity, sink.table, what, sink.destination, command=f"tick {sink.name}")


def _adopted(call: Call, skip: Sequence[str]) -> Answer:
    lake = call.lake()
    is_lost = not lake.state.registry.all()
    found = adopt_state(lake, skip=skip)
    retired = sum(each.marks is None for each in found)
    waiting = sum(each.is_undecided for each in found)

    def show(out: Console) -> None:
        for each in found:
            if each.marks is None:
                state = "waits for you" if each.is_undecided else "retired"
                out.print(f"{each.name}: {state}: {each.why}.", soft_wrap=True)
                again = call.command(f"mark reset {each.name}")
                out.print(Text(f"  Say where it goes on: {again} (the whole table; --to SEQ, --head)", "dim"))
                if each.is_undecided:
                    out.print(Text(f"  Or give it up: {call.command(f'mark retire {each.name}')}", "dim"))
            else:
                low, high = min(each.marks.values()), max(each.marks.values())
                at = f"seq {low:,}" if low == high else f"seqs {low:,} to {high:,}"
                rest = f"; it finishes {counted(each.begun, 'batch', 'batches')} first" if each.begun else ""
                out.print(f"{each.name}: goes on after {at}, {each.why}{rest}.", soft_wrap=True)
        said = "There are no sinks to adopt."
        if found:
            goes = counted(len(found) - retired, "sink goes", "sinks go")
            said = f"{goes} on, {retired - waiting:,} retired{f', {waiting:,} waiting for you' if waiting else ''}."
        out.print(f"Lake and state belong together again. {said}")
        if is_lost:
            again = call.command("token add NAME --role writer")
            out.print(f"If its server had tokens, they were lost with the state. Make them again: {again}")

    return Answer({"lake": lake.storage.uri, "sinks": [each.to_dict() for each in found]}, show, 1 if waiting else 0)


def _show(out: Console, call: Call, report: Report, is_damaged: bool) -> None:
    for finding in report.findings:
        _show_finding(out, call, finding)
    read = f" and {counted(report.rows, 'row')}" if report.is_deep else ""
    out.print(f"Examined {counted(report.tables, 'table')}, {counted(report.files, 'file')}{read} in {report.uri}")
    open_ = [finding for finding in report.findings if not finding.is_repaired]
    wrong = sum(finding.severity == "wrong" for finding in open_)
    repairable = sum(finding.repair is not None for finding in open_)
    if wrong:
        out.print(Text(f"{counted(wrong, 'thing is', 'things are')} wrong.", "bold red"))
    elif repairable:
        out.print(Text("No data is lost.", "yellow"))
    else:
        out.print(Text("Everything holds.", "green"))
    if repairable:
        out.print(f"{counted(repairable, 'thing')} can be repaired: {call.command('doctor --repair')}")
    if is_damaged:
        out.print(f"Put files that are missing or damaged back from a backup; then: {call.command('compact')}")


def _show_finding(out: Console, call: Call, finding: Finding) -> None:
    state = "repaired" if finding.is_repaired else finding.severity
    style = {"repaired": "green", "wrong": "bold red", "note": "yellow"}[state]
    name = f"{finding.table}: " if finding.table else ""
    out.print(Text.assemble((f"{state:8} ", style), name, finding.what), soft_wrap=True)
    out.print(Text(f"         {finding.where}", "dim"), soft_wrap=True)
    if finding.command:
        out.print(Text(f"         {call.command(finding.command)}", "dim"), soft_wrap=True)
