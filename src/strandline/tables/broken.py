"""Broken tables: an error in one table does not stop work on the others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from strandline.errors import StrandlineError

_T = TypeVar("_T")
_log = logging.getLogger("strandline.tables")


@dataclass(frozen=True)
class BrokenTable:
    """A table that cannot be read or maintained, and the error."""

    name: str
    kind: str
    message: str
    hint: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "error": {"kind": self.kind, "message": self.message}}


def try_table(name: str, act: Callable[[], _T]) -> _T | BrokenTable:
    """The result of `act` on the table of that name, or a `BrokenTable` for any error."""
    try:
        return act()
    except StrandlineError as error:
        return BrokenTable(name, error.kind, error.message, error.hint)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        # A panic of a Rust library is not an Exception.
        _log.debug("table %s", name, exc_info=True)
        return BrokenTable(name, "Internal", f"{type(error).__name__}: {error}")
