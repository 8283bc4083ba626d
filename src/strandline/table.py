"""A table, with every method that a user has for it."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from strandline.consumers import compaction, retention
from strandline.consumers.compaction import CompactReport
from strandline.consumers.compaction_plan import CompactPlan, plan
from strandline.consumers.retention import ExpiryPlan
from strandline.engines.choice import Engine, engine_of_call
from strandline.errors import Invalid, NotFound
from strandline.jobs.export.destination import Destination
from strandline.jobs.export.export import ExportReport, export
from strandline.jobs.export.source import new_source
from strandline.jobs.ingest.key_text import parse_keys
from strandline.jobs.ingest.retry import TableRejects
from strandline.jobs.pin import pin_table
from strandline.jobs.purge import PurgePlan, PurgeReport, plan_purge, purge
from strandline.jobs.restore import RestorePlan, plan_restore, restore
from strandline.jobs.vacuum import VacuumReport, vacuum
from strandline.model import duration
from strandline.model.change import DELETE, UPSERT, Commit, Op, Seq
from strandline.model.definition import TableDef
from strandline.model.rows import check_given, check_rows, is_spark
from strandline.model.schema_text import columns_of, parse_type, require_schema
from strandline.model.settings import TableSettings
from strandline.model.text import check_text
from strandline.pipeline import notebook
from strandline.pipeline.status import TableStatus, table_status
from strandline.progress import Progress, silent
from strandline.retry import until_landed
from strandline.tables import frames
from strandline.tables.count import count_rows
from strandline.tables.horizon import moment
from strandline.tables.partial import (
    Missing,
    check_missing,
    complete_frame,
    needed_columns,
    refuse_losses,
    write_keeping,
)
from strandline.tables.pins import HeldPin, Pin
from strandline.tables.store import At, TableStore
from strandline.tables.writing import check_frame, write, write_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class HistoryEntry:
    """One commit of a table's log."""

    seq: int
    at: dt.datetime
    operation: str
    rows: int
    files: int


class Table(TableStore):
    """A keyed table, or an append-only one without a key. Safe to share between threads and processes."""

    _planned: Mapping[str, object] | None = None
    """The settings of the last `plan_expiry`."""

    def __repr__(self) -> str:
        return f"Table({self.name!r}, head={self.head})"

    def _repr_html_(self) -> str:
        return notebook.table_html(self)

    def __dir__(self) -> list[str]:
        shared = ["name", "definition", "schema", "oldest", "to_arrow", "to_batches", "to_spark", "changes"]
        return notebook.front_names(self, TableStore, shared)

    @property
    def head(self) -> Seq:
        """The latest seq, a number. The first rows are `show(n)`."""
        return Seq(super().head)

    def count(self, where: str | None = None, *, at: At = None) -> int:
        """The number of rows, or of those that fulfil a condition, at a seq or a time (now, by default). Data files are
        read only if their statistics do not suffice."""
        merge, _, predicate = self.plan_read(at, where=where)
        return count_rows(self, merge, predicate)

    def to_pandas(self, *, at: At = None, columns: Sequence[str] | None = None, where: str | None = None) -> Any:
        """The rows as a pandas DataFrame; see `to_arrow`."""
        return frames.to_pandas(self.to_arrow(at=at, columns=columns, where=where))

    def to_polars(self, *, at: At = None, columns: Sequence[str] | None = None, where: str | None = None) -> Any:
        """The rows as a polars DataFrame; see `to_arrow`. polars has to be installed."""
        return frames.to_polars(self.to_arrow(at=at, columns=columns, where=where))

    def show(
        self, n: int = 20, *, at: At = None, columns: Sequence[str] | None = None, where: str | None = None
    ) -> None:
        """Print at most `n` rows, in no promised order."""
        notebook.print_rows(self.to_arrow(at=at, columns=columns, where=where, limit=n))

    def upsert(
        self, rows: object, *, order_by: str | None = None, token: str | None = None, missing: Missing = "refuse"
    ) -> Commit:
        """Insert or replace whole rows by key, as one commit.

        A column that a row does not have is `missing` there. The call is refused if a value would be lost by that;
        `null` sets it to null, and `keep` is a partial upsert that keeps the value which the table has.

        Rows are Arrow, pandas, polars, a list of dicts or a Spark DataFrame. Of several rows with the same key
        the last wins; a DataFrame has no order, so it needs `order_by` or unique keys. With a `token`, repeating the
        call is safe."""
        definition = self._require_key("upsert")
        return self._write_rows(
            rows, definition, definition.schema, UPSERT, order_by, token, missing=check_missing(missing)
        )

    def delete(self, keys: object, *, token: str | None = None) -> Commit:
        """Delete rows by key, as one commit; keys that are not in the table are no error.

        Keys are rows of the key columns alone, or for a key of one column a list of its values."""
        definition = self._require_key("delete")
        columns = pa.schema([definition.schema.field(name) for name in definition.key])
        return self._write_rows(_key_rows(keys, definition), definition, columns, DELETE, None, token)

    def append(self, rows: object, *, token: str | None = None) -> Commit:
        """Add rows to a table without a key, as one commit."""
        definition = self.definition
        if definition.is_keyed:
            raise Invalid(f"table {self.name!r} has the key {', '.join(definition.key)}: use upsert", table=self.name)
        return self._write_rows(rows, definition, definition.schema, UPSERT, None, token)

    def _require_key(self, verb: str) -> TableDef:
        definition = self.definition
        if not definition.is_keyed:
            raise Invalid(f"table {self.name!r} has no key: it takes append, not {verb}", table=self.name)
        return definition

    def _write_rows(
        self,
        rows: object,
        definition: TableDef,
        columns: pa.Schema,
        op: Op,
        order_by: str | None,
        token: str | None,
        *,
        missing: Missing = "null",
    ) -> Commit:
        tokens = [] if token is None else [_check_token(token)]
        if missing != "null" and self.log.find_token(tokens) is not None:
            # A repeated call changes nothing, whatever the table has by now.
            missing = "null"
        try:
            if is_spark(rows):
                unchecked = cast("DataFrame", rows)
                checked = check_frame(unchecked, columns, order_by)

                def attempt() -> Commit:
                    frame, amend = complete_frame(self, definition, checked, unchecked.columns, missing)
                    return write_frame(self.log, frame, definition, op, order_by=order_by, tokens=tokens, amend=amend)

                return until_landed(attempt) if missing == "keep" else attempt()
            if order_by is not None:
                raise Invalid("order_by is for Spark DataFrames; other rows are taken in their own order")
            if missing == "null":
                pieces = check_rows(rows, columns)
            else:
                given = check_given(rows, columns, required=needed_columns(definition, missing))
                if missing == "keep":
                    return write_keeping(self, definition, given, tokens=tokens)
                pieces = refuse_losses(self, definition, given)
            return write(self.log, pieces, definition, op, tokens=tokens, spark=self.spark)
        except Invalid as error:
            error.fields.setdefault("table", self.name)
            raise

    def _check_keys(self, keys: object, verb: str) -> pa.Table:
        """A user's keys, checked, as a table of the key columns."""
        definition = self._require_key(verb)
        columns = pa.schema([definition.schema.field(name) for name in definition.key])
        rows = _key_rows(keys, definition)
        if is_spark(rows):
            rows = cast("DataFrame", rows).toArrow()
        pieces = list(check_rows(rows, columns))
        return pa.concat_tables(pieces) if pieces else columns.empty_table()

    def evolve(self, schema: pa.Schema | str) -> pa.Schema:
        """Add nullable columns and widen numbers; returns the new schema. Columns that `schema` leaves out stay. The
        schema may be a text, as in `create_table`."""
        wanted = require_schema(schema)
        return self.log.redefine("EVOLVE", lambda definition: definition.evolve(wanted)).schema

    def export(
        self,
        dest: str | os.PathLike[str],
        *,
        at: At = None,
        changes: tuple[int, int | None] | None = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        overwrite: bool = False,
        options: Mapping[str, str] | None = None,
        dry_run: bool = False,
        engine: Engine | None = None,
        progress: Progress = silent,
    ) -> ExportReport:
        """Write the rows at a seq or a time, or with `changes` those in `(after, upto]` with their `_op` and `_seq`, as
        Parquet files below `dest`: an empty folder or `s3://bucket/prefix`.

        `overwrite` replaces an earlier export. Changes that `where` refuses leave as deletes. `options` are S3
        settings, as a lake takes them. `dry_run` writes nothing. `engine` is `auto`, `driver` or `spark`."""
        source = new_source(self, at=at, changes=changes, columns=columns, where=where)
        with engine_of_call(engine):
            return export(source, Destination(dest, options, may_replace=overwrite), dry_run=dry_run, progress=progress)

    def history(self) -> list[HistoryEntry]:
        """The commits of the log, oldest first."""
        return [
            HistoryEntry(
                info.version,
                dt.datetime.fromtimestamp(info.timestamp_ms / 1000, dt.UTC),
                info.operation,
                int(info.metrics.get("rows", 0)),
                int(info.metrics.get("files", 0)),
            )
            for info in self.log.delta.history()
        ]

    def pin(self, at: At = None, *, name: str | None = None, why: str = "asked for", length: object = "1h") -> HeldPin:
        """Keep the table readable at a seq until the pin is released, or has not been renewed for `length`.

        As a `with` block it renews itself. With a `name`, a later call from any process moves the same pin."""
        return pin_table(self, at, name=name, why=why, length=length)

    def unpin(self, name: str) -> Pin:
        """End a pin: the next vacuum may trim the seqs that it kept."""
        found = {pin.name: pin for pin in self.pins.all()}
        if name not in found:
            hint = f"Pins: {', '.join(found)}" if found else f"See: strandline table pins {self.name}"
            raise NotFound(f"table {self.name!r} has no pin {name!r}", hint=hint, table=self.name, pin=name)
        self.pins.release(name)
        return found[name]

    def plan_compaction(self, *, full: bool = False) -> CompactPlan:
        """Which vnodes `compact` would fold now, and why."""
        return plan(self, full=full)

    def compact(
        self, *, full: bool = False, engine: Engine | None = None, progress: Progress = silent
    ) -> CompactReport:
        """Fold the due vnodes of the log into the baseline, or with `full` all vnodes with changes. `engine` is `auto`,
        `driver` or `spark`."""
        with engine_of_call(engine):
            return compaction.compact(self, full=full, progress=progress)

    def vacuum(
        self,
        *,
        grace: object | None = None,
        keep: object | None = None,
        dry_run: bool = False,
        progress: Progress = silent,
    ) -> VacuumReport:
        """Trim the log and delete the files that nothing needs, behind every pin.

        `keep` and `grace` override the table's settings: how far back it stays readable, and how long an unneeded file
        is kept."""
        return vacuum(
            self,
            grace_s=None if grace is None else duration.seconds(grace, "grace"),
            keep_s=None if keep is None else duration.seconds(keep, "keep"),
            dry_run=dry_run,
            progress=progress,
        )

    def configure(self, **settings: object) -> TableSettings:
        """Change the table's settings (see `TableSettings`), or name its `time` column; returns all of them.

        Ask `plan_expiry(retention=…)` first how many rows the next tick would hide; without that, a warning is logged
        for them."""
        changed = self.log.redefine("CONFIGURE", lambda definition: definition.with_settings(settings)).settings
        if "retention" in settings and self._planned != settings:
            retention.warn_of_retention(self)
        return changed

    def plan_expiry(self, before: dt.datetime | dt.date | None = None, **settings: object) -> ExpiryPlan:
        """The rows that `expire` would hide now, or that the next tick would hide after `configure(**settings)`."""
        definition = self.definition.with_settings(settings) if settings else None
        self._planned = settings
        return retention.plan_expiry(self, before, definition=definition)

    def expire(self, before: dt.datetime | dt.date | None = None) -> int | None:
        """Hide the rows whose time lies before a moment, by default by the setting `retention`; returns the seq
        from which it holds, None when there is nothing to hide. Compaction drops them later. Rows that a sink has not
        acknowledged stay: they hold the retention back, and with `before` they are a `Conflict`."""
        done = retention.expire(self, before)
        return None if done is None else done.seq

    @property
    def hidden_before(self) -> dt.datetime | None:
        """Rows whose time lies before this moment are hidden; None when none are."""
        horizon = self.merge().horizon
        return None if horizon is None else moment(horizon).replace(tzinfo=dt.UTC)

    def plan_restore(self, at: At) -> RestorePlan:
        """How many keys `restore` would change."""
        return plan_restore(self, at)

    def restore(self, at: At) -> Commit:
        """Bring back the rows of a seq or a time, as one new commit; the history stays. Rows that have expired since
        stay hidden."""
        return restore(self, at)

    def add_column(self, name: str, kind: pa.DataType | str) -> pa.Schema:
        """Add a column, which is null in the rows that are there; returns the new schema. The type may be a text, such
        as `decimal(10,2)`."""
        wanted = parse_type(kind, name) if isinstance(kind, str) else kind
        return self.log.redefine("ADD COLUMN", lambda definition: definition.add_column(name, wanted)).schema

    def rename_column(self, old: str, new: str) -> pa.Schema:
        """Give a column another name, at every seq; returns the new schema. No file is written again. Columns of the
        key, `cluster_by`, version and time keep their names."""
        return self.log.redefine("RENAME COLUMN", lambda definition: definition.rename_column(old, new)).schema

    def drop_column(self, name: str) -> pa.Schema:
        """Drop a column; its name cannot be used again. Its bytes go as files are rewritten: at once with
        `compact(full=True)` and vacuum."""
        return self.log.redefine("DROP COLUMN", lambda definition: definition.drop_column(name)).schema

    def parse_keys(self, texts: Sequence[str]) -> pa.Table:
        """Keys as people type them: a value for a key of one column, a JSON object for one of several."""
        return parse_keys(texts, self._require_key("purge"))

    def plan_purge(self, keys: object) -> PurgePlan:
        """How many of these keys `purge` would find in the table now."""
        return plan_purge(self, self._check_keys(keys, "purge"))

    def purge(self, keys: object, *, progress: Progress = silent) -> PurgeReport:
        """Erase rows for good: from the log, the baseline, every readable version, the refused rows and the dead
        letters of sinks.

        The bytes leave the disk with the next vacuum after the grace time. Rows that sinks have sent stay there."""
        rows = self._check_keys(keys, "purge")
        with self.readers.paused():
            self.readers.forget(rows)
            return purge(self, rows, progress=progress)

    def rejects(self) -> TableRejects:
        """The rows that ingests refused: list, retry or drop them."""
        return TableRejects(self)

    def describe(self) -> dict[str, Any]:
        """The table's columns with their types in words, its key, settings and folder."""
        definition = self.definition
        return {
            "key": definition.key,
            "cluster_by": definition.cluster_by,
            "version": definition.version,
            "time": definition.time,
            "settings": definition.settings.to_dict(),
            "generation": self.entry.generation,
            "folder": self.entry.folder,
            "columns": columns_of(definition.schema),
            "names": [asdict(name) for name in definition.names.renamed],
        }

    def status(self) -> TableStatus:
        """What the table holds and how far its fold is behind; rows from statistics."""
        return table_status(self)


def _key_rows(keys: object, definition: TableDef) -> object:
    """Keys as rows; the keys of a single column may be bare values."""
    if isinstance(keys, list | tuple | set | frozenset) and len(definition.key) == 1:
        return [k if isinstance(k, dict) else {definition.key[0]: k} for k in keys]
    return keys


def _check_token(token: object) -> str:
    if not isinstance(token, str) or not 1 <= len(token) <= 512:
        raise Invalid(f"token is {token!r:.40}; expected a text of 1 to 512 characters")
    return check_text("token", token)
