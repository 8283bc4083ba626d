"""The main job from end to end on made-up data: load, mirror, load again, change, mirror the changes, read the past,
load a messy CSV file, query, read with Spark, compact, and export.

Spark does the steps in which its tasks work on many rows of a real table: it loads the files, reads the merged table,
compacts it and exports it. Without Java this process does them."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable

from strandline.demo.messages import CLUSTER_BY, KEY, SCHEMA, messages, revisions, write_jsonl
from strandline.engines.choice import Engine
from strandline.engines.spark import check_java, parallelism, session
from strandline.errors import Internal, Invalid, Unavailable
from strandline.lake import Lake
from strandline.sinks.delta import DeltaSink
from strandline.table import Table

MARKER = "THIS-IS-A-DEMO"
TABLE = "messages"
SINK = "mirror"
ORDERS = "orders"
QUESTION = f"""SELECT role, part_type, count(*) AS parts, count(DISTINCT session_id) AS sessions
FROM {TABLE} GROUP BY ALL ORDER BY parts DESC LIMIT 5"""
_FILES = 4
# As people send it: names with spaces, semicolons, a quoted line break, a row that does not fit.
MESSY_CSV = """Order ID;Customer Name;Amount;Ordered At
1001;Ada;12.50;2026-03-01 09:15:00
1002;"Bob; junior";8.00;2026-03-01 10:02:00
1003;"Cy
the second";99.90;2026-03-02 18:45:00
1004;Dee;a lot;2026-03-02 19:01:00
"""


@dataclass(frozen=True)
class Stop:
    """A step that was done: its name, its result, its number of rows, its time, and the engine that did it."""

    what: str
    result: str
    rows: int
    seconds: float
    engine: Engine


@dataclass
class Tour:
    """A run of the demo. `folder` is its lake; the sink keeps a Delta table in `mirror`, beside it, where the export is
    too. Without Java the demo leaves Spark out, and `left_out` says so."""

    folder: Path
    rows: int
    with_spark: bool
    is_fresh: bool = False
    on_stop: Callable[[Stop], None] = lambda stop: None
    stops: list[Stop] = field(default_factory=list)
    loaded_seq: int = 0
    left_out: str = ""

    def run(self) -> Lake:
        if self.rows < 1:
            raise Invalid(f"rows is {self.rows}; expected at least 1")
        if self.with_spark:
            self._look_for_java()
        for folder in (self.folder, self.mirror):
            check_folder(folder, is_fresh=self.is_fresh)
        for folder in (self.folder, self.mirror):
            clear_folder(folder)
        lake = Lake(self.folder)
        table = lake.create_table(TABLE, SCHEMA, key=KEY, cluster_by=CLUSTER_BY)
        lake.sink(SINK, TABLE, to=DeltaSink(str(self.mirror / TABLE)))
        for what, engine, act in self._acts(lake, table):
            started_s = time.monotonic()
            result, rows = act()
            stop = Stop(what, result, rows, time.monotonic() - started_s, engine)
            self.stops.append(stop)
            self.on_stop(stop)
        return lake

    def _acts(self, lake: Lake, table: Table) -> Iterator[tuple[str, Engine, Callable[[], tuple[str, int]]]]:
        bulk: Engine = "spark" if self.with_spark else "driver"
        yield "Make JSON lines", "driver", self._make_files
        if self.with_spark:
            yield "Start Spark", "spark", _start_spark
        yield "Load them", bulk, lambda: self._load_files(lake, bulk)
        yield "Mirror in Delta", "driver", lambda: self._send_changes(lake)
        yield "Load them again", "driver", lambda: self._load_files(lake, bulk)
        yield "Correct some rows", "driver", lambda: self._revise_rows(table)
        yield "Mirror the changes", "driver", lambda: self._send_changes(lake)
        yield "Look back", "driver", lambda: self._read_past(table)
        yield "Load a messy CSV", "driver", lambda: self._load_messy_file(lake)
        yield "Ask in SQL", "driver", lambda: _ask_sql(lake)
        if self.with_spark:
            yield "Ask Spark", "spark", lambda: _ask_spark(table)
        yield "Compact the logs", bulk, lambda: _compact_logs(lake, bulk)
        yield "Export as Parquet", bulk, lambda: self._export(table, bulk)

    @property
    def inbox(self) -> Path:
        return self.folder / "inbox"

    @property
    def mirror(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}-mirror")

    def _look_for_java(self) -> None:
        try:
            check_java()
        except Unavailable as error:
            self.with_spark = False
            self.left_out = f"Spark was left out: {error.message}.\n{error.hint}"

    def _make_files(self) -> tuple[str, int]:
        self.inbox.mkdir()
        share = -(-self.rows // _FILES)
        made = 0
        for number, start in enumerate(range(0, self.rows, share)):
            rows = messages(rows=min(share, self.rows - start), start=start)
            made += write_jsonl(rows, self.inbox / f"messages-{number}.jsonl")
        size = sum(file.stat().st_size for file in self.inbox.iterdir())
        return f"{_count_files(len(os.listdir(self.inbox)))}, {size / 1e6:.0f} MB", made

    def _load_files(self, lake: Lake, engine: Engine) -> tuple[str, int]:
        report = lake.ingest(TABLE, [str(self.inbox / "*.jsonl")], engine=engine)
        if not report.seqs:
            return "nothing new: each file is loaded once", 0
        self.loaded_seq = max(report.seqs)
        commits = "one commit" if len(report.seqs) == 1 else f"{len(report.seqs)} commits"
        return f"{_count_files(report.count('load'))} in {commits}, seq {self.loaded_seq}", report.rows

    def _revise_rows(self, table: Table) -> tuple[str, int]:
        """Final ids arrive for messages with provisional ones: rows to write and keys to delete."""
        upserts = deletes = 0
        for revision in revisions(rows=self.rows):
            upserts += table.upsert(revision.upserts).rows
            deletes += table.delete(revision.deletes).rows
        return f"{upserts:,} upserts and {deletes:,} deletes, seq {table.head}", upserts + deletes

    def _read_past(self, table: Table) -> tuple[str, int]:
        before = table.to_arrow(at=self.loaded_seq, columns=KEY)
        gone = before.num_rows - before.join(table.to_arrow(columns=KEY), keys=KEY, join_type="left semi").num_rows
        return f"as it was at seq {self.loaded_seq}; {gone:,} of those rows are gone by now", before.num_rows

    def _send_changes(self, lake: Lake) -> tuple[str, int]:
        report = lake.tick(only=[SINK])
        for sink in report.sinks:
            if sink.error is not None:
                raise sink.error
        there = DeltaTable(str(self.mirror / TABLE)).to_pyarrow_table(columns=KEY).num_rows
        here = lake.table(TABLE).to_arrow(columns=KEY).num_rows
        if there != here:
            raise Internal(f"the mirror has {there} rows, the table {here}")
        return f"the Delta table now has {there:,} rows, as the table", report.rows

    def _load_messy_file(self, lake: Lake) -> tuple[str, int]:
        file = self.inbox / "orders.csv"
        file.write_text(MESSY_CSV)
        report = lake.ingest(ORDERS, [str(file)], key=["order_id"], types={"amount": "decimal(10,2)"}, rejects=True)
        return f"columns renamed, {report.rejects} bad row kept aside", report.rows

    def _export(self, table: Table, engine: Engine) -> tuple[str, int]:
        done = table.export(self.mirror / "export", engine=engine)
        return f"{_count_files(done.files)}, {done.bytes / 1e6:.1f} MB", done.rows


def check_folder(folder: Path, *, is_fresh: bool) -> None:
    """`Invalid` unless the folder is empty, or holds an earlier demo and `is_fresh` says to replace it."""
    if folder.exists() and (not folder.is_dir() or (os.listdir(folder) and not (folder / MARKER).exists())):
        raise Invalid(
            f"{folder} exists and is not a demo; nothing was touched",
            hint="Choose another folder: --dir PATH",
            path=str(folder),
        )
    if (folder / MARKER).exists() and not is_fresh:
        raise Invalid(
            f"{folder} holds an earlier demo; nothing was touched",
            hint="Choose another folder: strandline demo --dir OTHER; or delete it and start again: strandline demo"
            + (" --fresh" if folder == Path("demo-lake") else f" --fresh --dir {shlex.quote(str(folder))}"),
            path=str(folder),
        )


def clear_folder(folder: Path) -> None:
    """Make the folder empty, with the marker of a demo."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARKER).write_text("Made by `strandline demo`, which replaces this folder when it runs with --fresh.\n")


def _ask_sql(lake: Lake) -> tuple[str, int]:
    answer = lake.sql(QUESTION)
    first = answer.to_pylist()[0]
    return f"most are {first['part_type']} parts by {first['role']}: {first['parts']:,}", answer.num_rows


def _start_spark() -> tuple[str, int]:
    spark = session()
    return f"{spark.version}, {parallelism(spark)} tasks at once", 0


def _ask_spark(table: Table) -> tuple[str, int]:
    counted = int(table.to_spark().count())
    expected = table.to_arrow(columns=KEY).num_rows
    if counted != expected:
        raise Internal(f"Spark counts {counted} rows, DuckDB {expected}")
    return "log and baseline merged: the same count as DuckDB's", counted


def _compact_logs(lake: Lake, engine: Engine) -> tuple[str, int]:
    # The second table has three rows.
    reports = [lake.table(TABLE).compact(full=True, engine=engine), lake.table(ORDERS).compact(full=True)]
    return _count_files(sum(report.files for report in reports)), sum(report.rows for report in reports)


def _count_files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"
