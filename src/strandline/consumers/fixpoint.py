"""Keep the result of an iterative computation, and move it on when its inputs change.

A fixed point is a table that a step maps to itself. How it is computed is a `Method`: a step of a user's own (see
`step`), or a graph algorithm (see `graph/`). One commit of the result's table has the changed rows, the seqs of the
inputs and the digest of the method. So the rows always belong to those seqs, and a run that finds the same seqs and the
same digest does nothing: no round, no Spark.

Invariant: the rows are those of a cold start on the inputs at the recorded seqs.

After a crash: the commit landed whole, or nothing did and the earlier result is in place.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from strandline.consumers.contract import Receipt
from strandline.consumers.feed import RangeSize, files_of, size_of
from strandline.consumers.fixpoint_facts import Facts, read_facts, with_facts
from strandline.consumers.work import LOG, NOTHING, SNAPSHOT, Work
from strandline.crash import crash_point
from strandline.errors import Conflict, Invalid, NotFound
from strandline.model.change import DELETE, HASH, UPSERT
from strandline.model.definition import TableDef, check_name
from strandline.state.marks import ConsumerState
from strandline.storage.snapshot import PURGE
from strandline.tables.collection import Tables
from strandline.tables.horizon import horizon_at
from strandline.tables.log import prepare
from strandline.tables.log_state import LogState
from strandline.tables.store import TableStore
from strandline.tables.writing import write_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FIXPOINT = "fixpoint"
_log = logging.getLogger("strandline.consumers")


@dataclass(frozen=True)
class Input:
    """An input table at `upto`. `after` is the seq of the last run, None when the change since is not known."""

    table: TableStore
    upto: int
    after: int | None

    @property
    def generation(self) -> str:
        return self.table.entry.generation


@dataclass(frozen=True)
class Run:
    """What a method has to do. `kept` is the table with the rows of the last run; `why` says why the start must be
    cold, which may use neither these rows nor the earlier seqs; "" when a warm start is allowed."""

    inputs: Sequence[Input]
    kept: TableStore
    why: str


@dataclass(frozen=True)
class Computed:
    """What a method did: the rows that are to be written and the keys that are to go, or both as a DataFrame with
    `_op`. `rounds` has the number of rows that each round moved; `why` says why a start was cold."""

    rounds: Sequence[int]
    is_converged: bool
    is_warm: bool
    why: str = ""
    upserts: pa.Table | None = None
    deletes: pa.Table | None = None
    frame: DataFrame | None = None


class Method(Protocol):
    """How a fixed point is computed."""

    @property
    def definition(self) -> TableDef:
        """The table of the result."""
        ...

    @property
    def fingerprint(self) -> str:
        """A digest of everything that the result depends on beside the rows of the inputs."""
        ...

    @property
    def engine(self) -> str:
        """Where it is computed: on the `driver` or on `spark`."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """What is computed, as JSON."""
        ...

    def compute(self, run: Run) -> Computed: ...

    def compare(self, run: Run) -> tuple[int, Sequence[Mapping[str, Any]]]:
        """How many rows differ from those of a cold start, with some of their keys."""
        ...


@dataclass(frozen=True)
class VerifyReport:
    """The rows of a fixed point against a cold start on the inputs of its last run. `wrong` rows differ, are missing or
    should not be there; `keys` are some of theirs."""

    name: str
    inputs: Mapping[str, int]
    rows: int
    wrong: int
    keys: tuple[Mapping[str, Any], ...]

    @property
    def is_right(self) -> bool:
        return not self.wrong

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "is_right": self.is_right}


@dataclass
class Fixpoint:
    """A fixed point as a consumer: its marks are in the commits of its table."""

    tables: Tables = field(repr=False)
    result: str
    inputs: tuple[str, ...]
    method: Method
    kind: str = field(default=FIXPOINT, init=False)

    def __post_init__(self) -> None:
        check_name(self.result)
        if not self.inputs:
            raise Invalid(f"the fixed point {self.result!r} has no input", hint="Name its tables: inputs=['edges'].")
        if self.result in self.inputs:
            raise Invalid(f"the fixed point {self.result!r} cannot be an input of itself", table=self.result)

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.result}"

    @property
    def table(self) -> str:
        return self.inputs[0]

    @property
    def destination(self) -> str:
        return f"table {self.result}"

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"the fixed point {self.result!r}"

    def plan(self, tables: Tables, known: ConsumerState) -> Sequence[Work]:
        """One work when an input, the method or the result's rows changed since the last run."""
        kept, facts = self._find_result(tables)
        why = self._cold_reason(kept, facts)
        inputs = [self._look_at(tables.table(name), facts) for name in self.inputs]
        changed = [each for each in inputs if each.after != each.upto]
        if not changed and not why:
            return ()
        first = (changed or inputs)[0]
        sizes = [_size_of_change(each, is_cold=bool(why)) for each in inputs]
        size = RangeSize(*(sum(each[at] for each in sizes) for at in range(4)))
        source = SNAPSHOT if why or any(each.after is None for each in inputs) else LOG if size.rows else NOTHING
        return [self._make_work(first, source, size, why or "; ".join(filter(None, map(_change_text, changed))))]

    def _make_work(self, first: Input, source: str, size: RangeSize, why: str) -> Work:
        definition = first.table.definition
        lanes = (tuple(range(definition.vnodes)),)
        after = min(first.after or 0, first.upto)
        engine = "driver" if source == NOTHING else self.method.engine
        return Work(first.table, after, first.upto, source, lanes, size, definition.schema_id, engine, why=why)

    def run(self, work: Work) -> Receipt:
        """Bring the result up to date with what the inputs are now."""
        return self.compute()

    def verify(self) -> VerifyReport:
        """Compare the rows with those of a cold start on the inputs at the seqs of the last run."""
        kept, facts = self._find_result(self.tables)
        if kept is None or facts is None:
            raise NotFound(f"{self.title} was never computed", hint=f"Compute it: strandline tick {self.name}")
        if facts.fingerprint != self.method.fingerprint:
            raise Conflict(
                f"{self.title} was computed by another definition than the one of this program",
                hint=f"Compute it: strandline tick {self.name}",
                table=self.result,
            )
        entries = {entry.generation: entry for entry in self.tables.catalog.refresh().tables.values()}
        inputs = [
            Input(self.tables.open_table(entries[generation]), upto, None)
            for generation, upto in facts.inputs.items()
            if generation in entries
        ]
        if len(inputs) < len(facts.inputs):
            raise NotFound(f"an input of {self.title} was dropped: a cold start cannot be computed", table=self.result)
        wrong, keys = self.method.compare(Run(inputs, kept, "verified"))
        rows = kept.to_arrow(columns=list(self.method.definition.key)).num_rows
        return VerifyReport(self.result, inputs_of(facts, self.tables), rows, wrong, tuple(keys))

    def compute(self, *, is_forced: bool = False) -> Receipt:
        """Bring the result up to date, or with `is_forced` compute it anew; an empty receipt when it is."""
        tables = self.tables
        kept, facts = self._find_result(tables)
        if kept is None:
            kept = tables.create(self.result, self.method.definition)
        # What the run begins with: rows that others write from here on are noticed by the commit.
        seen = kept.log.refresh()
        why = self._cold_reason(kept, facts) or ("asked for" if is_forced else "")
        inputs = [self._look_at(tables.table(name), facts) for name in self.inputs]
        if not why and all(each.after == each.upto for each in inputs):
            return Receipt()
        seqs = {each.generation: each.upto for each in inputs}
        order = tuple(seqs)
        if not why and facts is not None and not any(map(_has_changes, inputs)):
            self._commit(kept, None, replace(facts, inputs=seqs, order=order), facts, seen)
            return Receipt(facts={"rounds": 0})
        if not why and any(each.after is None for each in inputs):
            why = "what changed in an input is not known any more"
        done = self.method.compute(Run(inputs, kept, why))
        crash_point("fixpoint.computed")
        made = Facts(
            seqs,
            self.method.to_dict(),
            self.method.fingerprint,
            done.is_converged,
            len(done.rounds),
            "warm" if done.is_warm else "cold",
            order,
        )
        rows = self._commit(kept, done, made, facts, seen)
        _log.info("%s: %s start, %d rounds, %d rows changed", self.title, made.start, made.rounds, rows)
        told = {"rounds": len(done.rounds), "moved": list(done.rounds), "start": made.start, "why": done.why or why}
        return Receipt(rows=rows, upto=inputs[0].upto, facts={**told, "is_converged": done.is_converged})

    def _find_result(self, tables: Tables) -> tuple[TableStore | None, Facts | None]:
        """The table of the result and its facts; `Conflict` when another table has its name."""
        try:
            kept = tables.table(self.result)
        except NotFound:
            return None, None
        log = kept.log.refresh()
        facts = read_facts(log)
        wanted = self.method.definition
        if facts is None and log.head:
            raise Conflict(
                f"there is a table {self.result!r}, which is no fixed point",
                hint="Choose another name, or drop that table.",
                table=self.result,
            )
        found = kept.definition
        if found.version or found.time or kept.merge().horizon is not None:
            raise Conflict(
                f"the table of {self.title} has a version column or a retention, which would hide rows of the result",
                hint=f"Drop the table, then it is computed anew: strandline fixpoint drop {self.result}",
                table=self.result,
            )
        if (found.schema, found.key) != (wanted.schema, wanted.key):
            raise Conflict(
                f"{self.title} has other columns than its table",
                hint=f"Drop the table, then it is computed anew: strandline fixpoint drop {self.result}",
                table=self.result,
            )
        return kept, facts

    def _cold_reason(self, kept: TableStore | None, facts: Facts | None) -> str:
        """Why the next run starts cold; "" when it need not."""
        if kept is None or facts is None:
            return "first run"
        if facts.fingerprint != self.method.fingerprint:
            return "its definition changed"
        if facts.order != tuple(dict.fromkeys(self.tables.table(name).entry.generation for name in self.inputs)):
            return "its inputs are other tables: what changed is not known"
        log = kept.log.refresh()
        if facts.seq < log.trimmed_to or log.files(facts.seq, log.head) or _is_purged_since(log, facts.seq):
            return "its table was changed by someone else"
        return ""

    def _look_at(self, table: TableStore, facts: Facts | None) -> Input:
        log = table.log.refresh()
        after = None if facts is None else facts.inputs.get(table.entry.generation)
        if after is not None and (
            after < log.trimmed_to
            or after < table.oldest
            or after > log.head
            or after < log.redefined
            or _is_purged_since(log, after)
            or horizon_at(log.snapshot.txns, after) != table.merge().horizon
        ):
            after = None
        return Input(table, log.head, after)

    def _commit(self, kept: TableStore, done: Computed | None, made: Facts, was: Facts | None, seen: LogState) -> int:
        """Commit the rows and the facts; returns the number of changed rows."""
        definition, log, amend = kept.definition, kept.log, with_facts(made, was, self.result, seen)
        if done is not None and done.frame is not None:
            commit = write_frame(log, done.frame, definition, None, order_by=None, tokens=(), amend=amend)
            if commit.rows:
                return commit.rows
            done = None
        parts = [] if done is None else [(done.upserts, UPSERT), (done.deletes, DELETE)]
        rows = [prepare(part, definition, op) for part, op in parts if part is not None and part.num_rows]
        files = []
        if rows:
            ordered = pa.concat_tables(rows).sort_by([(name, "ascending") for name in (HASH, *definition.key)])
            files = log.write(ordered, definition)
        return log.commit(files, operation="FIXPOINT", amend=amend).rows


def _is_purged_since(log: Any, seq: int) -> bool:
    return bool(log.snapshot.txns.get(PURGE, 0) > seq)


def _has_changes(each: Input) -> bool:
    return each.after is None or bool(each.table.log.refresh().files(each.after, each.upto))


def _size_of_change(each: Input, *, is_cold: bool) -> tuple[int, int, int, int]:
    definition, log = each.table.definition, each.table.log.refresh()
    if is_cold or each.after is None:
        merge = each.table.merge()
        size = size_of([*((0, file) for file in merge.base_files()), *merge.log_files()])
    else:
        size = size_of(files_of(log, each.after, each.upto, range(definition.vnodes), definition.vnodes))
    return size.commits, size.rows, size.bytes, size.raw_bytes


def _change_text(each: Input) -> str:
    if each.after is None:
        return f"{each.table.name}: what changed is not known"
    size = _size_of_change(each, is_cold=False)
    return f"{each.table.name}: {size[1]:,} changes" if size[1] else ""


def inputs_of(facts: Facts, tables: Tables) -> Mapping[str, int]:
    """The seqs of the inputs by the present names of their tables."""
    names = {entry.generation: entry.name for entry in tables.catalog.refresh().tables.values()}
    return {names.get(generation, generation): seq for generation, seq in facts.inputs.items()}
