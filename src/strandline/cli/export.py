"""Write a table as Parquet files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.answer import Answer, Part, counted, note, preview, size
from strandline.cli.options import DryRun, UseEngine, Where, parse_names, parse_seq_or_time
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call

if TYPE_CHECKING:
    from strandline.jobs.export.export import ExportReport

_RANGE = re.compile(r"(\d*)\.\.(\d*)\Z", re.ASCII)


def export(
    call: Call,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table.")],
    dest: Annotated[str, typer.Argument(metavar="DEST", help="A new or empty folder, or s3://bucket/prefix.")],
    changes: Annotated[
        str | None,
        typer.Option(metavar="AFTER..UPTO", help="Its changes after one seq up to another: 5..9, or 5.. for all."),
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="SEQ|TIME", help="The table as of a seq or a time; else the latest seq.")
    ] = None,
    where: Where = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Only these columns.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    dry_run: DryRun = False,
    engine: UseEngine = None,
) -> Answer:
    """Write a table, or a range of its changes, as Parquet files that any engine reads."""
    wanted: dict[str, Any] = {
        "at": parse_seq_or_time(at),
        "changes": None if changes is None else _parse_range(changes),
        "columns": None if columns is None else parse_names(columns, "--columns"),
        "where": where,
        "engine": engine,
    }
    source = call.table(table)
    if dry_run:
        plan = source.export(dest, overwrite=overwrite, dry_run=True, **wanted)
        what = f"{counted(plan.rows, 'row')} at most, {size(plan.raw_bytes)} in memory, to {plan.uri}"
        return preview(f"Would write {what}, {_name_engine(plan)}.", plan)
    with progress_bar(f"Exporting {table}") as progress:
        report = source.export(dest, overwrite=overwrite, progress=progress, **wanted)
    return Answer(report, _tell(report))


def _tell(report: ExportReport) -> Iterator[Part]:
    noun = "row" if report.after is None else "change"
    which = f"at seq {report.seq}" if report.after is None else f"after seq {report.after} up to {report.seq}"
    is_smaller = report.raw_bytes >= 2 * report.bytes
    times = f", {report.raw_bytes / report.bytes:,.0f} times smaller than in memory" if is_smaller else ""
    files = (
        f"{counted(report.files, 'file')}, {size(report.bytes)}{times}, {report.seconds:.1f} s {_name_engine(report)}"
    )
    yield f"Wrote {counted(report.rows, noun)} of {report.table}, {which}, to {report.uri}: {files}."
    if not report.rows:
        yield note("The file has the columns and no rows.")


def _name_engine(report: ExportReport) -> str:
    return "on Spark" if report.engine == "spark" else "on the driver"


def _parse_range(text: str) -> tuple[int, int | None]:
    """The seqs in a text such as `5..9`, `5..` or `..9`."""
    found = _RANGE.match(text.strip())
    if not found:
        raise typer.BadParameter(f"--changes is {text!r}; expected AFTER..UPTO, such as 5..9 or 5..")
    after, upto = found.groups()
    return int(after or 0), int(upto) if upto else None
