"""The answer of a verb, for a person or as JSON, and the one place that prints it.

A verb makes an `Answer`: a report, and the parts that a person sees. A part is a line, a line with a style (`note`,
`warning`, `fault`) or a table (`Rows`). Parts are usually yielded by a generator, which does not run for `--json`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import os
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

_PIPE_COLUMNS = 100_000
_LEAST_COLUMNS = 8


class Reported(Protocol):
    """A report that can be printed as JSON."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Rows:
    """A table for people. Numbers, and the columns named in `numbers`, are aligned right; times are in UTC. A table
    wider than the window has the texts of the columns in `cut` shortened in their middle; one that is still wider is
    shown row by row, one line for each value. Rows after the first `most` are only counted."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    numbers: Collection[str] = ()
    most: int | None = None
    cut: Collection[str] = ()


Part = str | Text | Rows


@dataclass(frozen=True)
class Answer:
    """`data` is the JSON document, `show` the same for a person. The process ends with 1 unless it `is_well`."""

    data: Reported | Mapping[str, Any]
    show: Part | Iterable[Part]
    is_well: bool = True


def preview(text: str, data: Reported | Mapping[str, Any]) -> Answer:
    """The answer of a dry run. `text` says what would happen."""
    report = data if isinstance(data, Mapping) else data.to_dict()
    return Answer({**report, "is_dry_run": True}, [text, "Nothing was written."])


def note(text: str) -> Text:
    return Text(text, "dim")


def warning(text: str) -> Text:
    return Text(text, "yellow")


def fault(title: str, text: str = "") -> Text:
    return Text.assemble((title, "bold red"), text)


def facts(pairs: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Names and values, a line each."""
    return (f"{word:16}{fact}" for word, fact in pairs)


def stdout() -> Console:
    """Where answers go. A pipe has no width, unless COLUMNS gives one: long lines are not cut there."""
    return _make_console(sys.stdout)


def stderr() -> Console:
    """Where progress and errors go."""
    return _make_console(sys.stderr)


def _make_console(file: TextIO) -> Console:
    # Brackets in names and texts are not markup.
    given = os.environ.get("COLUMNS", "")
    width = None if file.isatty() else int(given) if given.isdecimal() and int(given) > 0 else _PIPE_COLUMNS
    return Console(file=file, highlight=False, markup=False, emoji=False, width=width)


def print_answer(answer: Answer, *, is_json: bool) -> None:
    if is_json:
        _print_json(answer.data if isinstance(answer.data, Mapping) else answer.data.to_dict())
    else:
        show(stdout(), answer.show)


def show(out: Console, parts: Part | Iterable[Part]) -> None:
    """Print parts for a person. Lines are not wrapped, so that a command in one can be copied."""
    if isinstance(parts, str | Text):
        out.print(parts, soft_wrap=True)
    elif isinstance(parts, Rows):
        _show_rows(out, parts)
    else:
        for part in parts:
            show(out, part)


def _print_json(document: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(plain(document), ensure_ascii=False, indent=2) + "\n")
    sys.stdout.flush()


def print_error(kind: str, message: str, hint: str | None, fields: Mapping[str, Any], *, is_json: bool) -> None:
    if is_json:
        _print_json({"error": {"kind": kind, "message": message, "hint": hint, **fields}})
    else:
        show(stderr(), [fault(f"{kind}: ", message), *([note(hint)] if hint else [])])


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: times as ISO texts, decimals as texts, bytes in hex, no NaN."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, dt.date | dt.time | dt.datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, decimal.Decimal | dt.timedelta):
        return str(value)
    return value


def _show_rows(out: Console, table: Rows) -> None:
    rows = table.rows[: table.most]
    cells = _cut_cells(table, [[_format_cell(value) for value in row] for row in rows], out.width)
    made = Grid(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    width = 0
    for at, name in enumerate(table.columns):
        is_number = name in table.numbers or any(isinstance(row[at], int) for row in rows)
        made.add_column(name, justify="right" if is_number else "left", no_wrap=True)
        width += max([len(name), *(row[at].cell_len for row in cells)]) + 2
    if width > out.width:
        _show_records(out, table.columns, cells)
    else:
        for row in cells:
            made.add_row(*row)
        out.print(made)
    if len(rows) < len(table.rows):
        out.print(f"… and {len(table.rows) - len(rows):,} more")


def _cut_cells(table: Rows, cells: list[list[Text]], width: int) -> list[list[Text]]:
    """The cells, with the widest columns that may be cut shortened until the table fits."""
    widths = [max([len(name), *(row[at].cell_len for row in cells)]) for at, name in enumerate(table.columns)]
    chosen = [at for at, name in enumerate(table.columns) if name in table.cut]
    while sum(widths) + 2 * len(widths) > width and chosen:
        widest = max(chosen, key=lambda at: widths[at])
        if widths[widest] <= max(_LEAST_COLUMNS, len(table.columns[widest])):
            break
        widths[widest] -= 1
    return [
        [Text(cut_middle(cell.plain, widths[at]), cell.style) if at in chosen else cell for at, cell in enumerate(row)]
        for row in cells
    ]


def _format_cell(value: object) -> Text:
    if isinstance(value, Text):
        return value
    if isinstance(value, int):
        return Text(f"{value:,}")
    return Text("" if value is None else moment(value) if isinstance(value, dt.datetime) else str(value))


def _show_records(out: Console, columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
    longest = max(map(len, columns))
    for at, row in enumerate(rows):
        if at:
            out.print()
        for name, cell in zip(columns, row, strict=True):
            out.print(Text.assemble((f"{name:{longest}}  ", "bold"), cell), no_wrap=True, overflow="ellipsis")


def size(count: int) -> str:
    """A number of bytes in a unit that reads well."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def cut(text: str, most: int) -> str:
    """A text of at most `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def cut_middle(text: str, most: int) -> str:
    """A text of at most `most` characters: its beginning and its end."""
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def wrap(text: str, indent: str = "") -> str:
    """A text broken into lines of the window, each after `indent`; never inside a word."""
    width = stdout().width
    lines = textwrap.wrap(text, max(20, width - len(indent)), break_long_words=False, break_on_hyphens=False)
    return "\n".join(indent + line for line in lines)


def moment(at: dt.datetime) -> str:
    return at.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
