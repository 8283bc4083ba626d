"""List, show, verify, rebuild and drop fixed points: results of an iteration that are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.answer import Answer, Part, Rows, counted, facts, fault
from strandline.cli.options import Yes
from strandline.cli.verb import Call

if TYPE_CHECKING:
    from strandline.pipeline.fixpoints import FixpointStatus

Name = Annotated[str, typer.Argument(metavar="NAME", help="The fixed point: the name of its table.")]


def list_(call: Call) -> Answer:
    """List the fixed points, with what the next tick will do."""
    from strandline.pipeline.fixpoints import list_fixpoints

    lake = call.lake()
    found = list_fixpoints(lake)

    def tell() -> Iterator[Part]:
        if found:
            columns = ("FIXED POINT", "INPUTS", "ROWS", "LAST RUN", "NEXT TICK")
            yield Rows(columns, [_make_row(each) for each in found], cut=("INPUTS", "NEXT TICK"))
        else:
            yield "There are no fixed points. A program declares them: see docs/fixpoints.md"

    return Answer({"lake": lake.storage.uri, "fixpoints": [each.to_dict() for each in found]}, tell())


def _make_row(each: FixpointStatus) -> tuple[object, ...]:
    return each.name, ", ".join(each.inputs), each.rows, _last_run(each), _next_tick(each)


def _last_run(each: FixpointStatus) -> str:
    if not each.seq:
        return "never"
    ended = "" if each.is_converged else ", ended by its limit"
    return f"{each.start} start, {counted(each.rounds, 'round')}{ended}"


def _next_tick(each: FixpointStatus) -> str:
    if not each.is_declared:
        return "not declared here"
    return f"failed: {each.error.message}" if each.error else each.why or "nothing to do"


def show(call: Call, name: Name) -> Answer:
    """Show a fixed point: what it computes, to which seqs its rows belong, and its last run."""
    from strandline.pipeline.fixpoints import show_fixpoint

    found = show_fixpoint(call.lake(), name)

    def tell() -> Iterator[Part]:
        yield f"{name}: {counted(found.rows, 'row')}"
        shown = [(key, value) for key, value in found.definition.items() if value is not None]
        inputs = [(f"input {table}", f"seq {seq:,}") for table, seq in found.inputs.items()]
        yield from facts([*shown, *inputs, ("last run", _last_run(found)), ("next tick", _next_tick(found))])
        if found.error:
            yield fault("failed: ", str(found.error))

    return Answer(found, tell())


def verify(call: Call, name: Name) -> Answer:
    """Compare the rows with those of a cold start on the same inputs. Nothing is written. Ends with 1 when they
    differ."""
    from strandline.pipeline.fixpoints import verify_fixpoint

    found = verify_fixpoint(call.lake(), name)
    inputs = ", ".join(f"{table} at seq {seq:,}" for table, seq in found.inputs.items())

    def tell() -> Iterator[Part]:
        if found.is_right:
            yield f"{name}: all {counted(found.rows, 'row')} are those of a cold start on {inputs}."
            return
        yield fault(f"{name}: ", f"{counted(found.wrong, 'row')} differ from a cold start on {inputs}, such as:")
        for key in found.keys:
            yield "    " + ", ".join(f"{column} = {value!r}" for column, value in key.items())
        yield "A step is of another kind than it says, or rows were written by hand."
        yield f"Compute it anew: {call.command(f'fixpoint rebuild {name}')}"

    return Answer(found, tell(), is_well=found.is_right)


def rebuild(call: Call, name: Name) -> Answer:
    """Compute it anew, from a cold start. The earlier rows stay until the new ones are there."""
    from strandline.pipeline.fixpoints import rebuild_fixpoint

    done = rebuild_fixpoint(call.lake(), name)
    rounds = counted(int(done.facts.get("rounds", 0)), "round")
    data = {"name": name, "rows": done.rows, "facts": done.facts}
    return Answer(data, f"{name} was computed anew in {rounds}: {counted(done.rows, 'row')} changed.")


def drop(call: Call, name: Name, yes: Yes = False) -> Answer:
    """Drop the table of a fixed point. While a program declares it, the next tick computes it again."""
    from strandline.cli.table.drop import drop as drop_table
    from strandline.pipeline.fixpoints import show_fixpoint

    show_fixpoint(call.lake(), name)
    return drop_table(call, name, yes)


VERBS = {"list": list_, "show": show, "verify": verify, "rebuild": rebuild, "drop": drop}
