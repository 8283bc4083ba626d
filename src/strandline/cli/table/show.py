"""Show a table's definition."""

from __future__ import annotations

import typer
from rich.console import Console

from strandline.cli.answer import Answer, counted, moment, show_rows
from strandline.cli.broken import show_degraded
from strandline.cli.options import TableName
from strandline.cli.table.schema_text import type_text
from strandline.cli.verb import Call, verb
from strandline.pipeline.status import table_status


def register(app: typer.Typer) -> None:
    verb(app, "show")(show)


def show(call: Call, name: TableName) -> Answer:
    """Show a table's columns, key and state."""
    table = call.lake().table(name)
    definition, found = table.definition, table_status(table)
    columns = [{"name": f.name, "type": type_text(f.type), "nullable": f.nullable} for f in definition.schema]
    data = {
        **found.to_dict(),
        "cluster_by": definition.cluster_by,
        "version": definition.version,
        "time": definition.time,
        "settings": definition.settings.to_dict(),
        "generation": table.entry.generation,
        "folder": table.entry.folder,
        "columns": columns,
    }

    def render(out: Console) -> None:
        bound = "" if found.is_exact else "at most "
        out.print(f"{name}: {bound}{counted(found.rows, 'row')}, seq {found.head}, {moment(found.last_commit_at)} UTC")
        for word, fact in (
            ("key", ", ".join(definition.key) or "none: append-only"),
            ("cluster by", ", ".join(definition.cluster_by) or "none"),
            ("version column", definition.version or "none"),
            ("time column", definition.time or "none"),
            ("vnodes", str(definition.vnodes)),
            ("folded to", f"seq {found.folded_to}; {counted(found.lag_commits, 'commit')} after it"),
            ("readable from", f"seq {found.oldest_seq}"),
            ("pins", f"{found.pins}, see: {call.command(f'table pins {name}')}" if found.pins else "none"),
            ("settings", ", ".join(f"{key} {value}" for key, value in definition.settings.shown().items())),
            ("folder", table.entry.folder),
        ):
            out.print(f"{word:16}{fact}", soft_wrap=True)
        show_degraded(out, call, name, found.degraded)
        out.print()
        rows = [(f.name, type_text(f.type), "" if f.nullable else "required") for f in definition.schema]
        show_rows(out, ("COLUMN", "TYPE", ""), rows)

    return Answer(data, render)
