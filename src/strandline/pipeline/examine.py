"""The part of an examination that checks the state and the sinks of a lake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from strandline.consumers.context import Context
from strandline.errors import Conflict, StrandlineError
from strandline.jobs.doctor import Finding, Report
from strandline.pipeline.status import ConsumerStatus, status_of


def add_state(report: Report, open_context: Callable[[], Context]) -> Report:
    """The report with the findings of the state: it is missing or outdated, or a sink has failed. A lake that cannot be
    opened is a finding too."""
    try:
        context = open_context()
        if context.has_state:
            context.state.epoch.check()
        sinks = status_of(context).marked if context.has_state or context.declared else ()
        found = [_find_failure(sink) for sink in sinks if sink.error]
    except StrandlineError as error:
        command = "doctor --adopt-state" if isinstance(error, Conflict) else None
        found = [Finding("wrong", None, error.message, error.fields.get("state", report.uri), command=command)]
    return replace(report, findings=(*report.findings, *found))


def _find_failure(sink: ConsumerStatus) -> Finding:
    """The finding of a failed sink; only a note when its destination did not answer: the next tick tries again."""
    if sink.is_retired:
        return Finding("wrong", sink.table, sink.error or "", sink.destination, command=f"mark reset {sink.name}")
    last = (sink.last.body.get("error") if sink.last else None) or {}
    is_passing = last.get("kind") == "Unavailable" and last.get("message") == sink.error
    what = f"sink {sink.name} failed{', and the next tick tries again' if is_passing else ''}: {sink.error}"
    return Finding("note" if is_passing else "wrong", sink.table, what, sink.destination, command=f"tick {sink.name}")
