"""The part of an examination that checks the state and the sinks of a lake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from strandline.consumers.context import Context
from strandline.errors import Conflict, StrandlineError
from strandline.jobs.doctor import Finding, Report
from strandline.pipeline.status import Attention, ConsumerStatus, status_of


def add_state(report: Report, open_context: Callable[[], Context]) -> Report:
    """The report with the findings of the state: it is missing or outdated, a sink has failed, or refused rows wait for
    a person. A lake that cannot be opened is a finding too."""
    try:
        context = open_context()
        if context.has_state:
            context.state.epoch.check()
        status = status_of(context)
        found = [_find_failure(sink) for sink in status.marked if sink.error]
        found += [_find_waiting(each, report.uri) for each in status.attention if each.cause in ("letters", "rejects")]
    except StrandlineError as error:
        command = "doctor --adopt-state" if isinstance(error, Conflict) else None
        found = [Finding("wrong", None, error.message, error.fields.get("state", report.uri), command=command)]
    return replace(report, findings=(*report.findings, *found))


def _find_waiting(each: Attention, uri: str) -> Finding:
    return Finding("wrong", None, each.what, uri, command=each.command)


def _find_failure(sink: ConsumerStatus) -> Finding:
    """The finding of a failed sink; only a note when its destination did not answer: the next tick tries again."""
    if sink.is_retired:
        return Finding("wrong", sink.table, sink.error or "", sink.destination, command=f"mark reset {sink.name}")
    last = (sink.last.body.get("error") if sink.last else None) or {}
    is_passing = last.get("kind") == "Unavailable" and last.get("message") == sink.error
    what = f"sink {sink.name} failed{', and the next tick tries again' if is_passing else ''}: {sink.error}"
    return Finding("note" if is_passing else "wrong", sink.table, what, sink.destination, command=f"tick {sink.name}")
