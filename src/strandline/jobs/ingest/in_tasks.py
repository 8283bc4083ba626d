"""Load files in Spark tasks: many or large ones, all in one commit.

The driver decides first: which files, the table's columns, the options. Tasks read, and the driver compares what they
report with what reading one file after another would have done: names of columns get their meaning in the order of the
files, and a file that lacks columns may not replace values by null. Where the order would have made a difference,
nothing is committed and the caller reads the files itself.

After a crash: the commit has all files and remembers them, or it does not exist and a second run loads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from strandline.crash import crash_point
from strandline.engines.choice import INGEST
from strandline.engines.lanes import RECEIPT, files_of
from strandline.engines.log_lane import LogLane
from strandline.engines.spark import can_run, collect, is_local, parallelism, run_lane, running_job, session
from strandline.engines.workers import DUCKDB
from strandline.errors import Conflict, Unavailable
from strandline.jobs.column_names import ColumnMatcher
from strandline.jobs.ingest.dialect import Dialect
from strandline.jobs.ingest.load import Loader, StepResult
from strandline.jobs.ingest.loaded_files import Loaded
from strandline.jobs.ingest.part_blocks import BLOCKS, CutLane, MergeLane, count_ranges
from strandline.jobs.ingest.part_lane import PartLane, PartLogLane
from strandline.jobs.ingest.part_report import NamesAsked, PartReport, PieceReport, Reports, choose_attempt
from strandline.jobs.ingest.parts import Parts, cut_parts
from strandline.jobs.ingest.plan import Step
from strandline.model.change import UPSERT, Commit
from strandline.storage.snapshot import Draft, Snapshot
from strandline.tables.partial import find_filled
from strandline.tables.pins import new_pin
from strandline.tables.rejects import RejectedRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A guess of the size of a compressed file's text, and of a Parquet file's rows in memory.
_UNPACKED = 5
_MOST_TASKS = 64


class _OrderMatters(Conflict):
    """Reading the files one after another would give other rows."""


def takes_tasks(loader: Loader, steps: Sequence[Step]) -> bool:
    """Whether Spark tasks read these files: many or large ones that the tasks reach."""
    if not steps or INGEST.takes(raw_bytes=sum(map(guess_bytes, steps)), files=len(steps)):
        return False
    if any(loader.missing_in(step) != "null" and not _tells_columns(loader, step) for step in steps):
        return False
    return INGEST.is_forced or (can_run(loader.table.spark) and _are_reached(loader, steps))


def guess_bytes(step: Step) -> int:
    """The bytes of a file's text, or of its rows."""
    is_plain = step.source.is_text and step.source.compression is None
    return step.bytes * (1 if is_plain else _UNPACKED)


def _tells_columns(loader: Loader, step: Step) -> bool:
    """Whether the header of a file, without its rows, tells which columns it lacks."""
    return loader.missing_in(step) == "refuse" and step.source.kind != "jsonl"


def _are_reached(loader: Loader, steps: Sequence[Step]) -> bool:
    """Whether tasks find the files: those of this machine are on another one's disk only if the lake is, too."""
    is_shared = loader.table.log.storage.is_local or is_local(loader.table.spark)
    return is_shared or not any(step.source.storage.is_local for step in steps)


def load_in_tasks(loader: Loader, steps: Sequence[Step]) -> tuple[Commit, list[StepResult]] | None:
    """Load files in one commit. None, with nothing changed, when they must be read one after another. `Conflict` when
    another process has loaded one of them first."""
    load = _TaskLoad(loader, steps)
    try:
        commit = load.run()
    except _OrderMatters:
        return None
    loader.watch_share(1, 1)
    loader.has_loaded(load.loaded, steps, load.names.renamed)
    return commit, [replace(done, seq=commit.seq) for done in load.results()]


class _TaskLoad:
    """The files of one commit, while tasks read them."""

    def __init__(self, loader: Loader, steps: Sequence[Step]) -> None:
        self._loader = loader
        self._steps = steps
        self._table = loader.table
        self._definition = loader.table.definition
        self._reports = Reports(self._table.log.storage, self._table.log.folder)
        self._parts = Parts((), {})
        self._read: list[PieceReport] | None = None
        self._bad = RejectedRows(loader.rejects)
        self.names = ColumnMatcher(self._definition, loader.rule, steps[0].source.skip)
        self.loaded: list[Loaded] = []

    def run(self) -> Commit:
        spark = session(self._table.spark)
        self._parts = cut_parts(self._steps, parallelism(spark))
        log = self._table.log
        count = "1 file" if len(self._steps) == 1 else f"{len(self._steps)} files"
        try:
            with (
                log.pins.held(new_pin("write", writes_since_s=log.storage.now_s())),
                running_job(spark, 1, self._loader.watch_share, name=f"ingest {count} into {self._table.name}"),
            ):
                commit = self._write(spark)
            if self._read is None:
                # No row, but files to remember.
                commit = log.commit([], operation="INGEST", amend=self._amend)
            return commit
        except BaseException:
            self._bad.discard()
            raise
        finally:
            self._reports.delete()

    def _write(self, spark: SparkSession) -> Commit:
        files, failure = files_of(collect(self._receipts(spark)))
        log = self._table.log
        if failure is not None:
            log.discard(files)
            raise failure
        crash_point("log.lanes_written")
        return log.commit(files, operation=UPSERT.upper(), amend=self._amend)

    def _receipts(self, spark: SparkSession) -> DataFrame:
        lane, log = self._new_lane(), self._table.log
        write = LogLane(log.storage, log.folder, self._definition, UPSERT, is_ordered=True)
        stores = [log.storage, *(step.source.storage for step in self._steps)]
        numbers = spark.range(0, len(self._parts), 1, len(self._parts))
        if not self._definition.is_keyed:
            return run_lane(numbers, PartLogLane(lane, write), RECEIPT, stores=stores, packages=[DUCKDB])
        ranges = count_ranges(sum(map(guess_bytes, self._steps)), min(self._definition.vnodes, _MOST_TASKS))
        blocks = run_lane(numbers, CutLane(lane, ranges), BLOCKS, stores=stores, packages=[DUCKDB])
        return run_lane(blocks.repartitionById(ranges, blocks["range"]), MergeLane(write), RECEIPT)

    def _new_lane(self) -> PartLane:
        loader, steps = self._loader, self._steps
        known = loader.rejects.tokens() if loader.keep_rejects else ()
        tokens = tuple(map(loader.token_of, steps))
        return PartLane(
            self._table.log.storage,
            self._table.entry,
            self._reports,
            self._definition,
            loader.text,
            loader.rule,
            self._parts.pieces,
            tokens if loader.keep_rejects else None,
            frozenset(at for at, token in enumerate(tokens) if token in known),
            any(loader.missing_in(step) != "null" for step in steps),
        )

    def _amend(self, snapshot: Snapshot, draft: Draft) -> Draft:
        if self._read is None:
            self._take_reports()
        replaced = [step.prior for step in self._steps if step.prior is not None]
        amended = self._loader.amend(snapshot, draft, self.loaded, replaced)
        known = self.names.known
        amended = self._table.log.amend_definition(snapshot, amended, lambda d: d.with_names(known))
        self._bad.commit()
        crash_point("ingest.before_commit")
        return amended

    def _take_reports(self) -> None:
        """Take what the tasks have told, and compare it with what reading the files in their order would have done."""
        attempts = self._reports.read()
        reports = [choose_attempt(each) for each in attempts]
        for each, report in zip(attempts, reports, strict=True):
            others = [file for other in each if other is not report for file in other.rejects]
            self._loader.rejects.log.discard(others)
        self._read = [piece for report in reports for piece in report.pieces]
        tokens = {self._loader.token_of(self._steps[piece.at]) for piece in self._read if piece.faults}
        self._bad.take_files([file for report in reports for file in report.rejects], tokens)
        self._raise_error(reports)
        self._check_names(self._read)
        self._check_columns(self._read)
        pieces = {piece.at: piece for piece in self._read}
        for at, step in enumerate(self._steps):
            told = pieces[at]
            as_told = Loaded.of(step.source, lines=told.lines, is_open=told.is_open, digest=told.digest)
            self.loaded.append(self._parts.cut.get(at, as_told))

    def _raise_error(self, reports: Sequence[PartReport]) -> None:
        """Raise the error of the first file that has one."""
        for number, report in enumerate(reports):
            if report.number != number:
                break
            if report.error is not None:
                raise report.error
        if len(reports) < len(self._parts):
            raise Unavailable("a Spark task did not report which rows it had read; nothing was loaded")

    def _check_names(self, pieces: Sequence[PieceReport]) -> None:
        """Compare the columns of names, as tasks have given them, with those in the order of the files."""
        at = -1
        for piece in pieces:
            if piece.at != at:
                at, given, give = piece.at, dict[str, str](), self.names.one_by_one()
            for asked in piece.asked:
                if not asked.is_each:
                    columns = self.names.match(asked.sources)
                else:
                    for source in asked.sources:
                        if source not in given:
                            given[source] = give(source)
                    columns = [given[source] for source in asked.sources]
                self._compare_names(asked, columns)

    def _compare_names(self, asked: NamesAsked, columns: Sequence[str]) -> None:
        if list(columns) != asked.columns:
            raise _OrderMatters("the names of columns depend on the order of the files")

    def _check_columns(self, pieces: Sequence[PieceReport]) -> None:
        """Make sure that no file replaces values by null: neither those of the table nor those of another file."""
        strict = {at for at, step in enumerate(self._steps) if self._loader.missing_in(step) == "refuse"}
        whole = set(self._definition.schema.names)
        lacking = set[str]()
        for piece in pieces:
            if piece.at in strict and piece.columns is not None:
                lacking |= whole - set(piece.columns)
        if not lacking:
            return
        # A file without a header tells nothing of its columns; it may have any.
        found = set[str]().union(*(whole if piece.columns is None else piece.columns for piece in pieces if piece.rows))
        if lacking & found or find_filled(self._table.merge(), sorted(lacking)):
            raise _OrderMatters("some files lack columns that have values")

    def results(self) -> list[StepResult]:
        found = {at: StepResult(step) for at, step in enumerate(self._steps)}
        for piece in self._read or ():
            before = found[piece.at]
            dialect = None if piece.dialect is None else Dialect.parse(piece.dialect)
            rows, faults = before.rows + piece.rows, before.rejects + piece.faults
            found[piece.at] = replace(before, rows=rows, rejects=faults, dialect=dialect)
        return list(found.values())
