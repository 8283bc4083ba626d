"""Carry out a plan: read the files, commit their rows, and remember the files in the same commits.

Small files share a commit; a large file has its own. After a crash: each commit remembers the files that it has, so a
second run loads the other files. No file is loaded in part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa

from strandline.crash import crash_point
from strandline.errors import Conflict
from strandline.jobs.column_names import ColumnMatcher
from strandline.jobs.ingest.bad_rows import BadRow, keep_row, refuse_row
from strandline.jobs.ingest.dialect import Dialect
from strandline.jobs.ingest.file_reader import FileReader
from strandline.jobs.ingest.loaded_files import Loaded, loads_after
from strandline.jobs.ingest.plan import AGAIN, IngestPlan, Step
from strandline.jobs.ingest.text_options import TextOptions
from strandline.model.change import UPSERT, Commit
from strandline.model.checked_rows import CheckedRows
from strandline.model.name_map import RenamedColumn, Rule
from strandline.progress import Progress
from strandline.storage.snapshot import Draft, Snapshot
from strandline.tables.partial import Missing, count_losses, refuse_losses, write_keeping
from strandline.tables.rejects import KeptRows, RejectedRows, Rejects
from strandline.tables.store import TableStore
from strandline.tables.writing import write

GROUP_BYTES = 64 << 20
GROUP_FILES = 1_000


@dataclass(frozen=True)
class StepResult:
    """What a step loaded."""

    step: Step
    rows: int = 0
    rejects: int = 0
    seq: int | None = None
    dialect: Dialect | None = None


def groups(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """The steps in groups for one commit each."""
    group: list[Step] = []
    size = 0
    for step in steps:
        if group and (size + step.bytes > GROUP_BYTES or len(group) >= GROUP_FILES):
            yield group
            group, size = [], 0
        group.append(step)
        size += step.bytes
    if group:
        yield group


class Loader:
    """Loads the groups of one plan into one table."""

    def __init__(
        self,
        table: TableStore,
        plan: IngestPlan,
        *,
        keep_rejects: bool,
        text: TextOptions,
        names: Rule | None,
        progress: Progress,
        missing: Missing | None = None,
        emptied: Counter[str] | None = None,
    ) -> None:
        self.table = table
        self.emptied = Counter() if emptied is None else emptied
        self._plan = plan
        self.rejects = Rejects(table.log.storage, table.entry)
        self.keep_rejects = keep_rejects
        self.text = text
        self.rule = names
        self.asked_missing = missing
        self._progress = progress
        self._done_bytes = 0
        self._mine: set[str] = set()
        self.renamed: dict[RenamedColumn, None] = {}

    def load(self, steps: Sequence[Step]) -> tuple[Commit, list[StepResult]]:
        """Load some files in one commit: the first one, and those after it that lack the same columns. `Conflict` when
        another process has loaded one of them first."""
        group = _Group(self, steps)
        try:
            commit = group.commit()
        except BaseException:
            group.batch.discard()
            raise
        self.has_loaded(group.loaded, [done.step for done in group.done], group.names.renamed)
        self.emptied.update(group.emptied)
        return commit, [replace(done, seq=commit.seq) for done in group.done]

    def has_loaded(
        self, loaded: Sequence[Loaded], steps: Sequence[Step], renamed: Mapping[RenamedColumn, None]
    ) -> None:
        """Note that a commit has these files."""
        self._mine |= {each.app for each in loaded}
        crash_point("ingest.committed")
        self.forget_rejects(steps)
        self.renamed |= renamed

    def remember_skipped(self) -> None:
        """Remember skipped files by their new place or time, so that the next run does not read them."""
        seen = [step.seen for step in self._plan.steps if step.seen is not None]
        # If another process remembered the same, nothing is lost.
        with suppress(Conflict):
            if seen:
                self.table.log.commit([], operation="INGEST", amend=lambda s, d: self.amend(s, d, seen, []))

    def amend(self, snapshot: Snapshot, draft: Draft, loaded: Sequence[Loaded], replaced: Sequence[Loaded]) -> Draft:
        """The draft, which also remembers these loads. `Conflict` when another process has loaded the same files."""
        theirs = [one for one in loads_after(snapshot.txns, self._plan.version) if one.app not in self._mine]
        signs = {sign for one in loaded for sign in (one.place, one.inode, one.digest) if sign}
        if any({one.place, one.inode, one.digest} & signs for one in theirs):
            raise Conflict("another process has loaded the same files; nothing was loaded twice")
        seq = snapshot.version + 1
        return replace(
            draft,
            txns={**draft.txns, **{one.app: seq for one in loaded}},
            forgotten_txns={one.app: one.seq for one in replaced if one.app in snapshot.txns},
        )

    def missing_in(self, step: Step) -> Missing:
        """What happens with the columns that a file lacks. Writers of JSON leave nulls out, so a name that is missing
        there is null unless the caller says otherwise. In a table without a key no row is replaced."""
        if not self.table.definition.is_keyed:
            return "null"
        return self.asked_missing or ("refuse" if step.source.kind in ("csv", "parquet") else "null")

    def token_of(self, step: Step) -> str:
        """The token of the commit with the refused rows of this file, as it is now."""
        source = step.source
        start = step.prior.size if step.prior else 0
        token = f"ingest/{source.place}/{source.size}/{source.mtime_ns}/{start}"
        # The same file once more: its rows are refused anew.
        return f"{token}/{self._plan.version}" if step.why == AGAIN else token

    def forget_rejects(self, steps: Sequence[Step]) -> None:
        """Remove the rows that earlier loads of these files refused. A file that was loaded whole has no others than
        those of this load."""
        state = self.rejects.state()
        whole = [step for step in steps if step.action == "load"]
        if state is None or not state.by_seq or not whole:
            return
        newest = {step.source.uri: state.snapshot.txns.get(self.token_of(step)) for step in whole}
        with suppress(Conflict):
            self.rejects.remove(lambda kept: _find_older(kept, newest))

    def advance(self, step: Step, size: int) -> None:
        self._progress(self._done_bytes + size, self._plan.bytes, step.source.path)
        if size >= step.bytes:
            self._done_bytes += step.bytes

    def watch_share(self, done: int, whole: int) -> None:
        """Show the share of a Spark job that is done."""
        self._progress(self._plan.bytes * done // whole, self._plan.bytes, "Spark")

    def take_bad_row(self, step: Step, fault: BadRow, batch: RejectedRows, is_kept: bool) -> None:
        """Keep a bad row aside, or fail."""
        if not self.keep_rejects:
            raise refuse_row(step.source, fault, self.table.name)
        if not is_kept:
            batch.add(self.token_of(step), keep_row(step.source, fault))


def _find_older(kept: KeptRows, newest: Mapping[str, int | None]) -> pa.ChunkedArray:
    """Which refused rows are of these files, but not of the commit that has the newest ones."""
    files = kept.rows.column("file").to_pylist()
    return pa.chunked_array([pa.array([file in newest and kept.seq != newest[file] for file in files], pa.bool_())])


class _Group:
    """The files of one commit, while they are read."""

    def __init__(self, loader: Loader, steps: Sequence[Step]) -> None:
        self._loader = loader
        self._steps = steps
        self._definition = loader.table.definition
        self.names = ColumnMatcher(self._definition, loader.rule, steps[0].source.skip)
        self.batch = RejectedRows(loader.rejects)
        self._reader = FileReader(
            self._definition, loader.text, self.names, loader.advance, missing=loader.asked_missing or "null"
        )
        self.done: list[StepResult] = []
        self._missing: Missing = "null"
        # Nobody has said that values may be lost.
        self._is_silent = loader.asked_missing is None and self._definition.is_keyed
        self.emptied: dict[str, int] = {}
        self._found: set[str] | None = None

    @property
    def loaded(self) -> list[Loaded]:
        return self._reader.loaded

    def commit(self) -> Commit:
        table = self._loader.table
        pieces = (piece for piece in self._pieces() if piece.table.num_rows)
        first = next(pieces, None)
        if first is None:
            return table.log.commit([], operation="INGEST", amend=self._amend)
        given = chain([first], pieces)
        if self._missing == "keep":
            return write_keeping(table, self._definition, given, amend=self._amend)
        if self._missing == "refuse":
            where = f"the rows of {self._steps[0].source.uri}"
            rows = refuse_losses(table, self._definition, given, where=where)
        elif self._is_silent:
            rows = count_losses(table, self._definition, given, self.emptied)
        else:
            rows = (piece.table for piece in given)
        return write(table.log, rows, self._definition, UPSERT, tokens=(), spark=table.spark, amend=self._amend)

    def _amend(self, snapshot: Snapshot, draft: Draft) -> Draft:
        replaced = [step.prior for step in self._steps if step.prior is not None]
        amended = self._loader.amend(snapshot, draft, self.loaded, replaced)
        known = self.names.known
        amended = self._loader.table.log.amend_definition(snapshot, amended, lambda d: d.with_names(known))
        self.batch.commit()
        crash_point("ingest.before_commit")
        return amended

    def _pieces(self) -> Iterator[CheckedRows]:
        kept = self._loader.rejects.tokens() if self._loader.keep_rejects else ()
        for at, step in enumerate(self._steps):
            if not self._take_columns(step):
                self._steps = self._steps[:at]
                return
            rows = faults = 0
            is_kept = self._loader.token_of(step) in kept
            for found in self._reader.read(step):
                if isinstance(found, BadRow):
                    faults += 1
                    self._loader.take_bad_row(step, found, self.batch, is_kept)
                else:
                    rows += found.table.num_rows
                    yield found
            self.done.append(StepResult(step, rows, faults, dialect=self._reader.dialects.get(step.source.uri)))
            crash_point("ingest.file_read")

    def _take_columns(self, step: Step) -> bool:
        """Note the columns of a file. False when it must not share the commit: its rows would replace those of a file
        before it that has other columns."""
        missing, whole = self._loader.missing_in(step), set(self._definition.schema.names)
        names = whole if missing == "null" else self._reader.columns_of(step)
        if names == whole:
            missing = "null"
        if self.done:
            return missing == self._missing and names == self._found
        self._missing, self._found = missing, names
        return True
