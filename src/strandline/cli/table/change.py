"""Change tables: `table rename`, `set`, `restore`, `add-column`, `rename-column`, `drop-column`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

import strandline as sl
from strandline.cli.answer import Answer, Part, Rows, counted, moment, preview, warning
from strandline.cli.options import DryRun, TableName, Yes, parse_seq_or_time, parse_settings
from strandline.cli.verb import Call
from strandline.errors import Invalid

if TYPE_CHECKING:
    from strandline.consumers.retention import ExpiryPlan

MEANINGS = {
    "compact_ratio": "compact a vnode when its changes pass this share of its rows in the baseline",
    "compact_files": "more small files of the log than this are packed into one",
    "compact_age": "compact a vnode when a change has waited for longer than this",
    "keep": "how far back the table stays readable",
    "grace": "how long a file must be unneeded before vacuum deletes it",
    "retention": "how old a row gets by its time column, before expire hides it",
    "time": "the column that rows expire by",
}


def rename(
    call: Call, name: TableName, to: Annotated[str, typer.Argument(metavar="TO", help="Its new name.")]
) -> Answer:
    """Give a table another name; its rows, seqs and files stay."""
    call.lake().rename(name, to)
    return Answer({"table": to, "was": name}, f"{name} is now {to}.")


def set_(
    call: Call,
    name: TableName,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="SETTING=VALUE", help="What to change, such as keep=7d; without any, show all."),
    ] = None,
    yes: Yes = False,
) -> Answer:
    """Show a table's settings, or change some.

    It asks before it sets a retention by which the next tick hides rows."""
    table = call.table(name)
    asked = parse_settings(changes or ())
    was = _list_settings(table)
    hidden = 0
    if asked:
        try:
            hidden = _confirm_retention(call, table, asked, yes=yes)
            table.configure(**asked)
        except Invalid as error:
            is_about_time = "retention" in asked and was["time"] == "none" and "time" not in asked
            if not is_about_time or "setting" in error.fields:
                raise
            both = call.command(f"table set {name} time=COLUMN retention={asked['retention']}")
            raise Invalid(error.message, hint=f"Name one: {both}", table=name, **error.fields) from error
    now, after = _list_settings(table), table.definition
    changed = [setting for setting in now if now[setting] != was[setting]]
    settings = {**after.settings.to_dict(), "time": after.time}
    data = {"table": name, "settings": settings, "changed": changed, "expiring_rows": hidden}
    if not asked:
        return Answer(data, Rows(("SETTING", "VALUE", "MEANING"), [(key, now[key], MEANINGS[key]) for key in now]))
    parts = [
        f"{name}: {setting} is {now[setting]} ({f'was {was[setting]}' if setting in changed else 'as before'})."
        for setting in asked
    ]
    if "retention" in changed and after.settings.retention is not None:
        parts.append(f"Rows past it are hidden by the next tick, or: {call.command(f'table expire {name}')}")
    return Answer(data, parts)


def _confirm_retention(call: Call, table: sl.Table, asked: Mapping[str, str], *, yes: bool) -> int:
    """Ask before a retention is set by which the next tick hides rows; returns their number."""
    if asked.get("retention", "none") == "none":
        return 0
    settings: dict[str, Any] = dict(asked)
    plan = table.plan_expiry(**settings)
    if plan.rows and not yes:
        time = asked.get("time", table.definition.time)
        which = f"{describe_expiry(plan)} of {table.name}, whose {time} lies before {moment(plan.before)} UTC"
        question = f"The next tick hides {which}, for good. Set retention={asked['retention']}?"
        call.confirm(question, f"rows of {table.name!r} are past that retention: it is set", table=table.name)
    return plan.rows


def _list_settings(table: sl.Table) -> dict[str, str]:
    """Every setting, as a person writes it."""
    return {**table.definition.settings.shown(), "time": table.definition.time or "none"}


def restore(
    call: Call,
    name: TableName,
    at: Annotated[str, typer.Option(metavar="SEQ|TIME", help="When: a seq, or a time such as 2024-01-31T12:00Z.")],
    dry_run: DryRun = False,
) -> Answer:
    """Restore a table to an earlier seq or time, as one new commit. The commits in between stay readable."""
    table = call.table(name)
    if dry_run:
        plan = table.plan_restore(parse_seq_or_time(at))
        since = f"{counted(plan.changed, 'key')} changed since"
        return preview(f"Would set {name} back to seq {plan.at}; {since}.", plan)
    then = table.merge(parse_seq_or_time(at))
    commit = table.restore(then.seq)
    parts = [f"No row of {name} was written or deleted after seq {then.seq}; nothing was written."]
    if commit.rows:
        done = f"{name} is set back to seq {then.seq}: {counted(commit.rows, 'change')}, seq {commit.seq}."
        parts = [done, f"Take it back: {call.command(f'table restore {name} --at {commit.seq - 1}')}"]
    if then.horizon != table.merge(commit.seq).horizon:
        parts.append("Rows that have expired since then stay hidden.")
    return Answer({"table": name, "at": then.seq, "seq": commit.seq, "changes": commit.rows}, parts)


def add_column(
    call: Call,
    name: TableName,
    column: Annotated[str, typer.Argument(metavar="COLUMN:TYPE", help="The new column, such as price:decimal(10,2).")],
) -> Answer:
    """Add a column to a table. It is null in the rows that are there."""
    new, colon, kind = (part.strip() for part in column.partition(":"))
    if not (new and colon and kind):
        raise typer.BadParameter(f"the column is {column!r}; expected COLUMN:TYPE, such as price:decimal(10,2)")
    if kind.endswith("!"):
        hint = f"Leave the ! out: {new}:{kind.rstrip('!')}"
        raise Invalid(f"column {new!r} cannot be required: rows that are there lack it", hint=hint, column=new)
    columns = call.table(name).add_column(new, kind).names
    data = {"table": name, "added": new, "columns": columns}
    return Answer(data, f"Added the column {new} to {name}; it has {', '.join(columns)}.")


def rename_column(
    call: Call,
    name: TableName,
    old: Annotated[str, typer.Argument(metavar="OLD", help="The column.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> Answer:
    """Give a column another name, at every seq; no file is written again.

    It asks first if sinks name the column: they stop until they are changed."""
    lake = call.lake()
    table = lake.table(name)
    columns = table.definition.rename_column(old, new).schema.names
    stopped = lake.sinks_needing(name, old, in_any_setting=True)
    then = f" These sinks name it and stop until they are changed: {', '.join(stopped)}." if stopped else ""
    data = {"table": name, "was": old, "renamed": new, "columns": columns, "sinks": stopped}
    if dry_run:
        return preview(f"Would rename the column {old} of {name} to {new}.{then}", data)
    if stopped and not yes:
        call.confirm(
            f"Rename the column {old} of {name} to {new}?{then}", f"column {old!r} of {name!r} is renamed", table=name
        )
    columns = table.rename_column(old, new).names
    parts: list[Part] = [f"Renamed the column {old} of {name} to {new}; it has {', '.join(columns)}."]
    if stopped:
        change = call.command(f"sink add {stopped[0]} {name} --to DEST …")
        parts += [warning(then.strip()), f"Change one, with {new} instead of {old}: {change}"]
    return Answer({**data, "columns": columns}, parts)


def drop_column(
    call: Call,
    name: TableName,
    column: Annotated[str, typer.Argument(metavar="COLUMN", help="The column.")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> Answer:
    """Remove a column from a table, for good.

    Its values can no longer be read at any seq, and its name is not used again."""
    lake = call.lake()
    table = lake.table(name)
    left = table.definition.drop_column(column).schema.names
    silenced = lake.sinks_needing(name, column)
    then = f" The conditions of these sinks need it; they will send nothing: {', '.join(silenced)}." if silenced else ""
    data = {"table": name, "columns": left, "sinks": silenced}
    if dry_run:
        return preview(f"Would drop the column {column} of {name}; it keeps {', '.join(left)}.{then}", data)
    if not yes:
        question = f"Drop the column {column} of {name} for good?{then}"
        call.confirm(question, f"column {column!r} of {name!r} is dropped", table=name)
    left = table.drop_column(column).names

    def tell() -> Iterator[Part]:
        yield f"Dropped the column {column} of {name}; it keeps {', '.join(left)}."
        if silenced:
            yield warning(then.strip())
        yield f"Its values go as files are rewritten, {describe_cleanup(call, table)}"

    return Answer({**data, "dropped": column, "columns": left}, tell())


def describe_expiry(plan: ExpiryPlan) -> str:
    """How many rows an expiry hides, of how many."""
    about = "" if plan.is_exact else "about "
    return f"{about}{plan.rows:,} of {counted(plan.total, 'row')}"


def describe_cleanup(call: Call, table: sl.Table) -> str:
    """How the bytes of hidden rows or dropped columns leave the disk."""
    settings = table.definition.settings.shown()
    return (
        f"at once with: {call.command(f'compact {table.name} --all')}\n"
        f"Vacuum deletes the old files after keep ({settings['keep']}) and grace ({settings['grace']})."
    )
