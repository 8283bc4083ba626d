"""Load refused rows again, now that the table, or the reader, may take them.

The rows of a data file that fit are first put into a data file of their own, still as refused rows. One commit loads
all such files, each under a transaction with its name; then the files are removed.

After a crash: a file whose transaction the table's log has is only removed. Two processes cannot load the same file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.crash import crash_point
from strandline.errors import Conflict
from strandline.jobs.column_names import ColumnMatcher, find_columns, is_skipped
from strandline.jobs.ingest.bad_rows import UNFIT, BadRow
from strandline.jobs.ingest.blocks import Block
from strandline.jobs.ingest.csv import Delimited
from strandline.jobs.ingest.dialect import Dialect, skipped_names
from strandline.jobs.ingest.json_rows import JsonRows
from strandline.jobs.ingest.json_stream import Lines
from strandline.jobs.partitions import add_partitions, partitions_of
from strandline.jobs.purge import plan_purge
from strandline.model.change import UPSERT
from strandline.model.checked_rows import CheckedRows
from strandline.model.definition import TableDef
from strandline.storage.snapshot import DataFile, Draft, Snapshot
from strandline.tables.log import Amend
from strandline.tables.partial import complete_rows, find_lacking
from strandline.tables.rejects import KeptRows, Rejects, is_from
from strandline.tables.store import TableStore
from strandline.tables.writing import write

_PREFIX = "retry/"
_ATTEMPTS = 10
_Fault = tuple[str | None, str]


@dataclass(frozen=True)
class RetryPlan:
    """What a retry would do: load `rows` of the refused rows and keep `kept`. For `replaces` of them the table has a
    row with the same key, which they would replace."""

    table: str
    rows: int
    kept: int
    replaces: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class RetryReport:
    """What a retry did: `rows` were loaded at `seq`, `kept` stay refused with new reasons."""

    table: str
    rows: int
    kept: int
    seq: int | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class TableRejects(Rejects):
    """The refused rows of a table, which can also be loaded again."""

    def __init__(self, table: TableStore) -> None:
        super().__init__(table.log.storage, table.entry)
        self._store = table

    def plan_retry(self, *, file: str | None = None) -> RetryPlan:
        """What `retry` would do. Nothing is written."""
        definition = self._store.log.refresh().definition
        parts = [_part_rows(kept, definition, file) for kept in self.kept()]
        loaded = [part.rows.table for part in parts if part.fitting]
        replaces = 0
        if loaded and definition.is_keyed:
            keys = pa.concat_tables(loaded).select(list(definition.key))
            distinct = keys.group_by(list(definition.key), use_threads=False).aggregate([])
            replaces = plan_purge(self._store, distinct).present
        rows = sum(table.num_rows for table in loaded)
        return RetryPlan(self._store.name, rows, sum(len(part.faults) for part in parts), replaces)

    def retry(self, *, file: str | None = None) -> RetryReport:
        """Load the refused rows that fit now, of one file or of all, in one commit; the others are kept with new
        reasons. Rows replace those with the same key, as in every load; in the columns that their CSV file or their
        JSON object does not have, they keep the table's values."""
        for _ in range(_ATTEMPTS):
            self._remove_loaded()
            definition = self._store.log.refresh().definition
            ready = self._part_files(definition, file)
            if ready is None:
                continue
            files, parts, kept = ready
            if not files:
                return RetryReport(self._store.name, 0, kept, None)
            crash_point("retry.parted")
            try:
                seq = self._load(files, parts, definition)
            except Conflict:
                continue
            crash_point("retry.loaded")
            self._remove_loaded()
            return RetryReport(self._store.name, sum(len(part.fitting) for part in parts), kept, seq)
        raise Conflict(f"other processes change the refused rows of {self._store.name!r} all the time")

    def _part_files(self, definition: TableDef, file: str | None) -> tuple[list[DataFile], list[_Part], int] | None:
        """Files whose rows all fit, their rows as parts, and the number of rows that do not fit. None when another
        process has changed the files."""
        removed, added, ready, parts, kept_rows = [], [], [], [], 0
        for kept in self.kept():
            part = _part_rows(kept, definition, file)
            kept_rows += len(part.faults)
            if not part.fitting and not part.is_news(kept):
                continue
            if len(part.fitting) == kept.rows.num_rows:
                ready.append(kept.file)
                parts.append(part)
                continue
            fitting = self.rewrite(kept, kept.rows.take(pa.array(part.fitting, pa.int64())))
            removed.append(kept.file)
            added += [*fitting, *self.rewrite(kept, part.rest(kept))]
            if fitting:
                ready += fitting
                parts.append(part)
        if removed and not self.replace(removed, added):
            return None
        return ready, parts, kept_rows

    def _load(self, files: Sequence[DataFile], parts: Sequence[_Part], definition: TableDef) -> int:
        apps = [_PREFIX + file.path for file in files]

        def amend(snapshot: Snapshot, draft: Draft) -> Draft:
            if any(app in snapshot.txns for app in apps):
                raise Conflict("another process has loaded these rows")
            seq = snapshot.version + 1
            return replace(draft, expiring_txns={**draft.expiring_txns, **{app: seq for app in apps}})

        store = self._store
        given = CheckedRows.concat([part.rows for part in parts])
        rows = given.table
        check: Amend = amend
        if definition.is_keyed and given.lacking:
            rows, check = complete_rows(store, given, amend)
        return write(store.log, iter([rows]), definition, UPSERT, tokens=(), spark=store.spark, amend=check).seq

    def _remove_loaded(self) -> None:
        """Remove the files whose rows the table has."""
        known = self._store.log.refresh().snapshot.txns
        self.remove(lambda kept: _mark_all(kept.rows, is_marked=_PREFIX + kept.file.path in known))


def _mark_all(rows: pa.Table, *, is_marked: bool) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array([is_marked] * rows.num_rows, pa.bool_())])


@dataclass(frozen=True)
class _Part:
    """The rows of a data file: those that fit by their numbers and as rows of the table, the others with a reason. Rows
    of other files than the asked one have none."""

    fitting: list[int]
    rows: CheckedRows
    faults: dict[int, _Fault]

    def is_news(self, kept: KeptRows) -> bool:
        """Whether some row has a new reason."""
        rows = kept.rows.select(["column", "reason"]).to_pylist()
        return any((rows[at]["column"], rows[at]["reason"]) != fault for at, fault in self.faults.items())

    def rest(self, kept: KeptRows) -> pa.Table:
        """The rows that do not fit, with their new reasons, and those that were not asked for."""
        rows = kept.rows
        for place, name in enumerate(("column", "reason")):
            values = rows.column(name).to_pylist()
            for at, fault in self.faults.items():
                values[at] = fault[place]
            field = rows.schema.field(name)
            rows = rows.set_column(rows.schema.get_field_index(name), field, pa.array(values, field.type))
        others = sorted(set(range(rows.num_rows)) - set(self.fitting))
        return rows.take(pa.array(others, pa.int64()))


def _part_rows(kept: KeptRows, definition: TableDef, file: str | None) -> _Part:
    """Read the texts of refused rows with the table's columns of now."""
    asked = pc.indices_nonzero(is_from(kept.rows, file)).to_pylist()
    groups: dict[tuple[tuple[str, ...] | None, str | None, str], list[int]] = {}
    rows = kept.rows.to_pylist()
    faults: dict[int, _Fault] = {}
    for at in asked:
        row = rows[at]
        if "not UTF-8" in row["reason"]:
            # The text shows the bytes in another form, so it would be another value.
            faults[at] = (row["column"], row["reason"])
        else:
            # A column may have another name by now.
            old = row.get("names")
            names = None if old is None else find_columns(old, definition.schema.names, definition.names)
            groups.setdefault((names, row.get("dialect"), row["file"]), []).append(at)
    fitting: list[int] = []
    pieces = [CheckedRows(_make_nullable(definition).empty_table())]
    for (names, dialect, place), numbers in groups.items():
        reader = _Reader(definition, names, dialect)
        given, bad = reader.read([rows[at]["text"] for at in numbers])
        faults |= {numbers[at]: fault for at, fault in bad.items()}
        fitting += [number for at, number in enumerate(numbers) if at not in bad]
        folder = place.rpartition("/")[0]
        parts = partitions_of(f"{folder}/")
        lacking = {name: mask for name, mask in given.lacking.items() if name not in parts}
        table = _fill_partitions(given.table, folder, definition.schema)
        pieces.append(replace(given, table=table, lacking=lacking))
    # The order of a file's rows decides which of two rows with one key counts.
    order = np.argsort(np.array(fitting, np.int64))
    return _Part(sorted(fitting), CheckedRows.concat(pieces).take(order), faults)


def _fill_partitions(rows: pa.Table, folder: str, schema: pa.Schema) -> pa.Table:
    """The rows with the values that folders named `column=value` hold, in columns that the rows lack."""
    found = {name: text for name, text in partitions_of(f"{folder}/").items() if name in schema.names}
    lacking = {name: text for name, text in found.items() if rows.column(name).null_count == rows.num_rows}
    filled = add_partitions(rows.drop_columns(list(lacking)), lacking, schema, folder)
    return filled.select(rows.column_names).cast(rows.schema)


def _make_nullable(definition: TableDef) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in definition.schema])


class _Reader:
    """Reads texts of one file: CSV with these columns and this dialect, or JSON. The rows tell what they lack."""

    def __init__(self, definition: TableDef, names: Sequence[str] | None, dialect: str | None) -> None:
        self._definition = definition
        self._none = CheckedRows(_make_nullable(definition).empty_table())
        self._names = names
        self._skipped = skipped_names(dialect) if names is None else ()
        self._dialect = Dialect() if dialect is None or names is None else Dialect.parse(dialect)

    def read(self, texts: Sequence[str]) -> tuple[CheckedRows, dict[int, _Fault]]:
        """The rows that fit, in their order, and the reasons of the others by their numbers."""
        known = set(self._definition.schema.names)
        missing = next((name for name in self._names or () if name not in known and not is_skipped(name)), None)
        if missing is not None:
            fault = (missing, f"the table has no column {missing!r}")
            return self._none, dict.fromkeys(range(len(texts)), fault)
        try:
            return self._read_all(texts)
        except UNFIT:
            # A text that is not one row moves the others; alone it does not.
            pieces, faults = [self._none], {}
            for at, text in enumerate(texts):
                try:
                    piece, bad = self._read_all([text])
                    pieces.append(piece)
                except UNFIT as error:
                    bad = {0: (None, str(error).splitlines()[0])}
                if bad:
                    faults[at] = bad[0]
            return CheckedRows.concat(pieces), faults

    def _read_all(self, texts: Sequence[str]) -> tuple[CheckedRows, dict[int, _Fault]]:
        if self._names is None:
            given, bad = self._read_json(texts)
            starts = {at + 1: at for at in range(len(texts))}
        else:
            given, bad = self._read_csv(texts, self._names)
            lines = [1]
            for text in texts:
                lines.append(lines[-1] + text.count("\n") + 1)
            starts = {line: at for at, line in enumerate(lines[:-1])}
        if given.table.num_rows + len(bad) != len(texts) or any(one.line not in starts for one in bad):
            raise ValueError("a text is not one row")
        return given, {starts[one.line]: (one.column, one.reason) for one in bad}

    def _read_json(self, texts: Sequence[str]) -> tuple[CheckedRows, list[BadRow]]:
        names = ColumnMatcher(self._definition, skip=self._skipped)
        data = "".join(f"{_to_one_line(text)}\n" for text in texts).encode()
        reader = JsonRows(self._add_skipped(names.skipped), names, tells_lacking=self._definition.is_keyed)
        given, bad = reader.convert(Lines(data, 1))
        own = self._definition.schema.names
        lacking = {name: mask for name, mask in given.lacking.items() if name in own}
        return replace(given, table=given.table.select(own), lacking=lacking), bad

    def _read_csv(self, texts: Sequence[str], names: Sequence[str]) -> tuple[CheckedRows, list[BadRow]]:
        dialect = replace(self._dialect, encoding="utf-8", newline="\n")
        form = Delimited(self._add_skipped([name for name in names if is_skipped(name)]), names, dialect)
        found = list(form.read(Block("".join(f"{text}\n" for text in texts).encode(), 1)))
        own = self._definition.schema.names
        tables = [one.select(own) for one in found if isinstance(one, pa.Table)]
        rows = pa.concat_tables(tables) if tables else self._none.table
        lacking = find_lacking(self._definition, names)
        return CheckedRows.of_columns(rows, lacking), [one for one in found if isinstance(one, BadRow)]

    def _add_skipped(self, labels: Sequence[str]) -> pa.Schema:
        return pa.schema([*self._definition.schema, *(pa.field(label, pa.string()) for label in labels)])


def _to_one_line(text: str) -> str:
    """A text in one line, if it is JSON over several lines."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text if "\n" not in text else json.dumps(text)
    return text.replace("\r", " ").replace("\n", " ")
