"""Failures that go on from tick to tick: each is news once, again when it changes, and when it is over."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass

from strandline.errors import StrandlineError, Unavailable
from strandline.pipeline.report import TickReport, refused_rows

_log = logging.getLogger("strandline.pipeline")
WHOLE_TICK = "tick"
# The parts of a message that differ from attempt to attempt. Each attempt to write has new files with random names;
# a damaged file is another matter: its name stays.
_VARYING = re.compile(r"\bonce\b|\b[\d.,]+ (?:times|s|ms|seconds|rows?|bytes)\b")
_NEW_FILE = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")


@dataclass(frozen=True)
class News:
    """What is new about failures: `repeated` are consumers and tables that fail as before, `recovered` those that work
    again."""

    repeated: frozenset[str] = frozenset()
    recovered: tuple[str, ...] = ()


class Failures:
    """The failures that are known. A consumer is known by its name, a table that cannot be planned by `table NAME`, the
    failure of a whole tick by `tick`."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str]] = {}

    def note(self, heard: TickReport | StrandlineError) -> News:
        """Remember the failures of a tick, and tell which are not new and which are over."""
        before, now = self._known, dict(_list_failures(heard))
        repeated = frozenset(name for name, cause in now.items() if before.get(name) == cause)
        if isinstance(heard, StrandlineError):
            # Nothing is known of the consumers.
            self._known = before | now
            return News(repeated)
        fine = {each.name for each in heard.consumers if each.error is None and not each.is_busy} | {WHOLE_TICK}
        gone = {name for name in before if name.startswith("table ") and name not in now}
        self._known = {name: cause for name, cause in before.items() if name not in fine | gone} | now
        return News(repeated, tuple(name for name in before if name in fine | gone and name not in now))


def _list_failures(heard: TickReport | StrandlineError) -> Iterator[tuple[str, tuple[str, str]]]:
    if isinstance(heard, StrandlineError):
        yield WHOLE_TICK, _find_cause(heard.kind, heard.message)
        return
    for each in heard.consumers:
        if each.error is not None:
            yield each.name, _find_cause(each.error.kind, each.error.message)
    for table in heard.broken:
        yield f"table {table.name}", _find_cause(table.kind, table.message)


def _find_cause(kind: str, message: str) -> tuple[str, str]:
    cause = _VARYING.sub("", message)
    return kind, _NEW_FILE.sub("", cause) if kind == Unavailable.__name__ else cause


def log_tick(heard: TickReport | StrandlineError, news: News) -> None:
    """Log what a tick did: each consumer's outcome, and errors unless they are known."""
    for name in news.recovered:
        _log.info("%s works again", name, extra={"consumer": name})
    if isinstance(heard, StrandlineError):
        _log_error(WHOLE_TICK, heard, news, {})
        return
    for each in heard.consumers:
        who = {"consumer": each.name, "table": each.table, "kind": each.kind}
        done = {"rows": each.rows, "bytes": each.bytes, "seconds": each.seconds}
        if each.is_busy:
            _log.info("%s: another runner works on it", each.name, extra=who)
        elif each.after is not None and each.upto is not None:
            line = "%s: %d rows, seq %d to %d, %.1f s"
            values = (each.name, each.rows, each.after, each.upto, each.seconds)
            _log.info(line, *values, extra={**who, **done, "after": each.after, "upto": each.upto})
        if each.dead:
            refused = refused_rows(each)
            _log.warning("%s. %s", refused.message, refused.hint, extra={**who, "dead": each.dead})
        for error in each.errors:
            _log_error(each.name, error, news, who)
    for table in heard.broken:
        error = StrandlineError(table.message, hint=table.hint)
        _log_error(f"table {table.name}", error, news, {"table": table.name}, kind=table.kind)


def _log_error(name: str, error: StrandlineError, news: News, who: dict[str, str], *, kind: str | None = None) -> None:
    kind = kind or error.kind
    level = logging.DEBUG if name in news.repeated else logging.ERROR
    hint = f". {error.hint}" if error.hint else ""
    _log.log(level, "%s failed: %s: %s%s", name, kind, error.message, hint, extra={**who, "error": kind})
