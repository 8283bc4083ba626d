"""A table that could not be done, beside those that were: one table's fault keeps no other from anything."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from strandline.errors import StrandlineError

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BrokenTable:
    """A table that cannot be read or looked after, and why; the others can."""

    name: str
    kind: str
    message: str
    hint: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "error": {"kind": self.kind, "message": self.message}}


def try_table(name: str, act: Callable[[], _T]) -> _T | BrokenTable:
    """What `act` makes of the table of that name, or why it could not, whatever the reason."""
    try:
        return act()
    except StrandlineError as error:
        return BrokenTable(name, error.kind, error.message, error.hint)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        # A library written in Rust may panic, which is no Exception.
        _log.debug("table %s", name, exc_info=True)
        return BrokenTable(name, "Internal", f"{type(error).__name__}: {error}")
