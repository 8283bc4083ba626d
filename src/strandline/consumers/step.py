"""A fixed point of a step that a user wrote: PySpark, DataFrames in and out, repeated until it changes nothing.

What a warm start may do depends on the step's kind:

- `monotone`: more input rows only add to the result, or move values in one direction. After additions the result goes
  on from the rows of the last run. Rows that lost an input may hold up one another, and a step does not say which; so
  any other change starts cold.
- `contraction`: the step leads to one result from any rows. Every change starts warm; results agree up to `tolerance`.
- `rowlocal`: a row depends on the rows of its own key alone. The keys of changed rows start anew; the others stay.
- `general`: every change starts cold.

A result that a limit ended is no fixed point, and with a limit the number of rounds counts: then every change starts
cold.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa
import pyarrow.types as pt

from strandline.consumers.feed import size_of
from strandline.consumers.fingerprint import fingerprint_of
from strandline.consumers.fixpoint import Computed, Input, Run
from strandline.engines.choice import DriverLimit
from strandline.engines.scan import spark_type
from strandline.engines.spark import named_jobs, session
from strandline.errors import Invalid, StrandlineError
from strandline.model.change import DELETE, OP, UPSERT
from strandline.model.definition import TableDef
from strandline.model.names import backticked
from strandline.tables.difference import Difference, difference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Kind = Literal["monotone", "contraction", "rowlocal", "general"]
Step = Callable[..., Any]
MOST_ROUNDS = 1_000
"""A step without a limit that still moves rows after so many rounds does not converge."""
CHANGES = DriverLimit(2_000_000, 512 << 20)
"""More changes than this are not looked at on the driver: the run starts cold."""
_SHOWN = 5
_NEAR = 20.0
_log = logging.getLogger("strandline.consumers")


@dataclass(frozen=True)
class StepMethod:
    """The method of a step. It gets the rows of the result, without hidden columns, and a DataFrame for each input by
    name; it returns the next rows."""

    name: str
    step: Step
    columns: pa.Schema
    key: tuple[str, ...]
    inputs: tuple[str, ...]
    kind: Kind
    limit: int | None = None
    tolerance: float | None = None
    vnodes: int = 16

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise Invalid(f"the kind of {self.name!r} is {self.kind!r}; expected one of {', '.join(get_args(Kind))}")
        limit, tolerance = self.limit, self.tolerance
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
            raise Invalid(f"the limit of {self.name!r} is {limit!r}; expected a number of rounds, 1 or more")
        if tolerance is not None and not tolerance >= 0:
            raise Invalid(f"the tolerance of {self.name!r} is {tolerance!r}; expected 0 or more")
        if (tolerance is not None) != (self.kind == "contraction"):
            raise Invalid(
                f"the fixed point {self.name!r} is {self.kind} and has {'a' if tolerance else 'no'} tolerance",
                hint="kind='contraction' needs one, such as tolerance=1e-6; the other kinds have none.",
            )
        if not self.key:
            raise Invalid(f"the fixed point {self.name!r} has no key", hint="Name its columns: key=['node'].")

    @property
    def engine(self) -> str:
        return "spark"

    @cached_property
    def definition(self) -> TableDef:
        return TableDef.declare(self.columns, key=self.key, vnodes=self.vnodes)

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint_of(self.step, self.kind, self.limit, self.tolerance, self.inputs)

    def to_dict(self) -> dict[str, Any]:
        place = f"{self.step.__module__}.{getattr(self.step, '__qualname__', type(self.step).__name__)}"
        return {"step": place, "kind": self.kind, "limit": self.limit, "tolerance": self.tolerance}

    def compute(self, run: Run) -> Computed:
        spark = session(run.kept.spark)
        with named_jobs(spark, f"compute {self.name}"):
            return _Iteration(self, run, spark).outcome()

    def compare(self, run: Run) -> tuple[int, list[dict[str, Any]]]:
        spark = session(run.kept.spark)
        with named_jobs(spark, f"verify {self.name}"):
            return _Iteration(self, run, spark).differing_keys()


class _Iteration:
    """One run of a step."""

    def __init__(self, method: StepMethod, run: Run, spark: SparkSession) -> None:
        self._method = method
        self._run = run
        self._spark = spark
        self._key = list(map(backticked, method.key))

    def outcome(self) -> Computed:
        method, run = self._method, self._run
        old = self._kept_frame()
        why = run.why or self._fixed_reason()
        has_changes = not why and method.kind in ("monotone", "rowlocal")
        changes = {each.table.name: self._find_changes(each) for each in run.inputs} if has_changes else {}
        why = why or self._cold_reason(changes)
        only = self._changed_keys(changes) if not why and method.kind == "rowlocal" else None
        inputs = {each.table.name: self._input_frame(each, only) for each in run.inputs}
        start = old if not why and only is None else old.limit(0)
        new, rounds, is_converged = self._iterate(start, inputs, is_warm=not why and method.kind == "monotone")
        self._check_keys(new)
        if only is not None:
            # The other keys stay as they are.
            old = old.join(only, list(method.key), "left_semi")
        return Computed(rounds, is_converged, is_warm=not why, why=why, frame=self._difference_frame(old, new))

    def differing_keys(self) -> tuple[int, list[dict[str, Any]]]:
        """How many rows differ from those of a cold start, with some keys. Those of a contraction may be apart by some
        times its tolerance: a round that moves little may still be that far from the result."""
        old = self._kept_frame()
        inputs = {each.table.name: self._input_frame(each, None) for each in self._run.inputs}
        new = self._iterate(old.limit(0), inputs, is_warm=False)[0]
        self._check_keys(new)
        gone = old.join(new, list(self._method.key), "left_anti").select(*self._key)
        wrong = self._moved(old, new, factor=_NEAR).select(*self._key).union(gone).localCheckpoint()
        return wrong.count(), [row.asDict() for row in wrong.limit(_SHOWN).collect()]

    def _kept_frame(self) -> DataFrame:
        return self._run.kept.to_spark(columns=self._method.columns.names)

    def _input_frame(self, each: Input, only: DataFrame | None) -> DataFrame:
        frame = each.table.to_spark(at=each.upto)
        return frame if only is None else frame.join(only, list(self._method.key), "left_semi")

    def _find_changes(self, each: Input) -> Difference:
        assert each.after is not None
        schema = each.table.definition.schema
        # Of rows in place of others, the key tells which; a table without a key only gets more.
        names = list(self._method.key if self._method.kind == "rowlocal" else each.table.definition.key)
        names = [name for name in names if name in schema.names] or schema.names[:1]
        if each.after == each.upto:
            empty = pa.schema([schema.field(name) for name in names]).empty_table()
            return Difference(empty, empty)
        return difference(each.table, each.after, each.upto, names)

    def _fixed_reason(self) -> str:
        """Why this run starts cold whatever changed."""
        method = self._method
        if method.limit is not None:
            return "with a limit the number of rounds counts"
        if method.kind == "general":
            return "its kind is general"
        if method.kind == "contraction":
            return ""
        if method.kind == "rowlocal":
            for each in self._run.inputs:
                if lacking := [name for name in method.key if name not in each.table.definition.schema.names]:
                    raise Invalid(
                        f"the fixed point {method.name!r} is rowlocal, and its input {each.table.name!r} has no column"
                        f" {lacking[0]!r}",
                        hint="Each input needs the columns of the key; or use another kind.",
                        column=lacking[0],
                    )
        for each in self._run.inputs:
            assert each.after is not None
            size = size_of(each.table.log.refresh().files(each.after, each.upto))
            if not CHANGES.holds(rows=size.rows, raw_bytes=size.raw_bytes):
                return f"{each.table.name}: so many changes that all rows are read"
        return ""

    def _cold_reason(self, changes: Mapping[str, Difference]) -> str:
        """Why a run that may start warm starts cold after these changes."""
        method = self._method
        if method.kind == "monotone":
            for name, change in changes.items():
                if change.before.num_rows:
                    return f"{name}: {change.before.num_rows:,} rows were deleted or changed"
        return ""

    def _changed_keys(self, changes: Mapping[str, Difference]) -> DataFrame:
        names, columns = list(self._method.key), self._method.columns
        kinds = pa.schema([pa.field(name, columns.field(name).type) for name in names])
        parts = [
            part.select(names).cast(kinds) for change in changes.values() for part in (change.before, change.after)
        ]
        keys = pa.concat_tables(parts).group_by(names, use_threads=False).aggregate([])
        return self._spark.createDataFrame(keys)

    def _iterate(
        self, start: DataFrame, inputs: Mapping[str, DataFrame], *, is_warm: bool
    ) -> tuple[DataFrame, list[int], bool]:
        """The rows after the last round, how many rows each round moved, and whether the last one moved none. Each
        round is computed once and kept, so that a plan never grows."""
        method = self._method
        most = method.limit or MOST_ROUNDS
        rows = start.localCheckpoint()
        count = rows.count()
        rounds: list[int] = []
        for number in range(1, most + 1):
            new = self._apply(rows, inputs).localCheckpoint()
            total = new.count()
            moved = self._moved(rows, new)
            far = moved.count()
            if is_warm and number == 1:
                self._check_monotone(rows, new)
            gone = count + far - total
            rounds.append(far)
            _log.info("%s: round %d moved %d rows", method.name, number, far)
            if far == 0 and total == count:
                return new, rounds[:-1], True
            if number == most and method.limit is None:
                keys = [row.asDict() for row in moved.select(*self._key).limit(_SHOWN).collect()]
                raise Invalid(
                    f"the fixed point {method.name!r} does not converge: round {number} still moved {far or gone} rows,"
                    f" such as {keys}",
                    hint="Nothing was changed. Give it a limit=, or a kind='contraction' with a tolerance=.",
                )
            rows, count = new, total
        return rows, rounds, False

    def _apply(self, rows: DataFrame, inputs: Mapping[str, DataFrame]) -> DataFrame:
        """The next rows, with exactly the declared columns."""
        method = self._method
        try:
            found = method.step(rows, dict(inputs))
        except StrandlineError:
            raise
        except Exception as error:
            raise Invalid(f"the step of {method.name!r} failed: {type(error).__name__}: {error}") from error
        names = getattr(found, "columns", None)
        if names is None:
            raise Invalid(f"the step of {method.name!r} returned {type(found).__name__}; expected a DataFrame")
        if lacking := [name for name in method.columns.names if name not in names]:
            raise Invalid(
                f"the step of {method.name!r} returned no column {lacking[0]!r}; it returned: {', '.join(names)}",
                column=lacking[0],
            )
        return found.selectExpr(
            *(
                f"CAST({backticked(each.name)} AS {spark_type(each.type)}) AS {backticked(each.name)}"
                for each in method.columns
            )
        )

    def _moved(self, rows: DataFrame, new: DataFrame, *, factor: float = 1.0) -> DataFrame:
        """The rows that are new, or differ from those of the round before by more than the tolerance."""
        from pyspark.sql import functions as F

        method = self._method
        if method.tolerance is None:
            return new.exceptAll(rows)
        others = [each for each in method.columns if each.name not in method.key]
        was = rows.select(
            *self._key, *(F.col(backticked(each.name)).alias(f"_was_{at}") for at, each in enumerate(others))
        )
        differs = F.lit(False)
        for at, each in enumerate(others):
            one, other = F.col(backticked(each.name)), F.col(f"_was_{at}")
            if pt.is_floating(each.type):
                near = one.eqNullSafe(other) | F.coalesce(F.abs(one - other) <= factor * method.tolerance, F.lit(False))
            else:
                near = one.eqNullSafe(other)
            differs = differs | ~near
        joined = new.join(was.withColumn("_is_old", F.lit(True)), list(method.key), "left")
        return joined.where(F.col("_is_old").isNull() | differs).select(*map(backticked, method.columns.names))

    def _check_monotone(self, rows: DataFrame, new: DataFrame) -> None:
        """A monotone step keeps the keys that it has."""
        gone = rows.join(new, list(self._method.key), "left_anti").select(*self._key).limit(_SHOWN).collect()
        if gone:
            keys = [row.asDict() for row in gone]
            raise Invalid(
                f"the step of {self._method.name!r} is not monotone: after rows were added, it drops {keys}",
                hint="Nothing was changed. Declare another kind, such as kind='general'.",
                key=str(keys[0]),
            )

    def _check_keys(self, new: DataFrame) -> None:
        from pyspark.sql import functions as F

        twice = new.groupBy(*self._key).agg(F.count("*").alias("_rows")).where("_rows > 1").limit(1).collect()
        if twice:
            key = {name: twice[0][name] for name in self._method.key}
            raise Invalid(
                f"the step of {self._method.name!r} returned {twice[0]['_rows']} rows with the key {key}",
                hint="Nothing was changed. Each key needs one row: aggregate by it.",
                key=str(key),
            )

    def _difference_frame(self, old: DataFrame, new: DataFrame) -> DataFrame:
        """What has to be written: new and changed rows, and deletes of the keys that are gone."""
        from pyspark.sql import functions as F

        names = list(map(backticked, self._method.columns.names))
        upserts = new.exceptAll(old).select(*names, F.lit(UPSERT).alias(OP))
        gone = old.join(new, list(self._method.key), "left_anti").select(*names, F.lit(DELETE).alias(OP))
        return upserts.unionByName(gone)
