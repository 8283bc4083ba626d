"""A consumer, which follows a table's log, and the values that it returns.

A consumer plans its work from commit files and marks alone (`plan`), and does one piece of work at a time (`run`).
The loop does the rest: leases, intents, epochs, marks, crash points, receipts (see `loop`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from strandline.consumers.work import Work
from strandline.errors import StrandlineError
from strandline.model.change import RefusedRows
from strandline.sinks.contract import Tally
from strandline.state.marks import ConsumerState
from strandline.tables.collection import Tables


@dataclass(frozen=True)
class LaneStart:
    """A lane before it begins: it is done already, has cuts to save with its intent, or cannot begin."""

    is_done: bool = False
    cuts: Any = None
    error: StrandlineError | None = None


@dataclass(frozen=True)
class LaneEnd:
    """How a lane ended. `dead` rows were refused for good. With `cuts` it has stopped, and runs again after they are
    saved. With `error` it failed: the marks of its vnodes stay. `tally` counts its rows in a backfill."""

    dead: tuple[RefusedRows, ...] = ()
    cuts: Any = None
    error: StrandlineError | None = None
    tally: Tally = field(default_factory=dict, hash=False)


@dataclass(kw_only=True)
class Receipt:
    """What a run did. `rows` and `bytes` were written or sent, `rows_read` and `bytes_read` were read for it;
    `withheld` rows were not sent, `dead` ones were refused for good. `upto` is the seq that marks reached which the
    effect itself carries, None when it moved none. `facts` are a consumer's own. `ends` says how lanes ended, by their
    vnodes; a lane that is missing there is done."""

    rows: int = 0
    bytes: int = 0
    rows_read: int = 0
    bytes_read: int = 0
    withheld: int = 0
    dead: int = 0
    requests: int = 0
    retries: int = 0
    files: int = 0
    jobs: int = 0
    upto: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    ends: dict[tuple[int, ...], LaneEnd] = field(default_factory=dict)


_COUNTS = ("rows", "bytes", "rows_read", "bytes_read", "withheld", "dead", "requests", "retries", "files", "jobs")
_KEPT = (*_COUNTS, "facts", "replays", "rounds", "is_full", "after", "upto", "seconds")


@dataclass(kw_only=True)
class ConsumerReport(Receipt):
    """What a tick did for one consumer; marks moved from `after` to `upto`, both None when no mark moved.

    `replays` counts the lanes that repeated an earlier run, `rounds` those of a table's history; `is_full` says that
    the whole table was read. `is_busy`: another runner works on it. `is_cut`: its turn ended before its work. `why`
    says what has changed. `lost` are dropped columns that its condition names.
    `errors` are all errors, `error` is the first."""

    name: str
    table: str
    kind: str
    destination: str
    after: int | None = None
    replays: int = 0
    rounds: int = 0
    is_full: bool = False
    is_new: bool = False
    is_busy: bool = False
    is_cut: bool = False
    why: str = ""
    lost: tuple[str, ...] = ()
    seconds: float = 0.0
    errors: list[StrandlineError] = field(default_factory=list)

    @property
    def error(self) -> StrandlineError | None:
        return self.errors[0] if self.errors else None

    @property
    def is_all_refused(self) -> bool:
        """Whether the destination took no row and refused some: it may be the wrong destination."""
        return bool(self.dead) and not self.rows

    @property
    def is_well(self) -> bool:
        """Whether nothing failed and no row was refused."""
        return not self.errors and not self.dead

    def add(self, receipt: Receipt) -> None:
        """Add the counts of a run."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(receipt, name))
        self.facts |= receipt.facts

    def reach(self, after: int, upto: int) -> None:
        """Note that marks moved over a range."""
        self.after = after if self.after is None else min(self.after, after)
        self.upto = upto if self.upto is None else max(self.upto, upto)

    def receipt(self) -> dict[str, Any]:
        """The receipt that the state keeps."""
        error = None if self.error is None else self.error.to_dict()
        return {**{name: getattr(self, name) for name in _KEPT}, "error": error}

    def to_dict(self) -> dict[str, Any]:
        who = {"name": self.name, "table": self.table, "kind": self.kind, "destination": self.destination}
        what = {"is_new": self.is_new, "is_busy": self.is_busy, "why": self.why, "lost": list(self.lost)}
        return {**who, **self.receipt(), **what}


class Consumer(Protocol):
    """Follows the log of a table. A consumer whose effect carries its own mark, such as a fold, implements this alone;
    a consumer with marks in the state is a `LogConsumer`."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def table(self) -> str:
        """The name of its table."""
        ...

    @property
    def destination(self) -> str:
        """A text that identifies where its effect goes."""
        ...

    def plan(self, tables: Tables, known: ConsumerState) -> Sequence[Work]:
        """The works to do now, from commit files and marks; no data file is read. `known` is its record in the
        state."""
        ...

    def run(self, work: Work) -> Receipt:
        """Do one piece of work. `Conflict` when another process was faster: then it is planned again."""
        ...
