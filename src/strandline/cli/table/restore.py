"""Make a table again what it was."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from strandline.cli.answer import Answer, counted
from strandline.cli.options import DryRun, TableName, seq_or_time, would
from strandline.cli.verb import Call, verb
from strandline.jobs.restore import check_restorable
from strandline.tables.horizon import horizon_at


def register(app: typer.Typer) -> None:
    verb(app, "restore")(restore)


def restore(
    call: Call,
    name: TableName,
    at: Annotated[str, typer.Option(metavar="SEQ|TIME", help="When: a seq, or a time such as 2024-01-31T12:00Z.")],
    dry_run: DryRun = False,
) -> Answer:
    """Make a table again what it was, as one new commit; nothing of what came since is lost."""
    table = call.lake().table(name)
    then = table.merge(seq_or_time(at)).seq
    if dry_run:
        check_restorable(table, then)
        changed = table.changes(after=then).select(list(table.definition.key)).to_pylist()
        count = len({tuple(row.values()) for row in changed})
        what = f"make {name} what it was at seq {then}; {counted(count, 'key')} changed since"
        return would(what, table=name, at=then, changed=count)
    commit = table.restore(then)
    data = {"table": name, "at": then, "seq": commit.seq, "changes": commit.rows}
    txns = table.log.refresh().snapshot.txns

    def show(out: Console) -> None:
        if commit.rows:
            out.print(f"{name} is again what it was at seq {then}: {counted(commit.rows, 'change')}, seq {commit.seq}.")
            out.print(f"Take it back: {call.command(f'table restore {name} --at {commit.seq - 1}')}")
        else:
            out.print(f"No row of {name} was written or deleted after seq {then}; nothing was written.")
        if horizon_at(txns, then) != horizon_at(txns, commit.seq):
            out.print("Rows that have expired since then stay hidden.")

    return Answer(data, show)
