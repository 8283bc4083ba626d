"""Make a table of this lake from one that exists elsewhere.

The rows are committed before the catalog gets the name. After a crash or an error there is no table, only files of a
generation that was never registered. Until it is registered the file `IMPORTING` lies beside them, so that nobody takes
them for a table that the catalog lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from strandline.crash import crash_point
from strandline.engines.scan import listed, quoted
from strandline.errors import Invalid
from strandline.jobs.column_names import check_rule, find_columns
from strandline.jobs.import_sources import ImportSource, open_source
from strandline.jobs.ingest.job import options_of
from strandline.jobs.renamed_source import RenamedSource
from strandline.model.change import UPSERT
from strandline.model.definition import TableDef, check_name
from strandline.model.name_map import Rule
from strandline.model.rows import check_rows
from strandline.model.types import names_of
from strandline.progress import Progress, silent
from strandline.tables.baseline import Baseline
from strandline.tables.catalog import IMPORTING, Entry
from strandline.tables.collection import Tables
from strandline.tables.log import Log
from strandline.tables.writing import write


def import_table(
    lake: Tables,
    name: str,
    source: str,
    *,
    key: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
    vnodes: int = 16,
    version: str | None = None,
    order_by: str | None = None,
    skip: Sequence[str] = (),
    names: Rule | None = None,
    progress: Progress = silent,
) -> None:
    """Create `name` with the schema and rows of `source`. Of rows with the same key, the one with the highest
    `order_by` wins; without `order_by`, equal keys are refused. Columns in `skip` are left out. `names` is the rule for
    the names of columns."""
    lake.catalog.check_free(check_name(name))
    check_rule(names)
    origin = RenamedSource.by_rule(open_source(source, options_of(lake), skip), names)

    def find(given: Sequence[str]) -> Sequence[str]:
        return given if isinstance(given, str) else find_columns(given, origin.schema.names, origin.names)

    version = None if version is None else find([version])[0]
    definition = TableDef.declare(
        origin.schema, key=find(key), cluster_by=find(cluster_by), vnodes=vnodes, version=version
    ).with_names(origin.names)
    if order_by is not None:
        order_by = find([order_by])[0]
        names_of(origin.schema, [order_by])

    made: list[Entry] = []

    def prepare(entry: Entry) -> None:
        made.append(entry)
        try:
            lake.storage.put_new(f"{entry.folder}/{IMPORTING}", b"")
            Log.create(lake.storage, f"{entry.folder}/log", name, definition)
            Baseline.create(lake.storage, f"{entry.folder}/baseline", name, definition)
            _fill_table(lake, entry, origin, definition, order_by, progress)
            crash_point("import.filled")
        except BaseException:
            _delete_files(lake, entry)
            raise

    try:
        entry = lake.catalog.add(name, prepare)
    except Invalid:
        # Another process took the name. After any other failure the catalog may have the table.
        for entry in made:
            _delete_files(lake, entry)
        raise
    crash_point("import.registered")
    lake.storage.delete([f"{entry.folder}/{IMPORTING}"])


def _delete_files(lake: Tables, entry: Entry) -> None:
    """Delete the new files, the mark last: without it the rest would be taken for a table that the catalog lost."""
    mark = f"{entry.folder}/{IMPORTING}"
    lake.storage.delete([info.path for info in lake.storage.list(entry.folder) if info.path != mark])
    crash_point("import.cleared")
    lake.storage.delete([mark])


def _fill_table(
    lake: Tables, entry: Entry, origin: ImportSource, definition: TableDef, order_by: str | None, progress: Progress
) -> None:
    batches = origin.batches() if order_by is None else _sort_batches(lake, origin, order_by)
    pieces = _report_progress(check_rows(batches, definition.schema), origin, progress)
    log = Log(lake.storage, f"{entry.folder}/log")
    try:
        first = next(pieces, None)
        if first is None:
            return
        count = [first.num_rows]

        def rest() -> Iterator[pa.Table]:
            yield first
            for piece in pieces:
                count[0] += piece.num_rows
                yield piece

        commit = write(log, rest(), definition, UPSERT, tokens=(), spark=lake.spark)
    except Invalid as error:
        message = error.message if origin.uri in error.message else f"{origin.uri}, {error.message}"
        raise Invalid(message, hint=error.hint, **{"path": origin.uri, **error.fields}) from error
    if commit.rows < count[0] and order_by is None:
        row = _find_repeated_key(lake, origin, definition.key)
        raise Invalid(
            f"{origin.uri} holds the key {row} more than once",
            hint="Say which row wins, the highest in a column: order_by, or --order-by COLUMN.",
            path=origin.uri,
            column=definition.key[0],
            key=row,
        )


def _report_progress(pieces: Iterator[pa.Table], origin: ImportSource, progress: Progress) -> Iterator[pa.Table]:
    done = 0
    for piece in pieces:
        if piece.num_rows:
            yield piece
        done += piece.num_rows
        progress(done, origin.rows, origin.uri)


def _sort_batches(lake: Tables, origin: ImportSource, order_by: str) -> Iterator[pa.RecordBatch]:
    with lake.duck.transaction() as cursor:
        cursor.register("_origin", pa.RecordBatchReader.from_batches(origin.schema, origin.batches()))
        yield from cursor.sql(f"SELECT * FROM _origin ORDER BY {quoted(order_by)} NULLS FIRST").to_arrow_reader(50_000)


def _find_repeated_key(lake: Tables, origin: ImportSource, key: Sequence[str]) -> dict[str, object]:
    fields = pa.schema([origin.schema.field(name) for name in key])
    with lake.duck.transaction() as cursor:
        cursor.register("_origin", pa.RecordBatchReader.from_batches(fields, origin.batches(key)))
        found = cursor.sql(f"SELECT {listed(key)} FROM _origin GROUP BY ALL HAVING count(*) > 1 LIMIT 1")
        rows: list[dict[str, object]] = found.to_arrow_table().to_pylist()
        return rows[0]
