"""Ask a question in SQL."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.answer import Answer, Part, Rows, counted, cut, note, plain
from strandline.cli.options import parse_length, parse_seq_or_time
from strandline.cli.verb import Call
from strandline.errors import Invalid

if TYPE_CHECKING:
    import pyarrow as pa


def query(
    call: Call,
    words: Annotated[
        list[str], typer.Argument(metavar="SQL", help="One SELECT over the lake's tables; '-' reads it from stdin.")
    ],
    at: Annotated[
        str | None,
        typer.Option(metavar="SEQ|TIME", help="The tables as of a time; a query over one table also as of a seq."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Show at most N rows.")] = 50,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print every row as CSV.")] = False,
    timeout: Annotated[str | None, typer.Option(metavar="30s", help="Stop the query after this long.")] = None,
    max_rows: Annotated[int | None, typer.Option(metavar="N", help="Refuse a result of more rows.")] = None,
    max_bytes: Annotated[
        int | None, typer.Option(metavar="N", help="Refuse a larger result; default 1/8 of this machine's memory.")
    ] = None,
) -> Answer:
    """Ask a question in SQL (DuckDB's). With --json or --csv every row is printed. Ctrl-C ends it."""
    if as_csv and call.is_json:
        raise typer.BadParameter("give --csv or --json, not both")
    if len(words) > 1:
        raise typer.BadParameter('the query has to be in quotes: strandline query "SELECT …"')
    (sql,) = words
    result = call.lake().sql(
        sys.stdin.read() if sql == "-" else sql,
        at=parse_seq_or_time(at),
        timeout_s=parse_length(timeout, "--timeout"),
        max_rows=max_rows,
        max_bytes=max_bytes,
    )
    if as_csv:
        _print_csv(result)
        raise typer.Exit
    data = {
        "columns": [{"name": field.name, "type": str(field.type)} for field in result.schema],
        "rows": _read_rows(result) if call.is_json else [],
        "count": result.num_rows,
    }
    return Answer(data, _tell(result, limit))


def _print_csv(result: pa.Table) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(result.column_names)
    for batch in result.to_batches(max_chunksize=10_000):
        for row in _read_rows(batch):
            writer.writerow(["" if value is None else _format_value(value) for value in row.values()])


def _read_rows(part: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        return list(part.to_pylist())
    except (OverflowError, ValueError) as error:
        raise Invalid(
            f"a date or time of the result lies outside of the years 1 to 9999: {error}",
            hint="Ask for it as text: CAST(column AS VARCHAR)",
        ) from error


def _tell(result: pa.Table, limit: int) -> Iterator[Part]:
    numbers = {f.name for f in result.schema if str(f.type).startswith(("int", "uint", "half", "float", "double"))}
    rows = [[_format_cell(value) for value in row.values()] for row in _read_rows(result.slice(0, limit))]
    yield Rows(result.column_names, rows, numbers)
    count = counted(result.num_rows, "row")
    more = f"{count}, the first {limit:,} shown. All of them: --csv, --json or --limit {result.num_rows}"
    yield note(more if result.num_rows > limit else count)


def _format_cell(value: object) -> Part:
    return note("null") if value is None else cut(_format_value(value).replace("\n", "⏎"), 60)


def _format_value(value: object) -> str:
    """A value as text: nested ones and truth values as JSON writes them."""
    made = plain(value)
    return made if isinstance(made, str) else json.dumps(made, ensure_ascii=False)
