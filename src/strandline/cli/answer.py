"""What a verb has to say, for a person or as JSON, and how it is printed."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

_PIPE_COLUMNS = 100_000


@dataclass(frozen=True)
class Answer:
    """`data` is the JSON document; `show` writes the same for a person; `code` is the process's exit code."""

    data: Mapping[str, Any]
    show: Callable[[Console], None]
    code: int = 0


def stdout() -> Console:
    """Where answers go. A pipe has no width: lines are long there rather than cut."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Where progress and errors go."""
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    # Brackets in names and texts are just that.
    width = None if file.isatty() else _PIPE_COLUMNS
    return Console(file=file, highlight=False, markup=False, emoji=False, width=width)


def print_answer(answer: Answer, *, is_json: bool) -> None:
    if is_json:
        sys.stdout.write(json.dumps(plain(answer.data), ensure_ascii=False, indent=2) + "\n")
        sys.stdout.flush()
    else:
        answer.show(stdout())


def print_error(kind: str, message: str, hint: str | None, fields: Mapping[str, Any], *, is_json: bool) -> None:
    if is_json:
        error = {"kind": kind, "message": message, "hint": hint, **fields}
        sys.stdout.write(json.dumps(plain({"error": error}), ensure_ascii=False, indent=2) + "\n")
        sys.stdout.flush()
        return
    console = stderr()
    console.print(Text.assemble((f"{kind}: ", "bold red"), message), soft_wrap=True)
    if hint:
        console.print(Text(hint, "dim"), soft_wrap=True)


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


def show_rows(
    out: Console, columns: Sequence[str], rows: Sequence[Sequence[Text | str]], *, numbers: Collection[str] = ()
) -> None:
    """A table for people; the columns named in `numbers` stand right. One that is wider than the window is shown
    row by row, a line a value."""
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    widths = [
        max(len(name), *(row[at].cell_len for row in cells)) if cells else len(name) for at, name in enumerate(columns)
    ]
    if sum(widths) + 2 * len(widths) > out.width:
        _show_records(out, columns, cells)
        return
    made = Grid(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        made.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    for row in cells:
        made.add_row(*row)
    out.print(made)


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


def moment(at: dt.datetime) -> str:
    return at.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
