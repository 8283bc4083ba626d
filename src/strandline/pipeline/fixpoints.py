"""The fixed points of a lake: how each stands, whether its rows are right, and a new computation of all of them.

Those that a program declares can be computed. Of others the facts in their tables are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strandline.consumers.context import Context
from strandline.consumers.contract import Receipt
from strandline.consumers.fixpoint import Fixpoint, VerifyReport, inputs_of
from strandline.consumers.fixpoint_facts import read_facts
from strandline.consumers.plan import plan_own
from strandline.errors import NotFound, StrandlineError
from strandline.tables.count import bound_rows


@dataclass(frozen=True)
class FixpointStatus:
    """A fixed point. `inputs` are the seqs that its rows belong to, by table; `seq` is the commit of its last run,
    which needed `rounds` after a `start` that was cold or warm. `definition` says what is computed. `why` says why the
    next tick will run it, "" when it will not. One that is not `is_declared` in this program is not computed by
    it."""

    name: str
    inputs: Mapping[str, int]
    rows: int
    definition: Mapping[str, Any]
    is_converged: bool
    is_declared: bool
    rounds: int
    start: str
    seq: int
    why: str
    error: StrandlineError | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "error": None if self.error is None else self.error.to_dict()}


def list_fixpoints(context: Context) -> list[FixpointStatus]:
    """Every fixed point of the lake or of this program, by name."""
    return [show_fixpoint(context, name) for name in sorted({*_computed(context), *context.fixpoints})]


def _computed(context: Context) -> list[str]:
    """The tables that were computed as fixed points."""
    found = []
    for name in context.tables():
        try:
            if read_facts(context.table(name).log.refresh()) is not None:
                found.append(name)
        except StrandlineError:
            # The table's own status says what is wrong with it.
            continue
    return found


def show_fixpoint(context: Context, name: str) -> FixpointStatus:
    """One fixed point; `NotFound` lists the others."""
    declared = context.fixpoints.get(name)
    facts, rows = None, 0
    if name in context.tables():
        table = context.table(name)
        facts, rows = read_facts(table.log.refresh()), bound_rows(table.merge())[0]
    if declared is None and facts is None:
        known = ", ".join(sorted({*_computed(context), *context.fixpoints})) or "none"
        raise NotFound(f"there is no fixed point {name!r}", hint=f"There are: {known}", table=name)
    plan = None if declared is None else plan_own(declared, context)
    return FixpointStatus(
        name=name,
        inputs=dict.fromkeys(declared.inputs if declared else (), 0) if facts is None else inputs_of(facts, context),
        rows=rows,
        definition=declared.method.to_dict() if declared else dict(facts.definition) if facts else {},
        is_converged=facts is not None and facts.is_converged,
        is_declared=declared is not None,
        rounds=0 if facts is None else facts.rounds,
        start="" if facts is None else facts.start,
        seq=0 if facts is None else facts.seq,
        why="" if plan is None or not plan.works else plan.works[0].why or "its inputs changed",
        error=None if plan is None else plan.error,
    )


def verify_fixpoint(context: Context, name: str) -> VerifyReport:
    """Compare the rows of a fixed point with those of a cold start. Nothing is written."""
    return _declared(context, name).verify()


def rebuild_fixpoint(context: Context, name: str) -> Receipt:
    """Compute a fixed point anew, from a cold start; the earlier rows stay until then."""
    return _declared(context, name).compute(is_forced=True)


def _declared(context: Context, name: str) -> Fixpoint:
    if name in context.fixpoints:
        return context.fixpoints[name]
    show_fixpoint(context, name)
    raise NotFound(
        f"the fixed point {name!r} is not declared in this program, which cannot compute it",
        hint="Name the program that declares it: --app module:lake",
        table=name,
    )
