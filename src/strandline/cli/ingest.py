"""Load files into a table, each once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from strandline.cli.answer import Answer, Part, Rows, counted, note, size, warning
from strandline.cli.ingest_preview import shorten, tell_preview
from strandline.cli.options import (
    ClusterBy,
    DryRun,
    Names,
    Skip,
    UseEngine,
    VersionColumn,
    Vnodes,
    list_names,
    parse_names,
)
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call
from strandline.errors import Invalid

if TYPE_CHECKING:
    from strandline.jobs.ingest.job import FileReport, IngestReport


def ingest(
    call: Call,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table to load into.")],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES", help="Files, folders or patterns: .jsonl .json .csv .tsv (also .gz .zst .bz2), .parquet"
        ),
    ],
    key: Annotated[
        str | None, typer.Option(metavar="A,B", help="Create the table, if it does not exist, with this key.")
    ] = None,
    no_key: Annotated[
        bool, typer.Option("--no-key", help="Create the table, if it does not exist, append-only.")
    ] = False,
    cluster_by: ClusterBy = None,
    vnodes: Vnodes = None,
    version_column: VersionColumn = None,
    rejects: Annotated[bool, typer.Option("--rejects", help="Load the good rows and keep the bad ones aside.")] = False,
    dry_run: DryRun = False,
    again: Annotated[bool, typer.Option("--again", help="Load files again that are already loaded.")] = False,
    file_format: Annotated[
        Literal["jsonl", "csv", "parquet"] | None,
        typer.Option("--format", help="The format of the files, if their names do not tell it."),
    ] = None,
    skip: Skip = None,
    types: Annotated[
        str | None, typer.Option(metavar="COLUMNS", help='Types of columns of a new table: "zip:string, id:int64"')
    ] = None,
    missing: Annotated[
        Literal["refuse", "null", "keep"] | None,
        typer.Option(
            help="When a file lacks columns: refuse to lose values, set null, or keep the values of the table."
        ),
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(metavar="C", help="The character between the fields of CSV files.")
    ] = None,
    quote: Annotated[str | None, typer.Option(metavar="C", help='The character around fields; "" for none.')] = None,
    escape: Annotated[
        str | None, typer.Option(metavar="C", help="The character before a quote inside of a field.")
    ] = None,
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether the first line names the columns.")
    ] = None,
    encoding: Annotated[str | None, typer.Option(metavar="NAME", help="Such as utf-8, utf-16, latin-1.")] = None,
    comment: Annotated[
        str | None, typer.Option(metavar="C", help="Leave out lines that begin with this character.")
    ] = None,
    skip_lines: Annotated[int | None, typer.Option(metavar="N", min=0, help="Lines before the header.")] = None,
    null: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="A text that means no value; may be given several times.")
    ] = None,
    short_rows: Annotated[
        Literal["reject", "fill"], typer.Option(help="Refuse rows with too few fields, or fill them with nulls.")
    ] = "reject",
    last_line: Annotated[
        Literal["auto", "load", "wait"],
        typer.Option(help="A last line without a newline: load it, or let it wait; auto: wait while the file grows."),
    ] = "auto",
    names: Names = None,
    engine: UseEngine = None,
) -> Answer:
    """Load files into a table. A file is loaded once: later calls load only what is new."""
    if key is not None and no_key:
        raise typer.BadParameter("give --key or --no-key, not both")
    if (cluster_by or vnodes or version_column) and key is None and not no_key:
        raise typer.BadParameter("--cluster-by, --vnodes and --version-column need --key or --no-key")
    if "." in table or "/" in table:
        hint = f"The table comes first: {call.command('ingest TABLE FILES')}"
        raise Invalid(f"{table!r} cannot be the name of a table", hint=hint, table=table)
    lake = call.lake()
    with progress_bar(f"Loading {table}") as progress:
        report = lake.ingest(
            table,
            files,
            key=parse_names(key, "--key") if key is not None or no_key else None,
            cluster_by=parse_names(cluster_by, "--cluster-by"),
            vnodes=vnodes,
            version=version_column,
            rejects=rejects,
            again=again,
            dry_run=dry_run,
            missing=missing,
            kind=file_format,
            names=names,
            skip=parse_names(skip, "--skip"),
            engine=engine,
            progress=progress,
            types=types,
            delimiter=delimiter,
            quote=quote,
            escape=escape,
            header=header,
            encoding=encoding,
            comment=comment,
            skip_lines=skip_lines,
            null=null or (),
            short_rows=short_rows,
            last_line=last_line,
        )
    return Answer(report, _tell(call, report, is_waiting=last_line == "wait"))


def _tell(call: Call, report: IngestReport, *, is_waiting: bool) -> Iterator[Part]:
    moved = [file for file in report.files if file.action != "skip"]
    if moved:
        yield _list_files(moved, report.is_dry_run)
    skipped = report.count("skip")
    if report.is_dry_run:
        assert report.preview is not None
        yield from tell_preview(report, report.preview)
        return
    if report.is_created:
        yield f"Made the table {report.table}. See: {call.command(f'table show {report.table}')}"
    yield from list_names(report.names)
    if unfinished := sum(file.unfinished_bytes > 0 for file in report.files):
        why = "it has no newline" if is_waiting else "it has no newline and the file is growing"
        left = f"{counted(unfinished, 'unfinished line')} left for later: {why}."
        yield warning(f"{left} To load it as it is: --last-line load")
    yield from _tell_dialects(report)
    yield from _tell_copies(report)
    if not moved:
        yield f"Nothing new: {counted(skipped, 'file is', 'files are')} loaded already."
        return
    commits = "" if len(report.seqs) == 1 else f"{len(report.seqs):,} commits up to "
    rate = f", {report.rows / report.seconds:,.0f} rows/s" if report.seconds > 0.5 and report.rows >= 1000 else ""
    loaded = f"Loaded {counted(report.rows, 'row')} from {counted(len(moved), 'file')}"
    before = f" Skipped {skipped:,} loaded before." if skipped else ""
    yield f"{loaded}: {commits}seq {max(report.seqs)}, {report.seconds:.1f} s{rate}.{before}"
    if report.replaced:
        were = "row was" if report.replaced == 1 else "rows were"
        see = call.command(f"table show {report.table}")
        yield f"{report.replaced:,} {were} replaced by other rows of this load with the same key. See the key: {see}"
    if report.emptied:
        lost, names = sum(report.emptied.values()), ", ".join(report.emptied)
        became = "value of the table is null now" if lost == 1 else "values of the table are null now"
        yield warning(f"{lost:,} {became}, because the objects lack its column: {names}. To keep such: --missing keep")
    if report.rejects:
        are = "is" if report.rejects == 1 else "are"
        see = call.command(f"rejects show {report.table}")
        yield warning(f"{counted(report.rejects, 'row')} did not fit and {are} kept aside. See: {see}")


def _tell_copies(report: IngestReport) -> Iterator[Part]:
    """The files that were not loaded because a file with the same content was. Their names do not tell it."""
    copies = [file for file in report.files if file.action == "skip" and file.why.startswith("same content")]
    if copies:
        more = f" and {len(copies) - 1:,} more" if len(copies) > 1 else ""
        why = f"{copies[0].why}, so not loaded again. To load it all the same: --again"
        yield note(f"{shorten(copies[0].file)}{more}: {why}")


def _tell_dialects(report: IngestReport) -> Iterator[Part]:
    """What was found out about CSV files that are not as one expects."""
    said: dict[str, list[str]] = {}
    for file in report.files:
        found = file.dialect
        if found is None:
            continue
        if found["encoding"] not in ("utf-8", "utf-16-le", "utf-16-be"):
            said.setdefault(f"read as {found['encoding']}; if that is wrong: --encoding", []).append(file.file)
        if not found["has_header"]:
            said.setdefault("no header found; if the first line is one: --header", []).append(file.file)
        if found["skipped_lines"]:
            lines = counted(found["skipped_lines"], "line")
            said.setdefault(f"{lines} before the table left out; else: --skip-lines", []).append(file.file)
    for text, files in said.items():
        more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
        yield note(f"{shorten(files[0])}{more}: {text}")


def _list_files(files: list[FileReport], is_dry: bool) -> Rows:
    counts = ("ROWS", "BAD") if is_dry else ("ROWS", "BAD", "SEQ")
    rows = []
    for file in files:
        what = {"load": f"all ({file.why})", "continue": f"the rest ({file.why})"}[file.action]
        done = (file.rows, file.rejects, file.seq)
        rows.append((shorten(file.file), what, size(file.bytes), *done[: len(counts)]))
    return Rows(("FILE", "WHAT", "BYTES", *counts), rows, numbers=("BYTES",), most=20)
