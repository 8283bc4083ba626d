"""Where log lines go: to stderr, as text or as JSON. The only place of the command line that sets up logging.

Without `--log-level`, warnings are shown. The lines of ticks are not, because the verb itself tells what a tick did;
those of the server are, also its access log."""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
import sys
from typing import Any, Literal

import typer

from strandline.cli.answer import moment, plain

Level = Literal["debug", "info", "warning", "error"]
Form = Literal["text", "json"]
LEVEL = typer.Option("--log-level", envvar="STRANDLINE_LOG_LEVEL", help="The lowest level that is logged, to stderr.")
FORM = typer.Option("--log-format", envvar="STRANDLINE_LOG_FORMAT", help="The form of log lines.")
# Help shows the options once, before the verb. There the environment counts, after the verb it does not.
LEVEL_AFTER, FORM_AFTER = typer.Option("--log-level", hidden=True), typer.Option("--log-format", hidden=True)

_ROOTS = ("strandline", "uvicorn")
_PASSWORD = re.compile(r"(?<=://)([^\s/:@]*):[^\s/@]+(?=@)")
_CONTROLS = {code: "\ufffd" for code in (*range(32), 127, *range(128, 160), 0x2028, 0x2029)}
_STANDARD = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"))


def set_up_logs(level: Level | None, form: Form) -> None:
    """Show log lines from now on; a second call replaces the first."""
    handler = _Handler(level, form)
    for name in _ROOTS:
        logger = logging.getLogger(name)
        for old in [each for each in logger.handlers if isinstance(each, _Handler)]:
            logger.removeHandler(old)
        logger.addHandler(handler)
    logging.getLogger("strandline").setLevel(logging.DEBUG if level == "debug" else logging.INFO)


class _Handler(logging.Handler):
    """Writes to the stderr of the moment."""

    def __init__(self, level: Level | None, form: Form) -> None:
        super().__init__()
        self._level, self._form = level, form
        self.addFilter(self._is_shown)

    def _is_shown(self, record: logging.LogRecord) -> bool:
        if self._level is not None:
            return record.levelno >= logging.getLevelNamesMapping()[self._level.upper()]
        package = ".".join(record.name.split(".")[:2])
        least = {"strandline.pipeline": logging.CRITICAL, "strandline.server": logging.INFO}
        return record.levelno >= least.get(package, logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = _write_json(record) if self._form == "json" else _write_text(record)
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def _write_text(record: logging.LogRecord) -> str:
    at = moment(dt.datetime.fromtimestamp(record.created, dt.UTC))
    line = f"{at} {record.levelname.lower():7} {record.name}: {_clean(record.getMessage())}"
    return f"{line}\n{_find_trace(record)}" if record.exc_info else line


def _write_json(record: logging.LogRecord) -> str:
    document: dict[str, Any] = {
        "at": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": _clean(record.getMessage()),
        **{name: plain(value) for name, value in vars(record).items() if name not in _STANDARD},
    }
    if record.exc_info:
        document["trace"] = _find_trace(record)
    return json.dumps(document, ensure_ascii=False, default=str)


def _find_trace(record: logging.LogRecord) -> str:
    assert record.exc_info
    return _PASSWORD.sub(r"\1:***", logging.Formatter().formatException(record.exc_info))


def _clean(text: str) -> str:
    """One line without control characters and without the passwords of addresses."""
    return _PASSWORD.sub(r"\1:***", " ".join(text.split("\n"))).translate(_CONTROLS)
