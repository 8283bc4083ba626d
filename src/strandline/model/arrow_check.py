"""Check Arrow data before it is written: every engine must be able to read each value.

Arrow data from elsewhere may break Arrow's rules: text that is not UTF-8, a decimal with more digits than its type,
offsets outside of their buffer. On such a value DuckDB and Spark fail for its whole file, or read another value. Times
must lie in DuckDB's range: outside of it are its infinities, and times whose cast ends the DuckDB instance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from strandline.errors import Invalid

# From 24 June 5877642 BC to 10 July 5881580, and from 22 December 290309 BC to 10 January 294247.
_DAYS = (-(2**31) + 2, 2**31 - 2)
_MICROS = (-9_223_372_022_400_000_000, 2**63 - 2)

_Finding = tuple[int, str, str] | None
"""The row of a faulty value, its path, and the reason."""


@dataclass(frozen=True)
class Fault:
    """A value that cannot be stored."""

    row: int
    column: str
    path: str
    why: str

    def error(self, offset: int) -> Invalid:
        row = offset + self.row
        return Invalid(f"row {row}, column {self.path!r}: {self.why}", row=row, column=self.column)


def find_invalid(table: pa.Table) -> Fault | None:
    """The first value that breaks Arrow's own rules, in a table of any types. Cheap enough for bulk loads."""
    return _find_fault(table, _find_invalid)


def find_unreadable(table: pa.Table) -> Fault | None:
    """The first value that some engine cannot read, in a valid table of stored types."""
    return _find_fault(
        table, lambda chunk, name: _find_value(chunk, name, _find_out_of_range) if _has_limits(chunk.type) else None
    )


def python_value(value: pa.Scalar) -> object:
    """The Python value of a scalar for a message; a number or a text where Python has none."""
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        kind = value.type
        if _is_text(kind):
            return value.as_buffer().to_pybytes().decode(errors="backslashreplace")
        return value.value if pt.is_temporal(kind) else f"a {kind} that cannot be shown"


def _find_fault(table: pa.Table, look: Callable[[pa.Array, str], _Finding]) -> Fault | None:
    for name, column in zip(table.column_names, table.columns, strict=True):
        start = 0
        for chunk in column.chunks:
            found = look(chunk, name)
            if found is not None:
                row, path, why = found
                return Fault(start + row, name, path, why)
            start += len(chunk)
    return None


def _find_invalid(array: pa.Array, name: str) -> _Finding:
    said = _validation_error(array)
    if said is None:
        return None
    if _has_valid_layout(array):
        # None when the value lies under a null or outside of the slice: nobody reads it there.
        return _find_value(array, name, _find_malformed)
    return 0, name, f"this is not valid Arrow data: {said}"


def _validation_error(array: pa.Array) -> str | None:
    try:
        array.validate(full=True)
        return None
    except (pa.ArrowException, ValueError) as error:
        return str(error).splitlines()[0]


def _has_valid_layout(array: pa.Array) -> bool:
    """Whether lengths, offsets and null counts are right, so that values can be read one by one."""
    try:
        array.validate()
        return _has_valid_offsets(array)
    except (pa.ArrowException, ValueError):
        return False


def _has_valid_offsets(array: pa.Array) -> bool:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _has_valid_offsets(array.storage)
    if pt.is_dictionary(kind):
        array.indices.validate(full=True)
        ends = pc.min_max(array.indices)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        return (low is None or 0 <= low <= high < len(array.dictionary)) and _has_valid_offsets(array.dictionary)
    if pt.is_struct(kind):
        bare = pa.Array.from_buffers(pa.struct([]), len(array), array.buffers()[:1], offset=array.offset)
        is_counted = bare.null_count == array.null_count
        return is_counted and all(_has_valid_offsets(array.field(at)) for at in range(kind.num_fields))
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_map(kind):
        # The same offsets over nulls, which cannot be wrong themselves.
        lists = pa.large_list(pa.null()) if pt.is_large_list(kind) else pa.list_(pa.null())
        bare = _reinterpret(array, lists, [pa.nulls(len(array.values))])
        bare.validate(full=True)
        return bare.null_count == array.null_count and _has_valid_offsets(array.values)
    if pt.is_fixed_size_list(kind):
        return _has_valid_offsets(array.values)
    if _is_text(kind):
        _as_binary(array).validate(full=True)
        return True
    return not pt.is_nested(kind)


def _find_value(array: pa.Array, path: str, test: Callable[[pa.Array], tuple[int, str] | None]) -> _Finding:
    """The first value at any depth that `test` finds; the array's offsets are valid."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _find_value(array.storage, path, test)
    if pt.is_dictionary(kind):
        return _find_value(array.dictionary.take(array.indices), path, test)
    if pt.is_struct(kind):
        # Of the findings in its fields, the one in the first row.
        inner = (
            _find_value(child, f"{path}.{field.name}", test) for field, child in zip(kind, array.flatten(), strict=True)
        )
        return min(filter(None, inner), key=lambda found: found[0], default=None)
    if pt.is_map(kind):
        return _find_value(_reinterpret(array, pa.list_(array.values.type), [array.values]), path, test)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        inside = _find_value(array.flatten(), f"{path}[]", test)
        if inside is None:
            return None
        ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64()))
        return (pc.index(pc.greater(ends, inside[0]), pa.scalar(True)).as_py(), *inside[1:])
    found = test(array)
    return None if found is None else (found[0], path, found[1])


def _find_malformed(array: pa.Array) -> tuple[int, str] | None:
    said = _validation_error(array)
    if said is None:
        return None
    # The check of a plain array's slice covers that slice alone, so halving finds the first value.
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        if _validation_error(array.slice(low, middle - low)) is None:
            low = middle
        else:
            high = middle
    if _is_text(array.type):
        return low, f"the text {_as_binary(array)[low].as_py()[:40]!r} is not UTF-8"
    return low, said


def _find_out_of_range(array: pa.Array) -> tuple[int, str] | None:
    kind = array.type
    limits: tuple[int | Decimal, int | Decimal]
    if pt.is_decimal(kind):
        # Arrow's own check passes the lowest 128-bit number, which has no absolute value.
        limits, unit, numbers = _decimal_limits(kind), "", array
    elif pt.is_date32(kind):
        limits, unit, numbers = _DAYS, "days", array.view(pa.int32())
    elif pt.is_timestamp(kind):
        limits, unit, numbers = _MICROS, "microseconds", array.view(pa.int64())
    else:
        return None
    ends = pc.min_max(numbers)
    for end in (ends["min"], ends["max"]):
        if end.is_valid and not limits[0] <= end.as_py() <= limits[1]:
            why = f"has more digits than {kind}" if not unit else f"{unit} from 1970 are outside of DuckDB's range"
            return pc.index(numbers, end).as_py(), f"{end.as_py()} {why}"
    return None


def _decimal_limits(kind: pa.DataType) -> tuple[Decimal, Decimal]:
    most = Decimal((0, (9,) * kind.precision, -kind.scale))
    return -most, most


def _has_limits(kind: pa.DataType) -> bool:
    if pt.is_nested(kind):
        return any(_has_limits(kind.field(at).type) for at in range(kind.num_fields))
    return bool(pt.is_date32(kind) or pt.is_timestamp(kind) or pt.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    is_plain = pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind)
    return bool(is_plain or kind in (pa.string_view(), pa.binary_view()))


def _as_binary(array: pa.Array) -> pa.Array:
    if array.type in (pa.string_view(), pa.binary_view()):
        return _reinterpret(array, pa.binary_view())
    is_large = pt.is_large_string(array.type) or pt.is_large_binary(array.type)
    return _reinterpret(array, pa.large_binary() if is_large else pa.binary())


def _reinterpret(array: pa.Array, kind: pa.DataType, children: list[pa.Array] | None = None) -> pa.Array:
    """An array of another type over the same buffers."""
    buffers = array.buffers()[: 2 if children else None]
    return pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset, children=children)
