"""The one order of a table's keys, as bytes.

Every key has an encoding, and keys compare as their encodings do, byte by byte. It is the order of Python, DuckDB and
Spark for all types that a key may have, so a stored position means the same key everywhere. `engines/key_range` has
the conditions in SQL.

A position may end after some of the key's columns. Then it stands behind every key that begins with its values: the
encoding of no value is the beginning of another value's encoding, so the keys at or before the position are those whose
encoding, cut to the position's length, is not above it.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt

from strandline.errors import Invalid

Value = bool | int | str | bytes
_LOWEST = 1 << 63
_END, _ZERO = b"\x00\x01", b"\x00\xff"


def plain_value(value: object, kind: pa.DataType) -> Value:
    """A value of a key as a whole number, a text or bytes: days and microseconds since 1970 for dates and times."""
    if isinstance(value, dt.datetime | dt.date):
        value = pa.scalar(value, kind)
    if isinstance(value, pa.Scalar):
        value = value.value if pt.is_temporal(kind) else value.as_py()
    if not isinstance(value, bool | int | str | bytes):
        raise Invalid(f"a key holds no {type(value).__name__}, but {value!r} was given")
    return value


def encode_key(values: Sequence[object], kinds: Sequence[pa.DataType]) -> bytes:
    """The encoding of a key, or of the first values of one."""
    plain = (plain_value(value, kind) for value, kind in zip(values, kinds[: len(values)], strict=True))
    return b"".join(map(_encode, plain))


def _encode(value: Value) -> bytes:
    if isinstance(value, int):
        return struct.pack(">Q", value + _LOWEST)
    data = value.encode() if isinstance(value, str) else value
    # A zero is marked, so that an end sorts before every longer value.
    return data.replace(b"\x00", _ZERO) + _END


def decode_key(data: bytes, kinds: Sequence[pa.DataType]) -> tuple[Value, ...]:
    """The values of an encoded key or position."""
    found: list[Value] = []
    for kind in kinds:
        if not data:
            break
        if pt.is_string(kind) or pt.is_binary(kind):
            text, data = _split_text(data)
            found.append(text.decode() if pt.is_string(kind) else text)
        else:
            number = struct.unpack(">Q", data[:8])[0] - _LOWEST
            found.append(bool(number) if pt.is_boolean(kind) else number)
            data = data[8:]
    return tuple(found)


def _split_text(data: bytes) -> tuple[bytes, bytes]:
    at = data.index(b"\x00")
    while data[at : at + 2] != _END:
        at = data.index(b"\x00", at + 2)
    return data[:at].replace(_ZERO, b"\x00"), data[at + 2 :]


def is_at_most(one: bytes, position: bytes) -> bool:
    """Whether an encoded key, or another position, lies at or before a position. The empty one lies before all keys."""
    if len(one) < len(position) and position.startswith(one):
        return not one
    return one[: len(position)] <= position if position else not one
