"""What a tick did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from strandline import errors
from strandline.consumers.compaction import Compaction
from strandline.consumers.contract import ConsumerReport
from strandline.consumers.retention import Retention
from strandline.errors import Conflict, Corrupt, Internal, Invalid, StrandlineError, Unavailable
from strandline.sinks.definition import KINDS
from strandline.tables.broken import BrokenTable

# Of several errors the first of these kinds is raised: `Unavailable` only when a later tick may succeed by itself.
_GRAVEST = (Corrupt, Internal, Invalid, Conflict, Unavailable)


@dataclass(frozen=True)
class TickReport:
    """What a tick did, for the consumers that had work or failed. `broken` are tables that could not be planned.
    `working` are consumers that are still running; `run` does not wait for them. `paused` are consumers that
    nobody serves until they are resumed."""

    consumers: tuple[ConsumerReport, ...]
    broken: tuple[BrokenTable, ...] = ()
    seconds: float = 0.0
    working: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()

    @property
    def sinks(self) -> tuple[ConsumerReport, ...]:
        return tuple(each for each in self.consumers if each.kind in KINDS)

    @property
    def compacted(self) -> tuple[ConsumerReport, ...]:
        """The folds of tables."""
        return tuple(each for each in self.consumers if each.kind == Compaction.kind)

    @property
    def expired(self) -> tuple[str, ...]:
        """The tables with newly expired rows."""
        return tuple(each.table for each in self.consumers if each.kind == Retention.kind and "seq" in each.facts)

    @property
    def is_well(self) -> bool:
        """Whether nothing failed and no destination refused a row."""
        return not self.broken and all(each.is_well for each in self.consumers)

    @property
    def rows(self) -> int:
        """The number of rows that were sent to sinks."""
        return sum(each.rows for each in self.sinks)

    @property
    def is_idle(self) -> bool:
        return not self.consumers and not self.broken and not self.working

    def raise_for_errors(self) -> None:
        """Raise unless the tick `is_well`: the one error, or one error that names all of them."""
        found = list(self._errors())
        if not found:
            return
        if len(found) == 1:
            raise found[0][1]
        kind = next(kind for kind in (*_GRAVEST, StrandlineError) if any(isinstance(each, kind) for _, each in found))
        hints = dict.fromkeys(each.hint for _, each in found if each.hint)
        raise kind(
            f"{len(found)} errors: " + "; ".join(f"{name}: {each.kind}: {each.message}" for name, each in found),
            hint="\n".join(hints) or None,
            failed=[name for name, _ in found],
        ) from found[0][1]

    def _errors(self) -> Iterator[tuple[str, StrandlineError]]:
        for each in self.consumers:
            yield from ((each.name, error) for error in each.errors)
            if each.dead:
                yield each.name, refused_rows(each)
        for table in self.broken:
            kind = getattr(errors, table.kind, Internal)
            yield table.name, kind(f"table {table.name!r}: {table.message}", hint=table.hint, table=table.name)

    def to_dict(self) -> dict[str, Any]:
        return {
            "consumers": [each.to_dict() for each in self.consumers],
            "broken": [each.to_dict() for each in self.broken],
            "seconds": self.seconds,
            "working": list(self.working),
            "paused": list(self.paused),
        }


def refused_rows(report: ConsumerReport) -> Invalid:
    """The error of a consumer whose destination refused rows."""
    rows = f"{report.dead:,} row{'' if report.dead == 1 else 's'} of {report.table}"
    return Invalid(
        f"{report.name}: {report.destination} refused {rows}, now dead letters",
        hint=f"See: strandline deadletter list {report.name}",
        consumer=report.name,
        table=report.table,
        rows=report.dead,
    )
