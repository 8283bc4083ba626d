"""A lake, as users open it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, Unpack, cast

import pyarrow as pa

from strandline.consumers.compaction import CompactReport, compact_tables
from strandline.consumers.compaction_plan import CompactPlan, plan_tables
from strandline.consumers.context import Context
from strandline.consumers.fixpoint import Fixpoint
from strandline.consumers.log_consumer import LogConsumer
from strandline.consumers.step import Kind as FixpointKind
from strandline.consumers.step import Step, StepMethod
from strandline.engines.choice import Engine
from strandline.errors import Invalid, StrandlineError
from strandline.jobs import import_table as imports
from strandline.jobs.backup import BackupReport, backup, restore
from strandline.jobs.dropped import DroppedTable, DropReport, drop, list_dropped, undrop
from strandline.jobs.ingest.job import IngestReport, NewTable, ingest
from strandline.jobs.ingest.source import Kind, Paths, list_paths
from strandline.jobs.ingest.text_options import TextArguments, TextOptions
from strandline.jobs.lake_vacuum import LakeVacuum, vacuum_lake
from strandline.model import duration
from strandline.model.definition import TableDef, check_name
from strandline.model.name_map import Rule
from strandline.model.names import name_list
from strandline.pipeline import notebook, runner
from strandline.pipeline.addition import (
    declare_consumer,
    declare_fixpoint,
)
from strandline.pipeline.plan import Plan, plan_of
from strandline.pipeline.report import TickReport
from strandline.pipeline.sink_verbs import SinkVerbs
from strandline.pipeline.status import Status, status_of
from strandline.progress import Progress, silent
from strandline.query import sql as query
from strandline.state.tokens import Tokens
from strandline.storage.open import to_address
from strandline.table import Table
from strandline.tables.broken import BrokenTable
from strandline.tables.partial import Missing
from strandline.tables.store import At


class Lake(SinkVerbs):
    """The tables in one folder or bucket.

    `root` is a path or `s3://bucket/prefix`; `storage_options` are S3 settings, by default the `AWS_…` environment
    variables. `state` is the URL of the database that keeps the marks of its sinks, or the path of a file, by default
    in a local lake. `spark` is a session to use instead of a new one. `cache_bytes` bounds the memory of DuckDB and of
    a query's result. Opening writes nothing; the first table makes the lake. Safe to share between threads; any number
    of processes may work on one lake."""

    table_type = Table

    def __repr__(self) -> str:
        return f"Lake({self.storage.uri!r})"

    def _repr_html_(self) -> str:
        return notebook.lake_html(self)

    def __dir__(self) -> list[str]:
        return notebook.front_names(self, Context, ["drop", "tables"])

    @property
    def exists(self) -> bool:
        """Whether a lake was created here."""
        return self.catalog.refresh().exists

    def create_table(
        self,
        name: str,
        schema: pa.Schema | str,
        *,
        key: Sequence[str] = (),
        cluster_by: Sequence[str] = (),
        vnodes: int = 16,
        version: str | None = None,
        time: str | None = None,
        if_exists: Literal["error", "open"] = "error",
        **settings: object,
    ) -> Table:
        """A new table. Without a `key` it is append-only. The schema may be a text: `id:int64, name:string!`.

        `cluster_by` are columns that repeat together, `vnodes` a power of two: the parallelism of later work. A
        `version` column keeps an older version of a row from replacing a newer one, whatever the order they arrive
        in. A `time` column is what rows expire by. `settings` are for example `retention="90d"` (see
        `TableSettings`).

        With `if_exists="open"` an existing table is opened. It gets the columns that it lacks; a table with another
        key, type or setting is refused."""
        check_name(name)
        if if_exists not in ("error", "open"):
            raise Invalid(f"if_exists is {if_exists!r}; expected 'error' or 'open'")
        definition = TableDef.declare(
            schema, key=key, cluster_by=cluster_by, vnodes=vnodes, version=version, time=time, settings=settings
        )
        make = self.create if if_exists == "error" else partial(self.open_or_create, settings=settings)
        return cast(Table, make(name, definition))

    def table(self, name: str) -> Table:
        """The table of that name; `NotFound` lists the existing ones."""
        return cast(Table, super().table(name))

    def drop(self, name: str, *, dry_run: bool = False) -> DropReport:
        """Drop a table. Its files stay for an hour at least, until a vacuum; so long `undrop` brings it back."""
        return drop(self, name, dry_run=dry_run)

    def dropped(self) -> list[DroppedTable]:
        """The dropped tables that `undrop` can bring back, the latest first."""
        return list_dropped(self)

    def undrop(self, name: str, *, to: str | None = None, generation: str | None = None) -> Table:
        """Bring a dropped table back, with `to` under another name; of several the last one or that `generation`."""
        return self.table(undrop(self, name, to=to, generation=generation).name)

    def rename(self, name: str, to: str) -> Table:
        """Rename a table; its rows, seqs and files stay."""
        return cast(Table, super().rename(name, to))

    def import_table(
        self,
        name: str,
        source: str | os.PathLike[str],
        *,
        key: Sequence[str] = (),
        cluster_by: Sequence[str] = (),
        vnodes: int = 16,
        version: str | None = None,
        order_by: str | None = None,
        skip: Sequence[str] = (),
        names: Rule | None = None,
        progress: Progress = silent,
    ) -> Table:
        """A new table with the schema and rows of a Delta table, a Parquet file or a folder of them.

        Of several rows with the same key, the one with the highest `order_by` stays; without it they are refused.
        `skip` and `names` are as in `ingest`; the other options take the names of the source too."""
        imports.import_table(
            self,
            name,
            to_address(source),
            key=key,
            cluster_by=cluster_by,
            vnodes=vnodes,
            version=version,
            order_by=order_by,
            skip=skip,
            names=names,
            progress=progress,
        )
        return self.table(name)

    def ingest(
        self,
        name: str,
        files: Paths,
        *,
        key: Sequence[str] | None = None,
        cluster_by: Sequence[str] = (),
        vnodes: int | None = None,
        version: str | None = None,
        rejects: bool = False,
        again: bool = False,
        dry_run: bool = False,
        kind: Kind | None = None,
        names: Rule | None = None,
        skip: Sequence[str] = (),
        missing: Missing | None = None,
        engine: Engine | None = None,
        progress: Progress = silent,
        **text: Unpack[TextArguments],
    ) -> IngestReport:
        """Load JSONL, CSV or Parquet files (paths, folders, patterns, `s3://…`) into a table, each file once.

        With a `key`, empty for an append-only table, a missing table is created from the first file. Bad rows fail the
        call, or with `rejects` are kept aside. `again` loads files that are loaded already. `kind` is their format, if
        names do not show it. `names` is the rule for new columns: `snake`, or `keep`. `skip` are columns to leave out,
        `text` options for text files: see `TextArguments`. `missing` is for files that lack columns. `engine` is
        `auto`, `driver` or `spark`."""
        return ingest(
            self,
            name,
            list_paths(files),
            create=None if key is None else NewTable.of(key, cluster_by, vnodes, version),
            rejects=rejects,
            again=again,
            dry_run=dry_run,
            kind=kind,
            skip=name_list("skip", skip),
            missing=missing,
            text=TextOptions.of(text),
            names=names,
            engine=engine,
            progress=progress,
        )

    def plan_compaction(self, names: Sequence[str] = (), *, full: bool = False) -> list[CompactPlan | BrokenTable]:
        """Which vnodes of these tables, or of all, `compact` would fold now, and why."""
        return plan_tables(self, self._choose_tables(names), full=full)

    def compact(
        self, names: Sequence[str] = (), *, full: bool = False, progress: Progress = silent
    ) -> list[CompactReport | BrokenTable]:
        """Compact these tables, or all; a broken table does not stop the others."""
        return compact_tables(self, self._choose_tables(names), full=full, progress=progress)

    def vacuum(
        self,
        names: Sequence[str] = (),
        *,
        grace: object | None = None,
        keep: object | None = None,
        dry_run: bool = False,
        progress: Progress = silent,
    ) -> LakeVacuum:
        """Vacuum these tables; without names all tables, dropped tables and unfinished files."""
        return vacuum_lake(
            self,
            self._choose_tables(names),
            grace=grace,
            keep=keep,
            with_leftovers=not names,
            dry_run=dry_run,
            progress=progress,
        )

    def backup(
        self,
        to: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
        progress: Progress = silent,
    ) -> BackupReport:
        """Copy the lake to another place, as a separate lake; an older copy there is brought up to date. Its sinks,
        marks and tokens are kept beside it."""
        return backup(self, to, storage_options=storage_options, progress=progress)

    @staticmethod
    def restore_backup(
        source: str | os.PathLike[str],
        to: str | os.PathLike[str],
        *,
        state: str | os.PathLike[str] | None = None,
        progress: Progress = silent,
    ) -> BackupReport:
        """Copy a backup to an empty place, with the identity of the original lake. Its sinks send nothing until
        `adopt_state`."""
        return restore(source, to, state=state, progress=progress)

    def consumer(self, consumer: LogConsumer) -> LogConsumer:
        """Declare a consumer of your own; a tick runs it. Nothing is written before that. See `docs/extending.md`."""
        return declare_consumer(self, consumer)

    def fixpoint(
        self,
        name: str,
        step: Step,
        *,
        inputs: Sequence[str],
        key: Sequence[str],
        columns: pa.Schema | str,
        kind: FixpointKind,
        limit: int | None = None,
        tolerance: float | None = None,
        vnodes: int = 16,
    ) -> Fixpoint:
        """Declare the table `name` as the fixed point of a step, which a tick computes and moves on. Nothing is written
        before that.

        `step(rows, inputs)` gets the rows so far as a Spark DataFrame, none at first, and a DataFrame for each input
        table by name; it returns the next rows, one a key. It is repeated until it changes nothing, or `limit` times.
        `kind` says what a later run may begin with: `monotone`, `contraction` (with a `tolerance`), `rowlocal` or
        `general`. See docs/fixpoints.md."""
        schema = TableDef.declare(columns, key=key, vnodes=vnodes).schema
        method = StepMethod(name, step, schema, tuple(key), tuple(inputs), kind, limit, tolerance, vnodes)
        return declare_fixpoint(self, Fixpoint(self, name, tuple(inputs), method))

    def plan(self, *, only: Sequence[str] | None = None) -> Plan:
        """What a tick, or with `only` a tick of those sinks alone, would do now, from commit files and marks alone."""
        return plan_of(self, only)

    def tick(self, *, only: Sequence[str] | None = None, progress: Progress = silent) -> TickReport:
        """One pass over every sink that is behind, then over the tables that need folding or expiry; with `only`, over
        those sinks alone. Errors are in the report and in the log (`strandline.pipeline`); the report's
        `raise_for_errors` raises them."""
        return runner.tick(self, only, progress=progress)

    def run(
        self,
        *,
        every: object = "10s",
        stop: threading.Event | None = None,
        on_report: Callable[[TickReport | StrandlineError], None] = lambda report: None,
    ) -> None:
        """Tick until `stop` is set, once in `every`. A slow sink does not delay the others. `on_report` is called with
        the report of each tick, or with the error that ended it."""
        runner.run(self, duration.seconds(every, "every"), stop=stop, on_report=on_report)

    def _choose_tables(self, names: Sequence[str]) -> list[str]:
        return [self.catalog.refresh().get(check_name(name)).name for name in dict.fromkeys(names)] or self.tables()

    def tokens(self) -> Tokens:
        """The tokens of the lake's server; `Conflict` when lake and state do not belong together."""
        self.state.epoch.check()
        return Tokens(self.state.database)

    def add_token(self, name: str, role: str) -> str:
        """Make a token; returns its secret, which is not stored."""
        secret = self.tokens().add(name, role)
        # A copy of the state without the token is then recognised as outdated, and not served.
        self.state.epoch.renew()
        return secret

    def revoke_token(self, name: str) -> None:
        """End a token; servers notice within a second or so."""
        self.tokens().revoke(name)
        self.state.epoch.renew()

    def status(self, *, exact: bool = False) -> Status:
        """What the lake holds and how far its folds are behind; `exact` counts rows that statistics only bound."""
        return status_of(self, exact=exact)

    def sql(
        self,
        statement: str,
        *,
        at: At = None,
        timeout_s: float | None = None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> pa.Table:
        """The result of one SELECT over the lake's tables, each at its head when the query starts, or `at` a time; with
        one table also at a seq.

        Ctrl-C ends it. So does `timeout_s`, as `Unavailable`. A result of more than `max_rows` or `max_bytes` is
        `Invalid` as soon as that is known; without `max_bytes`, a quarter of `cache_bytes` is the limit."""
        return query.run(self, statement, at=at, timeout_s=timeout_s, max_rows=max_rows, max_bytes=max_bytes)
