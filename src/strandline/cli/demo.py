"""Run the main job on made-up data."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from strandline.cli.answer import Answer, show, stdout, warning
from strandline.cli.verb import Call

if TYPE_CHECKING:
    from strandline.demo.tour import Stop


def demo(
    call: Call,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="How many rows to make.")] = 20_000,
    folder: Annotated[Path, typer.Option("--dir", metavar="PATH", help="A folder of its own for the demo.")] = Path(
        "demo-lake"
    ),
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete an earlier demo in that folder first.")] = False,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Do everything in this process, without Spark.")] = False,
) -> Answer:
    """Run the main job end to end on made-up data: recorded AI-agent conversations."""
    # No other verb needs what the demo is made of.
    from strandline.demo.tour import ORDERS, QUESTION, SINK, TABLE, Tour

    started_s = time.monotonic()
    on_stop = (lambda stop: None) if call.is_json else _show_stop
    tour = Tour(folder, rows, not no_spark, is_fresh=fresh, on_stop=on_stop)
    lake = tour.run()
    seconds = time.monotonic() - started_s
    data = {
        "lake": lake.storage.uri,
        "table": TABLE,
        "steps": [asdict(stop) for stop in tour.stops],
        "left_out": tour.left_out,
        "seconds": seconds,
    }

    here = f"strandline --lake {shlex.quote(str(folder))}"
    commands = {
        "status": "how everything is, and what needs you",
        f"rejects show {ORDERS}": "the bad row of the CSV file, and why",
        f"sink show {SINK}": "the mirror, and how far it is",
        f'query "{" ".join(QUESTION.split())}"': "ask in SQL",
        f"table history {TABLE}": "the commits",
        f"ingest {TABLE} {shlex.quote(f'{tour.inbox}/*.jsonl')}": "nothing new: each file is loaded once",
        "doctor --deep": "check every row",
    }
    done = f"Done in {seconds:.1f} s. The lake is {folder}; it is yours to try things on. Type next:"
    told = [f"  {here} {command}\n      # {what}" for command, what in commands.items()]
    left_out = [warning(tour.left_out)] if tour.left_out else []
    on_spark = [stop.what for stop in tour.stops if stop.engine == "spark"]
    where = [f"On Spark: {', '.join(on_spark)}. All else: in this process (the driver)."] if on_spark else []
    return Answer(data, ["", *left_out, *where, done, *told])


def _show_stop(stop: Stop) -> None:
    line = f"{stop.what:18} {stop.rows:>9,} rows {stop.seconds:6.1f} s  "
    where = ("Spark   " if stop.engine == "spark" else "driver  ", "bold" if stop.engine == "spark" else "")
    show(stdout(), Text.assemble(line, where, (stop.result, "dim")))
