"""Read the files of a plan, of every format, as rows of one table: tables of good rows, and the bad rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from strandline.errors import Conflict
from strandline.jobs.column_names import ColumnMatcher
from strandline.jobs.ingest.bad_rows import BadRow
from strandline.jobs.ingest.blocks import Reading, digest_of
from strandline.jobs.ingest.csv_file import CsvFile, open_csv
from strandline.jobs.ingest.dialect import Dialect, skip_text
from strandline.jobs.ingest.json_rows import JsonRows, read_json
from strandline.jobs.ingest.json_stream import Form, sniff_json
from strandline.jobs.ingest.loaded_files import Loaded
from strandline.jobs.ingest.parquet import read_parquet
from strandline.jobs.ingest.plan import Step
from strandline.jobs.ingest.source import Source
from strandline.jobs.ingest.text_columns import TextColumns
from strandline.jobs.ingest.text_options import TextOptions
from strandline.jobs.parquet_files import open_parquet
from strandline.model.checked_rows import CheckedRows
from strandline.model.definition import TableDef
from strandline.tables.partial import Missing, needed_columns

Advance = Callable[[Step, int], None]
"""Called with the number of bytes of a step that are done."""


def stand_still(step: Step, size: int) -> None:
    """Tells nobody about progress."""


@dataclass(frozen=True)
class LineRange:
    """Whole lines of a large file with one JSON object per line: the bytes `[start, stop)`, after `lines` lines."""

    start: int
    stop: int
    lines: int

    def reading(self, source: Source) -> Reading:
        return Reading(replace(source, size=self.stop), self.start, self.lines, hashlib.sha256())


class FileReader:
    """Reads files as rows of a table. `missing` is what the caller has said about values that rows lack. `loaded`
    collects the files that were read to their end, and `dialects` how the CSV files are written."""

    def __init__(
        self,
        definition: TableDef,
        text: TextOptions,
        names: ColumnMatcher,
        advance: Advance = stand_still,
        *,
        missing: Missing = "null",
    ) -> None:
        needed = needed_columns(definition, missing)
        self._schema = pa.schema([field.with_nullable(field.name not in needed) for field in definition.schema])
        self._tells_lacking = missing != "null"
        self._text = text
        self._names = names
        self._advance = advance
        self.loaded: list[Loaded] = []
        self.dialects: dict[str, Dialect] = {}
        self._csv: tuple[Source, CsvFile] | None = None
        self._columns: tuple[Source, set[str] | None] | None = None

    def read(self, step: Step, part: LineRange | None = None) -> Iterator[CheckedRows | BadRow]:
        """The rows of a file, or of a part of it. `Conflict` when it was written meanwhile."""
        return self._read_text(step, part) if step.source.is_text else self._read_parquet(step)

    def columns_of(self, step: Step) -> set[str] | None:
        """The columns of a file, which is looked at once; None where only its rows tell."""
        if self._columns is None or self._columns[0] != step.source:
            self._columns = (step.source, self._find_columns(step.source))
        return self._columns[1]

    def _find_columns(self, source: Source) -> set[str] | None:
        if source.kind == "jsonl":
            return None
        columns = TextColumns(source, self._schema, self._names)
        if source.kind == "csv":
            found = self._open_csv(source, columns).form.names
        else:
            with open_parquet(source.storage, source.path, source.skip) as file:
                found = self._names.match([name for name in file.schema.names if name not in source.skip])
        return {*found, *columns.folders} & set(self._schema.names) if found else None

    def _open_csv(self, source: Source, columns: TextColumns) -> CsvFile:
        """The file, which is looked at once."""
        if self._csv is None or self._csv[0] != source:
            self._csv = (source, open_csv(source, columns.schema, self._text, self._names))
        return self._csv[1]

    def _read_text(self, step: Step, part: LineRange | None) -> Iterator[CheckedRows | BadRow]:
        reading = step.reading() if part is None else part.reading(step.source)
        columns = TextColumns(step.source, self._schema, self._names)
        if step.source.kind == "csv":
            file = self._open_csv(step.source, columns)
            dialect = self.dialects[step.source.uri] = file.layout.dialect
            reading.encoding, reading.newline = dialect.encoding, dialect.newline
            lacking = self._lacking_of(step)
            pieces: Iterator[CheckedRows | BadRow] = (
                found if isinstance(found, BadRow) else CheckedRows.of_columns(found, lacking)
                for found in file.read(reading)
            )
        else:
            reading.encoding = sniff_json(step.source)
            form = None if part is None else Form.LINES
            rows = JsonRows(columns.schema, self._names, tells_lacking=self._tells_lacking)
            pieces = read_json(reading, rows, form)
        for found in pieces:
            if isinstance(found, BadRow):
                yield found if found.names is not None else replace(found, dialect=skip_text(step.source.skip))
            else:
                masks = {name: mask for name, mask in found.lacking.items() if columns.is_read(name)}
                yield replace(found, table=columns.finish(found.table), lacking=masks)
            self._advance(step, min(reading.done, step.bytes - 1))
        if reading.is_open and self._text.last_line == "auto" and step.source.may_grow:
            _refuse_growing(step.source)
        self._advance(step, step.bytes)
        self.loaded.append(Loaded.of(step.source, lines=reading.lines, is_open=reading.is_open, digest=reading.digest))

    def _lacking_of(self, step: Step) -> list[str]:
        """The columns that no row of a file has, if its header tells."""
        found = self.columns_of(step)
        return [] if found is None else [name for name in self._schema.names if name not in found]

    def _read_parquet(self, step: Step) -> Iterator[CheckedRows | BadRow]:
        digest, lacking = digest_of(step.source), self._lacking_of(step)
        for found in read_parquet(step.source, self._schema, self._names):
            if isinstance(found, BadRow):
                yield found
            else:
                table, size = found
                yield CheckedRows.of_columns(table, lacking)
                self._advance(step, min(size, step.bytes - 1))
        _refuse_growing(step.source)
        self._advance(step, step.bytes)
        self.loaded.append(Loaded.of(step.source, digest=digest))


def _refuse_growing(source: Source) -> None:
    if not source.is_unchanged():
        raise Conflict(f"{source.uri} was written while it was read; nothing was loaded", file=source.uri)
