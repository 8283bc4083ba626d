"""Check that a column's type holds a Python value exactly.

Arrow itself accepts more: booleans as numbers, moments as dates, text as lists; and it rounds some values.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from math import isfinite
from numbers import Integral, Real
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from strandline.model.moments import is_whole

_FLOAT32_MAX = 3.4028235677973366e38

# Values of exactly these classes fit.
_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], frozenset[type]], ...] = (
    (pt.is_integer, frozenset({int})),
    (pt.is_float64, frozenset({int, float})),
    (pt.is_string, frozenset({str})),
    (pt.is_binary, frozenset({bytes})),
    (pt.is_boolean, frozenset({bool})),
    (pt.is_date32, frozenset({dt.date})),
)


def first_unfit(values: Sequence[Any], kind: pa.DataType) -> int | None:
    """The index of the first value of a class that `kind` does not hold; Arrow checks ranges."""
    classes = set(map(type, values)) - {type(None)}
    for is_kind, plain in _PLAIN:
        if is_kind(kind) and classes <= plain:
            return None
    return next((at for at, value in enumerate(values) if value is not None and not fits(value, kind)), None)


def fits(value: Any, kind: pa.DataType) -> bool:
    if value is None:
        return True
    if pt.is_integer(kind):
        return isinstance(value, Integral) and not isinstance(value, bool)
    if pt.is_floating(kind):
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        return is_number and (not pt.is_float32(kind) or not isfinite(value) or abs(value) <= _FLOAT32_MAX)
    if pt.is_string(kind):
        return isinstance(value, str)
    if pt.is_binary(kind):
        return isinstance(value, bytes | bytearray | memoryview)
    if pt.is_boolean(kind):
        return isinstance(value, bool | np.bool_)
    if pt.is_date32(kind):
        return isinstance(value, dt.date) and not isinstance(value, dt.datetime)
    if pt.is_timestamp(kind):
        return isinstance(value, dt.datetime) and (value.tzinfo is None) == (kind.tz is None) and is_whole(value)
    if pt.is_decimal(kind):
        return isinstance(value, Decimal) or (isinstance(value, int) and not isinstance(value, bool))
    if pt.is_list(kind):
        return _is_list(value) and all(fits(item, kind.value_type) for item in value)
    if pt.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        return isinstance(value, Mapping) and all(n in fields and fits(v, fields[n]) for n, v in value.items())
    if pt.is_map(kind):
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        return _is_list(pairs) and all(
            _is_list(pair) and len(pair) == 2 and fits(pair[0], kind.key_type) and fits(pair[1], kind.item_type)
            for pair in pairs
        )
    return False


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)
