"""Read files inside a Spark task: rows in the order of the files, bad rows into files, a report for each part.

The same readers do this as on the driver. A task that runs twice reports twice: the driver takes one of the reports,
and Spark the rows of one of the attempts. Both have read the same, or nothing is committed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from strandline.engines.log_lane import LogLane
from strandline.errors import Internal, StrandlineError, Unavailable
from strandline.jobs.ingest.bad_rows import BadRow, keep_row, refuse_row
from strandline.jobs.ingest.file_reader import FileReader
from strandline.jobs.ingest.part_report import PartReport, PieceReport, RecordingMatcher, Reports
from strandline.jobs.ingest.parts import Piece
from strandline.jobs.ingest.text_options import TextOptions
from strandline.model.change import ROW
from strandline.model.definition import TableDef
from strandline.model.name_map import Rule
from strandline.model.types import conform, storage_schema
from strandline.storage.open import Storage
from strandline.tables.catalog import Entry
from strandline.tables.rejects import RejectedRows, Rejects

ORDER = "_sl_order"
# A part has fewer rows than this.
_PART_ROWS = 1 << 40
_LOOK_S = 1.0


@dataclass(frozen=True)
class PartLane:
    """Reads the parts whose numbers are the input rows; output rows are those of the table and their `ORDER`.

    `tokens` are those of the bad rows of each step, None where bad rows fail the load; the rows of the steps in `kept`
    are kept already."""

    storage: Storage
    entry: Entry
    reports: Reports
    definition: TableDef
    text: TextOptions
    rule: Rule | None
    parts: Sequence[Sequence[Piece]]
    tokens: Sequence[str] | None
    kept: Collection[int]
    tells_columns: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = storage_schema(pa.schema([field.with_nullable(True) for field in self.definition.schema]))
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for rows, order in self.read_part(number):
                    table = conform(rows, columns).append_column(ORDER, order)
                    yield from table.combine_chunks().to_batches()

    def read_part(self, number: int) -> Iterator[tuple[pa.Table, pa.Array]]:
        """The rows of a part and their places in the load. It always reports, also when reading fails: Spark would
        read the part again, and would show the error as text only."""
        report = PartReport(number)
        bad = RejectedRows(Rejects(self.storage, self.entry))
        row = number * _PART_ROWS
        try:
            for rows in self._read_pieces(report, bad):
                yield rows, pa.array(range(row, row + rows.num_rows), pa.int64())
                row += rows.num_rows
            report.rejects = bad.give_files()
        except StrandlineError as error:
            report.error = error
        except OSError as error:
            report.error = Unavailable(f"a task could not read or write: {error}")
        except Exception as error:
            report.error = Internal(f"a task failed: {type(error).__name__}: {error}")
        if report.error is not None:
            bad.discard()
        self.reports.write(report)

    def _read_pieces(self, report: PartReport, bad: RejectedRows) -> Iterator[pa.Table]:
        names = RecordingMatcher(self.definition, self.rule, self.parts[report.number][0].step.source.skip)
        looked_s = time.monotonic()
        for piece in self.parts[report.number]:
            if report.pieces and time.monotonic() - looked_s > _LOOK_S:
                looked_s = time.monotonic()
                if self.reports.failed_before(report.number):
                    raise Unavailable("an earlier file has failed")
            told = PieceReport(piece.at, asked=names.start_file())
            reader = FileReader(self.definition, self.text, names)
            for found in reader.read(piece.step, piece.lines):
                if isinstance(found, BadRow):
                    told.faults += 1
                    self._take_bad_row(piece, found, bad)
                elif found.table.num_rows:
                    told.rows += found.table.num_rows
                    yield found.table
            self._describe(piece, reader, told)
            report.pieces.append(told)

    def _describe(self, piece: Piece, reader: FileReader, told: PieceReport) -> None:
        (loaded,) = reader.loaded
        told.size, told.lines, told.is_open, told.digest = loaded.size, loaded.lines, loaded.is_open, loaded.digest
        dialect = reader.dialects.get(piece.step.source.uri)
        told.dialect = None if dialect is None else dialect.to_text()
        columns = reader.columns_of(piece.step) if self.tells_columns else None
        told.columns = None if columns is None else sorted(columns)

    def _take_bad_row(self, piece: Piece, fault: BadRow, bad: RejectedRows) -> None:
        if self.tokens is None:
            raise refuse_row(piece.step.source, fault, self.entry.name)
        if piece.at not in self.kept:
            bad.add(self.tokens[piece.at], keep_row(piece.step.source, fault))


@dataclass(frozen=True)
class PartLogLane:
    """Reads parts and writes their rows as log files, for a table without a key: its rows stay as they come."""

    lane: PartLane
    log: LogLane

    @property
    def storage(self) -> Storage:
        return self.log.storage

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        return self.log(batch.rename_columns([*batch.schema.names[:-1], ROW]) for batch in self.lane(batches))
