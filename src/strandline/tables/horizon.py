"""The horizon of a table: every read leaves out the rows whose time lies before it.

An expire commit puts a horizon into the log (`txn("expire/<seq>", microseconds)`); horizons only rise. A read at
seq s shows the fold of the log up to s without the rows whose time lies before the horizon at s; a row without a time
stays. So the result depends on the log alone, whether or not compaction has already dropped the rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.types as pt

from strandline.engines.scan import quoted
from strandline.errors import Invalid
from strandline.model.condition import Predicate
from strandline.model.definition import TableDef
from strandline.model.names import backticked
from strandline.storage.snapshot import DataFile

_PREFIX = "expire/"
_EPOCH = dt.datetime(1970, 1, 1)
_DAY_US = 86_400_000_000


def horizon_txn(seq: int) -> str:
    """The transaction of the expire commit at `seq`; its version is the horizon."""
    return f"{_PREFIX}{seq}"


def horizons(txns: Mapping[str, int]) -> dict[int, int]:
    """The horizon of each expire commit by its seq."""
    return {int(app.removeprefix(_PREFIX)): value for app, value in txns.items() if app.startswith(_PREFIX)}


def horizon_at(txns: Mapping[str, int], seq: int) -> int | None:
    """The horizon at a seq; None without one."""
    return max((value for at, value in horizons(txns).items() if at <= seq), default=None)


def micros(moment: dt.datetime) -> int:
    """A moment as microseconds since 1970; a moment without a zone is UTC."""
    try:
        plain = moment if moment.tzinfo is None else moment.astimezone(dt.UTC).replace(tzinfo=None)
    except OverflowError as error:
        raise Invalid(f"{moment.isoformat()} lies outside the years 1 to 9999") from error
    return (plain - _EPOCH) // dt.timedelta(microseconds=1)


def moment(horizon: int) -> dt.datetime:
    try:
        return _EPOCH + dt.timedelta(microseconds=horizon)
    except OverflowError as error:
        raise Invalid(f"no time is {horizon} microseconds after 1970") from error


def expiry(definition: TableDef, horizon: int | None) -> Predicate | None:
    """The condition that a row is not expired; None when no row is."""
    if horizon is None or definition.time is None:
        return None
    kind = definition.schema.field(definition.time).type
    text = _literal_text(horizon, kind)
    duck, spark = _literals(text, kind)
    name = definition.time
    return Predicate(
        f"({quoted(name)} >= {duck} OR {quoted(name)} IS NULL)",
        f"({backticked(name)} >= {spark} OR {backticked(name)} IS NULL)",
        frozenset([name]),
        (),
    )


def expired_before(definition: TableDef, horizon: int | None) -> tuple[str, pa.Scalar] | None:
    """The time column, and the value before which rows are expired; None when no row is."""
    if horizon is None or definition.time is None:
        return None
    kind = definition.schema.field(definition.time).type
    at = dt.datetime.fromisoformat(_literal_text(horizon, kind))
    if pt.is_date(kind):
        return definition.time, pa.scalar(at.date(), kind)
    return definition.time, pa.scalar(at.replace(tzinfo=dt.UTC) if kind.tz else at, kind)


def expired_rows(file: DataFile, definition: TableDef, horizon: int | None) -> int:
    """An estimate of a file's expired rows from its statistics: all, none, or a share as if their times were evenly
    spread."""
    if horizon is None or definition.time is None or not file.rows:
        return 0
    kind = definition.schema.field(definition.time).type
    stats = file.stats
    low, high = (stats.get(side, {}).get(definition.time) for side in ("minValues", "maxValues"))
    if low is None or high is None:
        return 0
    first, last = (micros(dt.datetime.fromisoformat(text)) for text in (low, high))
    at = micros(dt.datetime.fromisoformat(_literal_text(horizon, kind)))
    timed = file.rows - int(stats.get("nullCount", {}).get(definition.time, 0))
    if at <= first:
        return 0
    # The first row is certainly expired.
    return timed if at > last else max(1, timed * (at - first) // (last - first + 1))


def _literal_text(horizon: int, kind: pa.DataType) -> str:
    if pt.is_date(kind):
        # The first day that begins at or after the horizon.
        return moment(-(-horizon // _DAY_US) * _DAY_US).date().isoformat()
    return moment(horizon).isoformat(sep=" ", timespec="microseconds")


def _literals(text: str, kind: pa.DataType) -> tuple[str, str]:
    if pt.is_date(kind):
        return f"DATE '{text}'", f"DATE '{text}'"
    if kind.tz:
        return f"TIMESTAMPTZ '{text}+00'", f"TIMESTAMP_LTZ '{text}+00:00'"
    return f"TIMESTAMP '{text}'", f"TIMESTAMP_NTZ '{text}'"


def horizon_for(retention_s: float, now: dt.datetime) -> dt.datetime:
    """The moment before which rows are past their retention, rounded to a hundredth of it: so the next call soon after
    gives the same moment."""
    step_s = retention_s / 100
    return _EPOCH + dt.timedelta(seconds=(micros(now) / 1e6 - retention_s) // step_s * step_s)
