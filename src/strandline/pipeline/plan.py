"""What a tick will do, as data: for every consumer the due works with their size and engine.

A plan is made from commit files and the state alone; no data file is read. A dry run prints it, `tick` carries it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strandline.consumers.compaction import Compaction
from strandline.consumers.context import Context
from strandline.consumers.plan import ConsumerPlan, plan_marked
from strandline.consumers.retention import Retention
from strandline.errors import NotFound
from strandline.pipeline.resolve import fixpoint_plans, split_names, table_plans
from strandline.tables.broken import BrokenTable


@dataclass(frozen=True)
class Plan:
    """What a tick will do: first all consumers with marks in the state, then those retentions and compactions that are
    due. `broken` are tables that cannot be planned."""

    consumers: tuple[ConsumerPlan, ...]
    broken: tuple[BrokenTable, ...] = ()

    @property
    def sinks(self) -> tuple[ConsumerPlan, ...]:
        return tuple(each for each in self.consumers if each.is_sink)

    @property
    def compact(self) -> tuple[str, ...]:
        """The tables with something to fold."""
        return self._tables(Compaction.kind)

    @property
    def expire(self) -> tuple[str, ...]:
        """The tables with rows past their time."""
        return self._tables(Retention.kind)

    def _tables(self, kind: str) -> tuple[str, ...]:
        return tuple(each.table for each in self.consumers if each.kind == kind and each.works)

    @property
    def is_idle(self) -> bool:
        return not self.broken and not any(each.works or each.error for each in self.consumers)

    @property
    def is_well(self) -> bool:
        return not self.broken and all(each.error is None for each in self.consumers)

    def to_dict(self) -> dict[str, Any]:
        return {
            "consumers": [each.to_dict() for each in self.consumers],
            "broken": [each.to_dict() for each in self.broken],
        }


def plan_of(context: Context, names: Sequence[str] | None = None) -> Plan:
    """What a tick of the lake, or of these consumers alone, would do now."""
    marked, of_tables = split_names(names)
    plans, broken = table_plans(context, of_tables)
    fixpoints = [plan() for _, plan in fixpoint_plans(context, of_tables)]
    due = [plan for plan in fixpoints if plan.is_due]
    return Plan((*due, *marked_plans(context, marked), *(plan for _, plan in plans)), tuple(broken))


def marked_plans(context: Context, names: Sequence[str] | None = None) -> list[ConsumerPlan]:
    """The plans of these consumers with marks in the state, or of all of them."""
    known = context.consumer_states()
    for name in names or ():
        if name not in known:
            hint = f"There are: {', '.join(known) or 'no sinks'}; {Compaction.kind}/TABLE, {Retention.kind}/TABLE"
            raise NotFound(f"there is no sink or other consumer {name!r}", hint=hint, consumer=name)
    return [plan_marked(context, name, known[name]) for name in (known if names is None else names)]
