"""Examine the lake, and repair what can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from strandline.cli.answer import Answer, Part, counted, fault, note, warning, wrap
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call

if TYPE_CHECKING:
    from strandline.jobs.doctor import Report
    from strandline.pipeline.recover_marks import RecoveredSink
    from strandline.storage.open import Storage


_INDENT = " " * 9


def doctor(
    call: Call,
    repair: Annotated[bool, typer.Option("--repair", help="Replace damaged checkpoints by a new one.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read every row too.")] = False,
    adopt_state: Annotated[
        bool, typer.Option("--adopt-state", help="Recover the marks of sinks from their destinations.")
    ] = False,
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="SINK", help="With --adopt-state: retire this sink instead of asking its destination."),
    ] = None,
) -> Answer:
    """Examine the lake: find damage, and work that waits to be done.

    Ends with 1 when something is wrong.

    With --adopt-state, after the state of the lake's sinks was lost or restored from an old copy: ask every destination
    how far it has come, and continue from there. Ends with 1 when you must decide where a sink continues."""
    if adopt_state:
        return _adopt(call, skip or ())
    if skip:
        raise typer.BadParameter("--skip goes with --adopt-state")
    if call.app is not None:
        return _examine(call, call.lake().storage, deep, repair)
    # A lake that cannot be opened is examined all the same.
    from strandline.storage.open import open_storage
    from strandline.tables.catalog import Catalog

    call.check_folder()
    storage = open_storage(call.path)
    if not any(True for _ in storage.list("catalog")):
        Catalog(storage).check_whole()
        raise call.no_lake(f"no lake at {storage.uri}")
    return _examine(call, storage, deep, repair)


def _examine(call: Call, storage: Storage, deep: bool, repair: bool) -> Answer:
    from strandline.jobs.doctor import examine
    from strandline.pipeline.examine import add_state

    with progress_bar("Examining") as progress:
        files = examine(storage, deep=deep, repair=repair, progress=progress)
    report = add_state(files, call.lake)
    return Answer(report, _tell(call, report, files.is_damaged), is_well=report.is_sound)


def _tell(call: Call, report: Report, is_damaged: bool) -> Iterator[Part]:
    for finding in report.findings:
        state = "repaired" if finding.is_repaired else finding.severity
        style = {"repaired": "green", "wrong": "bold red", "note": "yellow"}[state]
        name = f"{finding.table}: " if finding.table else ""
        yield Text.assemble((f"{state:8} ", style), wrap(f"{name}{finding.what}", _INDENT).lstrip())
        yield note(f"{_INDENT}{finding.where}")
        if finding.command:
            yield note(f"{_INDENT}{call.command(finding.command)}")
    read = f" and {counted(report.rows, 'row')}" if report.is_deep else ""
    yield f"Examined {counted(report.tables, 'table')}, {counted(report.files, 'file')}{read} in {report.uri}"
    open_ = [finding for finding in report.findings if not finding.is_repaired]
    wrong = sum(finding.severity == "wrong" for finding in open_)
    repairable = sum(finding.repair is not None for finding in open_)
    if wrong:
        yield fault(f"{counted(wrong, 'thing is', 'things are')} wrong.")
    else:
        is_failing = any((finding.command or "").startswith("tick ") for finding in open_)
        yield warning("No data is lost.") if repairable or is_failing else Text("Everything holds.", "green")
    if repairable:
        yield f"{counted(repairable, 'thing')} can be repaired: {call.command('doctor --repair')}"
    if is_damaged:
        yield f"Put files that are missing or damaged back from a backup; then: {call.command('compact')}"


def _adopt(call: Call, skip: Sequence[str]) -> Answer:
    lake = call.lake()
    is_lost = not lake.state.registry.all()
    found = lake.adopt_state(skip=skip)
    data = {"lake": lake.storage.uri, "sinks": [each.to_dict() for each in found]}
    is_well = not any(each.is_undecided for each in found)
    return Answer(data, _tell_adopt(call, found, is_lost), is_well=is_well)


def _tell_adopt(call: Call, found: Sequence[RecoveredSink], is_lost: bool) -> Iterator[Part]:
    from strandline.state.key_positions import IN_HISTORY

    for each in found:
        if each.marks is not None:
            low, high = min(each.marks.values()), max(each.marks.values())
            at = f"seq {low:,}" if low == high else f"seqs {low:,} to {high:,}"
            rest = f"; it finishes {counted(each.begun, 'batch', 'batches')} first" if each.begun else ""
            yield f"{each.name}: goes on after {at}, {each.why}{rest}."
            continue
        yield f"{each.name}: {'waits for you' if each.is_undecided else 'retired'}: {each.why}."
        if each.why == IN_HISTORY:
            yield note(f"  Deliver it again: {call.command(f'backfill restart {each.name}')}")
        else:
            again = call.command(f"mark reset {each.name}")
            yield note(f"  Say where it goes on: {again} (the whole table; --to SEQ, --head)")
        if each.is_undecided:
            yield note(f"  Or give it up: {call.command(f'mark retire {each.name}')}")
    retired = sum(each.marks is None for each in found)
    waiting = sum(each.is_undecided for each in found)
    said = "There are no sinks to adopt."
    if found:
        goes = counted(len(found) - retired, "sink goes", "sinks go")
        said = f"{goes} on, {retired - waiting:,} retired{f', {waiting:,} waiting for you' if waiting else ''}."
    yield f"Lake and state belong together again. {said}"
    if is_lost:
        again = call.command("token add NAME --role writer")
        yield f"If its server had tokens, they were lost with the state. Make them again: {again}"
