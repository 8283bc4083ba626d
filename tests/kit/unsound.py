"""Arrow arrays that break Arrow's rules, built from raw buffers as a foreign producer could."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def of_numbers(kind: pa.DataType, numbers: Sequence[int], width: int) -> pa.Array:
    """An array of fixed width, whatever the numbers stand for in its type."""
    data = b"".join(number.to_bytes(width, "little", signed=True) for number in numbers)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(data)])


def of_bytes(values: Sequence[bytes], kind: pa.DataType | None = None) -> pa.Array:
    """Text that holds these bytes."""
    kind = kind or pa.string()
    binary = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}[kind]
    raw = pa.array(values, binary)
    return pa.Array.from_buffers(kind, len(raw), raw.buffers())


def with_offsets(offsets: Sequence[int], child: pa.Array | None = None) -> pa.Array:
    """A list, or a text of six letters, with these offsets."""
    data = pa.py_buffer(b"".join(offset.to_bytes(4, "little", signed=True) for offset in offsets))
    count = len(offsets) - 1
    if child is None:
        return pa.Array.from_buffers(pa.string(), count, [None, data, pa.py_buffer(b"abcdef")])
    return pa.Array.from_buffers(pa.list_(child.type), count, [None, data], children=[child])


def nested(values: pa.Array) -> dict[str, tuple[pa.Array, str]]:
    """`values` at every place that a value may have, a row each, and the path to them in a column `v`."""
    count = len(values)
    offsets = pa.array(range(count + 1), pa.int32())
    numbers = pa.array(range(count), pa.int64())
    struct = pa.StructArray.from_arrays([numbers, values], ["n", "x"])
    listed: Any = pa.ListArray.from_arrays(offsets, values)
    return {
        "plain": (values, "v"),
        "struct": (struct, "v.x"),
        "list": (listed, "v[]"),
        "list of structs": (pa.ListArray.from_arrays(offsets, struct), "v[].x"),
        "struct of lists": (pa.StructArray.from_arrays([listed], ["y"]), "v.y[]"),
        "map values": (pa.MapArray.from_arrays(offsets, numbers, values), "v[].value"),
        "map keys": (pa.MapArray.from_arrays(offsets, values, numbers), "v[].key"),
    }
