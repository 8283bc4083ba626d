"""The consumers of a lake: those with marks in the state, and the retention and compaction of each table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from graphlib import CycleError, TopologicalSorter

from strandline.consumers.compaction import Compaction
from strandline.consumers.context import Context
from strandline.consumers.contract import Consumer
from strandline.consumers.fixpoint import FIXPOINT, Fixpoint
from strandline.consumers.plan import ConsumerPlan, plan_own
from strandline.consumers.registration import declared_sink
from strandline.consumers.retention import Retention
from strandline.errors import Invalid, NotFound
from strandline.sinks.definition import KINDS, SinkDef
from strandline.tables.broken import BrokenTable, try_table
from strandline.tables.store import TableStore


def table_consumers(context: Context, name: str) -> list[Consumer]:
    """The retention and the compaction of a table."""
    table = context.table(name)
    return [Retention(table), Compaction(table)]


def table_plans(
    context: Context, names: Sequence[str] | None = None
) -> tuple[list[tuple[Consumer, ConsumerPlan]], list[BrokenTable]]:
    """The due retentions and compactions, and the tables that cannot be planned; with names, of those consumers."""

    def plan_table(name: str) -> list[tuple[Consumer, ConsumerPlan]]:
        chosen = [each for each in table_consumers(context, name) if names is None or each.name in names]
        return [(each, plan_own(each, context)) for each in chosen]

    own = None if names is None else [name for name in names if not name.startswith(f"{FIXPOINT}/")]
    of_tables = context.tables() if own is None else [context.table(name.partition("/")[2]).name for name in own]
    found = [try_table(name, partial(plan_table, name)) for name in dict.fromkeys(of_tables)]
    broken = [each for each in found if isinstance(each, BrokenTable)]
    plans = [pair for each in found if not isinstance(each, BrokenTable) for pair in each if pair[1].is_due]
    # Expiry first, so that expired rows are not folded.
    return sorted(plans, key=lambda pair: isinstance(pair[0], Compaction)), broken


def fixpoint_plans(
    context: Context, names: Sequence[str] | None = None
) -> list[tuple[Fixpoint, Callable[[], ConsumerPlan]]]:
    """The declared fixed points, each behind its inputs, with a call that plans it; with names, those alone."""
    sorter = TopologicalSorter({name: each.inputs for name, each in context.fixpoints.items()})
    try:
        order = [name for name in sorter.static_order() if name in context.fixpoints]
    except CycleError as error:
        ring = " → ".join(error.args[1])
        raise Invalid(f"fixed points need one another: {ring}", hint="Take one of them out of the inputs.") from error
    known = [each.name for each in context.fixpoints.values()]
    for name in names or ():
        if name.startswith(f"{FIXPOINT}/") and name not in known:
            raise NotFound(f"there is no {name!r} in this program", hint=f"There are: {', '.join(known) or 'none'}")
    chosen = [context.fixpoints[name] for name in order]
    return [(each, partial(plan_own, each, context)) for each in chosen if names is None or each.name in names]


def split_names(names: Sequence[str] | None) -> tuple[list[str] | None, list[str] | None]:
    """The chosen consumers: those with marks in the state, and those whose marks lie in tables (`compaction/TABLE`).
    None for all."""
    if names is None:
        return None, None
    chosen: tuple[list[str], list[str]] = [], []
    for name in dict.fromkeys(names):
        chosen[name.partition("/")[0] in (Retention.kind, Compaction.kind, FIXPOINT) and "/" in name].append(name)
    return chosen


def active_sinks(context: Context) -> dict[str, SinkDef]:
    """The sinks that are not retired, by name: as declared here, else as on record, with the present name of their
    table."""
    tables = {entry.generation: entry.name for entry in context.catalog.refresh().tables.values()}
    found = {}
    for name, known in context.consumer_states().items():
        record = known.consumer
        sink = declared_sink(context, name, record)
        if sink is None and record is not None and record.kind in KINDS:
            table = tables.get(record.table_generation, record.table)
            sink = SinkDef.from_dict(name, table, record.definition)
        if sink is not None and (record is None or not record.is_retired):
            found[name] = sink
    return found


def sinks_needing(context: Context, table: TableStore, column: str, *, in_any_setting: bool = False) -> list[str]:
    """The sinks of a table whose conditions need a column: without it they send nothing. With `in_any_setting` those
    that name it in `columns` or `mask` too."""
    mine = {name: sink for name, sink in active_sinks(context).items() if sink.table == table.name}

    def is_named(sink: SinkDef) -> bool:
        if in_any_setting and column in (*(sink.columns or ()), *(sink.mask or ())):
            return True
        try:
            predicate = sink.outgoing(table.definition, with_salt=False).predicate if sink.where else None
        except Invalid:
            # An earlier rename stopped it: it names no column of the table.
            return False
        return predicate is not None and column in predicate.columns

    return [name for name, sink in mine.items() if is_named(sink)]
