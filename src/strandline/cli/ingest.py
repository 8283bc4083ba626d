"""Load files into a table, each once."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from strandline.cli.answer import Answer, counted, show_rows, size
from strandline.cli.options import ClusterBy, VersionColumn, Vnodes, names
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call, verb
from strandline.jobs.ingest.job import FileReport, IngestReport, NewTable
from strandline.jobs.ingest.job import ingest as load

_SHOWN = 20


def register(app: typer.Typer) -> None:
    verb(app, "ingest")(ingest)


def ingest(
    call: Call,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table to load into.")],
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILES", help="Files or patterns: .jsonl .ndjson .json .csv .tsv (also .gz), .parquet"),
    ],
    key: Annotated[str | None, typer.Option(metavar="A,B", help="Make the table, if missing, with this key.")] = None,
    no_key: Annotated[bool, typer.Option("--no-key", help="Make the table, if missing, append-only.")] = False,
    cluster_by: ClusterBy = None,
    vnodes: Vnodes = None,
    version_column: VersionColumn = None,
    rejects: Annotated[bool, typer.Option("--rejects", help="Load the good rows and keep the bad ones aside.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be loaded; write nothing.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Load files even if they are loaded already.")] = False,
    file_format: Annotated[
        Literal["jsonl", "csv", "parquet"] | None,
        typer.Option("--format", help="What the files are, if their names do not say."),
    ] = None,
    delimiter: Annotated[str | None, typer.Option(metavar="C", help="What separates the fields of CSV files.")] = None,
) -> Answer:
    """Load files into a table. A file is loaded once: later calls load only what is new."""
    if key is not None and no_key:
        raise typer.BadParameter("give --key or --no-key, not both")
    create = None
    if key is not None or no_key:
        create = NewTable(names(key), names(cluster_by), vnodes, version_column)
    elif cluster_by or vnodes or version_column:
        raise typer.BadParameter("--cluster-by, --vnodes and --version-column need --key or --no-key")
    lake = call.lake()
    with progress_bar(f"Loading {table}") as progress:
        report = load(
            lake,
            table,
            files,
            create=create,
            rejects=rejects,
            again=again,
            dry_run=dry_run,
            kind=file_format,
            delimiter=delimiter,
            progress=progress,
        )
    return Answer(report.to_dict(), lambda out: _show(out, call, report))


def _show(out: Console, call: Call, report: IngestReport) -> None:
    moved = [file for file in report.files if file.action != "skip"]
    if moved:
        _show_files(out, moved, report.is_dry)
    skipped = report.count("skip")
    if report.is_dry:
        total = size(sum(file.bytes for file in moved))
        out.print(f"Would load {counted(len(moved), 'file')}, {total}, and skip {skipped:,}. Nothing was written.")
        return
    if report.is_created:
        out.print(f"Made the table {report.table}. See: {call.command(f'table show {report.table}')}")
    unfinished = sum(file.unfinished_bytes > 0 for file in report.files)
    if unfinished:
        said = (
            f"{counted(unfinished, 'unfinished line')} left for later: the table has no key, so a last line is loaded"
        )
        out.print(Text(f"{said} once it ends with a newline.", "yellow"), soft_wrap=True)
    if not moved:
        out.print(f"Nothing new: {counted(skipped, 'file is', 'files are')} loaded already.")
        return
    commits = "seq {}" if len(report.seqs) == 1 else f"{len(report.seqs):,} commits up to seq {{}}"
    rate = f", {report.rows / report.seconds:,.0f} rows/s" if report.seconds > 0.5 else ""
    out.print(
        f"Loaded {counted(report.rows, 'row')} from {counted(len(moved), 'file')}: {commits.format(max(report.seqs))},"
        f" {report.seconds:.1f} s{rate}." + (f" Skipped {skipped:,} loaded before." if skipped else "")
    )
    if report.rejects:
        said = f"{counted(report.rejects, 'row')} did not fit and {_be(report.rejects)} kept aside. See: "
        out.print(Text.assemble((said, "yellow"), call.command(f"rejects {report.table}")))


def _show_files(out: Console, files: list[FileReport], is_dry: bool) -> None:
    counts = () if is_dry else ("ROWS", "BAD", "SEQ")
    rows = []
    for file in files[:_SHOWN]:
        what = {"load": f"all ({file.why})", "continue": f"the rest ({file.why})"}[file.action]
        done = () if is_dry else (f"{file.rows:,}", f"{file.rejects:,}", str(file.seq))
        rows.append((_short(file.file), what, size(file.bytes), *done))
    show_rows(out, ("FILE", "WHAT", "BYTES", *counts), rows, numbers=("BYTES", *counts))
    if len(files) > _SHOWN:
        out.print(f"… and {len(files) - _SHOWN:,} more")


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def _short(file: str) -> str:
    """A path as a person would type it from here."""
    relative = os.path.relpath(file) if file.startswith("/") else file
    return file if relative.startswith("../..") else relative
