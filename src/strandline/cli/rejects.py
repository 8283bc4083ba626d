"""See the rows that an ingest refused, load them again or drop them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.answer import Answer, Part, Rows, counted, cut
from strandline.cli.options import Yes
from strandline.cli.verb import Call, PlainGroup

if TYPE_CHECKING:
    from strandline.tables.rejects import RejectGroup

Name = Annotated[str, typer.Argument(metavar="TABLE", help="The table that was loaded.")]
File = Annotated[
    str | None, typer.Option("--file", metavar="PATH", help="Only rows of this file: its path, or the end of it.")
]


class Group(PlainGroup):
    """The verbs; a word that is none of them is a table to show."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["show", *args]
        return super().resolve_command(ctx, args)


def list_(
    call: Call,
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="The table; without a name, all of them.")
    ] = None,
) -> Answer:
    """Count the refused rows by file and reason."""
    lake = call.lake()
    names = lake.tables() if table is None else [table]
    groups = [group for name in names for group in lake.table(name).rejects().list()]
    data = {"count": sum(group.count for group in groups), "groups": [group.to_dict() for group in groups]}
    if not groups:
        return Answer(data, "No row was refused." if table is None else _tell_none(table))
    return Answer(data, _tell_groups(call, groups))


def _tell_none(table: str, file: str | None = None) -> str:
    return f"No row of {table} was refused{'' if file is None else f' in a file {file}'}."


def _tell_groups(call: Call, groups: list[RejectGroup]) -> Iterator[Part]:
    rows = [
        (each.table, each.file.rsplit("/", 1)[-1], each.column, cut(each.reason, 60), each.count, each.line)
        for each in groups
    ]
    yield Rows(("TABLE", "FILE", "COLUMN", "WHY", "ROWS", "FIRST LINE"), rows)
    table = groups[0].table
    yield f"See them: {call.command(f'rejects show {table}')}"
    yield f"Load those that fit now: {call.command(f'rejects retry {table}')}"


def show(
    call: Call,
    table: Name,
    file: File = None,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Show the last N of them.")] = 20,
) -> Answer:
    """Show refused rows with line, column, reason and text."""
    kept = call.table(table).rejects()
    count, rows = kept.count(), kept.latest(limit, file=file)
    return Answer({"table": table, "count": count, "rejects": rows}, _tell_rows(table, file, count, rows))


def _tell_rows(table: str, file: str | None, count: int, rows: list[dict[str, Any]]) -> Iterator[Part]:
    if not count or (file is not None and not rows):
        yield _tell_none(table, file if count else None)
        return
    shown = [
        (row["file"].rsplit("/", 1)[-1], row["line"], row["column"], row["reason"], cut(row["text"], 80), row["at"])
        for row in rows
    ]
    yield Rows(("FILE", "LINE", "COLUMN", "WHY", "TEXT", "AT (UTC)"), shown)
    yield f"{counted(count, 'row')} refused in all{f', the last {len(rows):,} shown' if count > len(rows) else ''}."


def retry(call: Call, table: Name, file: File = None, yes: Yes = False) -> Answer:
    """Load the refused rows that fit the table now. The others are kept, with new reasons."""
    kept = call.table(table).rejects()
    if not yes:
        plan = kept.plan_retry(file=file)
        if plan.replaces:
            rows = counted(plan.replaces, "row")
            call.confirm(
                f"{counted(plan.rows, 'row')} would be loaded and would replace {rows} of {table} with the same keys,"
                " which may be newer. Load them?",
                f"{rows} of {table} may be replaced",
                table=table,
            )
    report = kept.retry(file=file)
    still = f"{counted(report.kept, 'row')} still refused. See: {call.command(f'rejects show {table}')}"
    if report.seq is None:
        return Answer(report, still if report.kept else _tell_none(table, file))
    done = f"Loaded {counted(report.rows, 'row')} at seq {report.seq}."
    return Answer(report, f"{done} {still}" if report.kept else f"{done} No refused row is left of those.")


def drop(call: Call, table: Name, file: File = None, yes: Yes = False) -> Answer:
    """Forget refused rows. They cannot be brought back."""
    kept = call.table(table).rejects()
    count = len(kept.latest(kept.count(), file=file))
    if not count:
        return Answer({"table": table, "dropped": 0}, _tell_none(table, file))
    if not yes:
        call.confirm(f"Drop {counted(count, 'refused row')} of {table}?", f"refused rows of {table} go", table=table)
    dropped = kept.drop(file=file)
    return Answer({"table": table, "dropped": dropped}, f"Dropped {counted(dropped, 'refused row')} of {table}.")


VERBS = {"list": list_, "show": show, "retry": retry, "drop": drop}
