"""One call of ingest: find the files, find or create the table, plan, load, report.

When two processes load the same files, their commits decide: the later one makes a new plan.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from strandline.crash import crash_point
from strandline.engines.choice import Engine, check_engine, engine_of_call
from strandline.errors import Conflict, Invalid, NotFound, StrandlineError
from strandline.jobs.column_names import ColumnMatcher, check_rule, find_columns
from strandline.jobs.ingest.file_reader import FileReader
from strandline.jobs.ingest.in_tasks import load_in_tasks, takes_tasks
from strandline.jobs.ingest.infer import infer
from strandline.jobs.ingest.last_line import settle
from strandline.jobs.ingest.load import Loader, StepResult, groups
from strandline.jobs.ingest.loaded_files import LoadedFiles
from strandline.jobs.ingest.plan import IngestPlan, Step, plan
from strandline.jobs.ingest.preview import FilePreview, Preview, preview
from strandline.jobs.ingest.source import Kind, Source, find
from strandline.jobs.ingest.text_options import TextOptions, types_option
from strandline.model.change import Commit
from strandline.model.definition import TableDef
from strandline.model.name_map import NameMap, RenamedColumn, Rule
from strandline.model.names import name_list
from strandline.progress import Progress, silent
from strandline.tables.collection import Tables
from strandline.tables.partial import Missing, check_missing
from strandline.tables.store import TableStore

_ATTEMPTS = 10
_SNIFFED = TextOptions()


@dataclass(frozen=True)
class FileReport:
    """What ingest did with one file. `action` is load, continue (only the new part of a file that has grown) or skip.
    `unfinished_bytes` belong to a last line without newline and were not loaded. `dialect` says how a CSV file is
    written."""

    file: str
    action: str
    why: str
    bytes: int
    rows: int
    rejects: int
    seq: int | None
    unfinished_bytes: int = 0
    dialect: dict[str, Any] | None = None


@dataclass(frozen=True)
class IngestReport:
    """What a call of ingest did, or with `is_dry_run` would do: then `preview` has the columns and the first rows.
    `names` are the names in the files that are not those of their columns. `replaced` are rows that are read but not in
    the table, because another row of the same commit has their key. `emptied` are the columns that no row of a JSON
    file has, and how many values of rows with the same keys are null now because of that; tasks of Spark do not count
    them."""

    table: str
    is_created: bool
    is_dry_run: bool
    files: tuple[FileReport, ...]
    seqs: tuple[int, ...]
    seconds: float
    names: tuple[RenamedColumn, ...] = ()
    preview: Preview | None = None
    replaced: int = 0
    emptied: dict[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def rejects(self) -> int:
        return sum(file.rejects for file in self.files)

    def count(self, *actions: str) -> int:
        return sum(file.action in actions for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "files": [asdict(f) for f in self.files], "rows": self.rows, "rejects": self.rejects}


@dataclass(frozen=True)
class NewTable:
    """How to create the table when it does not exist; without a key it is append-only."""

    key: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    vnodes: int | None = None
    version: str | None = None

    @staticmethod
    def of(key: Sequence[str], cluster_by: Sequence[str], vnodes: int | None, version: str | None) -> NewTable:
        """The table that a caller wants, its names checked."""
        return NewTable(name_list("key", key), name_list("cluster_by", cluster_by), vnodes, version)

    def with_columns(self, columns: Sequence[str], names: NameMap) -> NewTable:
        """The same with the names of columns where a name in the file is given."""

        def find(given: Sequence[str]) -> tuple[str, ...]:
            return find_columns(given, columns, names)

        version = None if self.version is None else find([self.version])[0]
        return NewTable(find(self.key), find(self.cluster_by), self.vnodes, version)

    def check(self, name: str, definition: TableDef) -> None:
        """`Invalid` when an existing table is not as asked for."""
        self.with_columns(definition.schema.names, definition.names)._compare(name, definition)

    def _compare(self, name: str, definition: TableDef) -> None:
        for word, asked, found in (
            ("key", self.key, definition.key),
            ("cluster_by", self.cluster_by or definition.cluster_by, definition.cluster_by),
            ("vnodes", self.vnodes or definition.vnodes, definition.vnodes),
            ("version", self.version or definition.version, definition.version),
        ):
            if asked != found:
                shown = ", ".join(map(str, found)) if isinstance(found, tuple) else found
                raise Invalid(
                    f"table {name!r} exists with another {word}: {shown or 'none'}",
                    hint=f"Leave the {word} out to load into the table as it is, or choose another table name.",
                    table=name,
                )

    def define(self, schema: pa.Schema, names: NameMap) -> TableDef:
        """The table, whose key and other columns may be named as in the file."""
        said = self.with_columns(schema.names, names)
        definition = TableDef.declare(
            schema, key=said.key, cluster_by=said.cluster_by, vnodes=said.vnodes or 16, version=said.version
        )
        return definition.with_names(names)


def ingest(
    lake: Tables,
    name: str,
    files: Sequence[str],
    *,
    create: NewTable | None = None,
    rejects: bool = False,
    again: bool = False,
    dry_run: bool = False,
    kind: Kind | None = None,
    text: TextOptions = _SNIFFED,
    skip: Sequence[str] = (),
    names: Rule | None = None,
    missing: Missing | None = None,
    engine: Engine | None = None,
    progress: Progress = silent,
) -> IngestReport:
    """Load files into a table, without the columns in `skip`. `create` makes the table from the first file when it is
    missing. `names` is the rule for the names of columns, `missing` is what happens with the columns that a file
    lacks. `engine` is the one that reads the files."""
    check_rule(names)
    if missing is not None:
        check_missing(missing)
    if engine is not None:
        check_engine(engine)
    if isinstance(files, str):
        raise Invalid(f"files is the text {files!r}; expected a list of paths", file=files)
    started_s = time.monotonic()
    sources = find(files, options_of(lake), kind, text.encoding, skip)
    table = _find_table(lake, name, create)
    is_created = False
    if table is not None:
        definition = table.definition
        text.for_columns(definition.schema.names, definition.names).check_types(definition.schema, name)
    else:
        assert create is not None
        first = settle(sources[0], text.last_line)
        inferred = infer(first, text, is_tolerant=rejects or dry_run, key=create.key, rule=names, others=sources)
        if dry_run:
            definition = create.define(*inferred)
            planned = plan(sources, LoadedFiles({}, 0), is_keyed=bool(create.key), last_line=text.last_line)
            return _look_at_files(name, True, planned, definition, text, names, started_s)
        table, is_created = _create_table(lake, name, create, *inferred)
    planned = _make_plan(table, sources, again, text)
    if dry_run:
        return _look_at_files(name, False, planned, table.definition, text, names, started_s)
    done: dict[str, StepResult] = {}
    renamed: dict[RenamedColumn, None] = {}
    commits: dict[int, int] = {}
    emptied: Counter[str] = Counter()
    attempts = _ATTEMPTS
    with _drop_if_empty(lake, table if is_created else None), engine_of_call(engine):
        while True:
            try:
                loader = Loader(
                    table,
                    planned,
                    keep_rejects=rejects,
                    text=text,
                    names=names,
                    missing=missing,
                    progress=progress,
                    emptied=emptied,
                )
                _load_files(loader, planned, done, renamed, commits, is_created)
                break
            except Conflict:
                sources = find(files, options_of(lake), kind, text.encoding, skip)
                rest = [source for source in sources if not (again and source.uri in done)]
                before, planned = planned, _make_plan(table, rest, again, text)
                # A plan with fewer loads is progress, made by another process. Only a file that is written all the time
                # would never end.
                attempts = _ATTEMPTS if planned.loads < before.loads else attempts - 1
                if not attempts:
                    raise
    in_order = {step.source.uri: done[step.source.uri] for step in planned.steps}
    report = _make_report(name, is_created, False, in_order | done, tuple(renamed), started_s)
    return replace(report, replaced=report.rows - sum(commits.values()), emptied=dict(emptied))


def _look_at_files(
    name: str,
    is_created: bool,
    planned: IngestPlan,
    definition: TableDef,
    text: TextOptions,
    rule: Rule | None,
    started_s: float,
) -> IngestReport:
    """The report of a dry run."""
    matcher = ColumnMatcher(definition, rule, planned.steps[0].source.skip)
    reader = FileReader(definition, text, matcher)
    found = preview([step for step in planned.steps if step.action != "skip"], definition.schema, reader)
    results = {}
    for step in planned.steps:
        file = found.files.get(step.source.uri, FilePreview())
        dialect = reader.dialects.get(step.source.uri)
        results[step.source.uri] = StepResult(step, file.rows, file.rejects, dialect=dialect)
    report = _make_report(name, is_created, True, results, tuple(matcher.renamed), started_s)
    return replace(report, preview=found)


def options_of(lake: Tables) -> Mapping[str, str] | None:
    """The lake's S3 settings. They are also used for files outside of the lake."""
    return getattr(lake.storage, "options", None) or None


def _find_table(lake: Tables, name: str, create: NewTable | None) -> TableStore | None:
    try:
        table = lake.table(name)
    except NotFound as error:
        if create is not None:
            return None
        raise NotFound(
            error.message,
            hint=f"{error.hint}. Create it from the first file: add --key COLUMN, or --no-key for append-only.",
            **error.fields,
        ) from error
    if create is not None:
        create.check(name, table.definition)
    return table


@contextmanager
def _drop_if_empty(lake: Tables, made: TableStore | None) -> Iterator[None]:
    """Drop a table that this call created when its first load fails: its types came from the rows that did not load.
    The table stays when another process has loaded rows into it."""
    try:
        yield
    except BaseException:
        with suppress(StrandlineError):
            if made is not None and not made.head:
                lake.drop_table(made.name)
        raise


def _create_table(
    lake: Tables, name: str, create: NewTable, schema: pa.Schema, names: NameMap
) -> tuple[TableStore, bool]:
    """The table, and whether this call created it."""
    is_mine = True
    try:
        table = lake.create(name, create.define(schema, names))
    except Invalid:
        if name not in lake.tables():
            raise
        # Another process created it first, which is fine if it is the same table.
        table = lake.table(name)
        create.check(name, table.definition)
        is_mine = False
    crash_point("ingest.created")
    return table, is_mine


def _make_plan(table: TableStore, sources: Sequence[Source], again: bool, text: TextOptions) -> IngestPlan:
    snapshot = table.log.refresh().snapshot
    memory = LoadedFiles(snapshot.txns, snapshot.version)
    return plan(sources, memory, is_keyed=table.definition.is_keyed, again=again, last_line=text.last_line)


def _load_files(
    loader: Loader,
    planned: IngestPlan,
    done: dict[str, StepResult],
    renamed: dict[RenamedColumn, None],
    commits: dict[int, int],
    is_created: bool,
) -> None:
    """Load the files of a plan. `commits` gets the rows of each commit."""
    for step in planned.steps:
        if step.action == "skip":
            done.setdefault(step.source.uri, StepResult(step))
    steps = [step for step in planned.steps if step.action != "skip"]
    with _tell_loaded(loader, steps, done, is_created):
        for commit, results in _load_steps(loader, steps):
            commits[commit.seq] = commit.rows
            done |= {each.step.source.uri: each for each in results}
            renamed |= loader.renamed
    loader.remember_skipped()


def _load_steps(loader: Loader, steps: Sequence[Step]) -> Iterator[tuple[Commit, list[StepResult]]]:
    """Load the files, one commit after the other."""
    loaded = load_in_tasks(loader, steps) if takes_tasks(loader, steps) else None
    if loaded is not None:
        yield loaded
        return
    for group in groups(steps):
        while group:
            commit, finished = loader.load(group)
            yield commit, finished
            group = group[len(finished) :]


@contextmanager
def _tell_loaded(
    loader: Loader, steps: Sequence[Step], done: Mapping[str, StepResult], is_created: bool
) -> Iterator[None]:
    try:
        yield
    except Invalid as error:
        raise _add_loaded(error, done, _retypable_columns(loader, steps, error) if is_created else []) from error


def _retypable_columns(loader: Loader, steps: Sequence[Step], error: Invalid) -> list[str]:
    """The columns of a new table whose bad values another type would take. No type helps against a value that text does
    not hold, or that is missing in the key; nor for Parquet, whose values are never turned into text."""
    file = error.fields.get("file")
    if "table" not in error.fields or any(step.source.uri == file and not step.source.is_text for step in steps):
        return []
    fields = loader.table.definition.schema
    return [field.name for field in fields if field.type != pa.string() and field.nullable]


def _add_loaded(error: Invalid, done: Mapping[str, StepResult], columns: Sequence[str]) -> StrandlineError:
    """The error, with a hint that names the files loaded before it, or that these columns may have another type."""
    seqs = [each.seq for each in done.values() if each.seq is not None]
    column = error.fields.get("column")
    if not seqs and column not in columns:
        return error
    if not seqs:
        said = f"The types are those of the first files. To choose another one: {types_option(str(column), 'string')}"
        return type(error)(error.message, hint=f"{error.hint or ''}\n{said}".strip(), **error.fields)
    count = "1 earlier file is" if len(seqs) == 1 else f"{len(seqs)} earlier files are"
    said = f"{count} loaded, up to seq {max(seqs)}, and will not be loaded again."
    return type(error)(error.message, hint=f"{error.hint or ''}\n{said}".strip(), **error.fields)


def _make_report(
    name: str,
    is_created: bool,
    is_dry_run: bool,
    done: Mapping[str, StepResult],
    renamed: tuple[RenamedColumn, ...],
    started_s: float,
) -> IngestReport:
    files = tuple(
        FileReport(
            uri,
            each.step.action,
            each.step.why,
            each.step.bytes,
            each.rows,
            each.rejects,
            each.seq,
            each.step.source.unfinished_bytes,
            None if each.dialect is None else each.dialect.to_dict(),
        )
        for uri, each in done.items()
    )
    seqs = tuple(sorted({each.seq for each in done.values() if each.seq is not None}))
    return IngestReport(name, is_created, is_dry_run, files, seqs, time.monotonic() - started_s, renamed)
