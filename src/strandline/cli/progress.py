"""A progress bar on stderr, if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from strandline.cli.answer import stderr
from strandline.progress import Progress, silent


@contextmanager
def progress_bar(doing: str) -> Iterator[Progress]:
    """A `Progress` that draws while the block runs and leaves nothing behind."""
    if not sys.stderr.isatty():
        yield silent
        return
    # Most calls draw nothing.
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bar(*columns, TextColumn("{task.fields[what]}"), console=stderr(), transient=True) as bar:
        task = bar.add_task(doing, total=None, what="")

        def draw(done: int, whole: int, what: str) -> None:
            bar.update(task, completed=done, total=whole or None, what=what[-40:])

        yield draw
