"""Conditions on keys for DuckDB and Spark: at or before a position, or behind it (see `model/key_order`)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt

from strandline.engines.scan import quoted
from strandline.model.condition import Predicate
from strandline.model.key_order import Value
from strandline.model.names import backticked


def at_most(names: Sequence[str], kinds: Sequence[pa.DataType], position: Sequence[Value]) -> Predicate:
    """The condition that a key lies at or before a position."""
    return _compare(names, kinds, position, "<", is_equal=True)


def behind(names: Sequence[str], kinds: Sequence[pa.DataType], position: Sequence[Value]) -> Predicate:
    """The condition that a key lies behind a position."""
    return _compare(names, kinds, position, ">", is_equal=False)


def _compare(
    names: Sequence[str], kinds: Sequence[pa.DataType], position: Sequence[Value], sign: str, *, is_equal: bool
) -> Predicate:
    used = list(zip(names, kinds, position, strict=False))
    texts = []
    for quote, literal in ((quoted, _duck_literal), (backticked, _spark_literal)):
        text = ""
        for name, kind, value in reversed(used):
            column, wanted = quote(name), literal(value, kind)
            if text:
                # The first column alone lets a scan skip files and row groups.
                text = f"({column} {sign}= {wanted} AND ({column} {sign} {wanted} OR {text}))"
            else:
                text = f"{column} {sign}{'=' if is_equal else ''} {wanted}"
        texts.append(text)
    return Predicate(texts[0], texts[1], frozenset(name for name, _, _ in used), ())


def _duck_literal(value: Value, kind: pa.DataType) -> str:
    if isinstance(value, str | bytes):
        return _from_hex(value, "decode(unhex('{}'))", "unhex('{}')")
    if isinstance(value, bool):
        return str(value).lower()
    if pt.is_date(kind):
        return f"(DATE '1970-01-01' + CAST({value} AS INTEGER))"
    if pt.is_timestamp(kind):
        return f"{'make_timestamptz' if kind.tz else 'make_timestamp'}(CAST('{value}' AS BIGINT))"
    return f"CAST('{value}' AS BIGINT)"


def _spark_literal(value: Value, kind: pa.DataType) -> str:
    if isinstance(value, str | bytes):
        return _from_hex(value, "decode(unhex('{}'), 'UTF-8')", "unhex('{}')")
    if isinstance(value, bool):
        return str(value).lower()
    if pt.is_date(kind):
        return f"date_from_unix_date({value})"
    if pt.is_timestamp(kind) and not kind.tz:
        # A cast would go through the session's time zone.
        seconds, micros = divmod(value, 1_000_000)
        days, rest = divmod(seconds, 86_400)
        return f"(TIMESTAMP_NTZ'1970-01-01' + make_dt_interval({days}, 0, 0, {rest}.{micros:06d}))"
    if pt.is_timestamp(kind):
        return f"timestamp_micros(CAST('{value}' AS BIGINT))"
    return f"CAST('{value}' AS BIGINT)"


def _from_hex(value: str | bytes, text: str, data: str) -> str:
    return text.format(value.encode().hex()) if isinstance(value, str) else data.format(value.hex())
