"""Where the values of a JSON text begin and end, found without building them.

A few passes of numpy find the brackets, commas and colons outside of strings, and how deep they lie. No library tells
positions: they are needed to cut a large file into objects, to name the line of a bad one, and to keep the text of a
value as it is written.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

QUOTE, BACKSLASH, NEWLINE = b'"'[0], b"\\"[0], b"\n"[0]
OPEN_OBJECT, CLOSE_OBJECT, COMMA, COLON = b"{"[0], b"}"[0], b","[0], b":"[0]

_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
# Tables for `bytes.translate`, which is quicker than an index of numpy.
_IS_SIGN = bytes(sign in b"[]{},:" for sign in range(256))
_IS_SPACE = bytes(sign in b" \t\r\n" for sign in range(256))


@dataclass(frozen=True)
class Signs:
    """The brackets, commas and colons of a text that are not in a string. `depth` is the number of open brackets after
    each. `is_open` says whether the text ends inside of a string."""

    at: Positions
    kind: npt.NDArray[np.uint8]
    depth: Positions
    is_open: bool

    def is_opening(self) -> Mask:
        return _STEPS[self.kind] > 0

    def is_closing(self) -> Mask:
        return _STEPS[self.kind] < 0

    def upto(self, end: int) -> Signs:
        """The signs before this position."""
        count = int(np.searchsorted(self.at, end))
        return Signs(self.at[:count], self.kind[:count], self.depth[:count], self.is_open)

    def depth_before(self, places: Positions) -> Positions:
        """How many brackets are open before these positions."""
        return np.append(0, self.depth)[np.searchsorted(self.at, places)]


def scan(data: bytes | bytearray) -> Signs:
    """The signs of a text that begins outside of a string."""
    text = np.frombuffer(data, np.uint8)
    inside = np.bitwise_xor.accumulate(_find_quotes(text).view(np.uint8)).view(np.bool_)
    at = np.flatnonzero(_mark(data, _IS_SIGN) & ~inside)
    kind = text[at]
    return Signs(at, kind, np.cumsum(_STEPS[kind], dtype=np.int64), bool(len(inside) and inside[-1]))


def is_inside(data: bytes) -> bool:
    """Whether a text ends inside of a string, or of a bracket that it opens."""
    signs = scan(data)
    return signs.is_open or bool(len(signs.depth) and signs.depth[-1] > signs.depth.min(initial=0))


def find_newlines(data: bytes | bytearray) -> Positions:
    return np.flatnonzero(np.frombuffer(data, np.uint8) == NEWLINE)


def count_quotes(data: bytes | bytearray, ends: Positions) -> Positions:
    """The number of quotes before each of these positions; a quote after a backslash does not count."""
    return np.searchsorted(np.flatnonzero(_find_quotes(np.frombuffer(data, np.uint8))), ends)


def find_spaces(data: bytes | bytearray) -> Positions:
    return np.flatnonzero(_mark(data, _IS_SPACE))


def _mark(data: bytes | bytearray, signs: bytes) -> Mask:
    return np.frombuffer(data.translate(signs), np.bool_)


def _find_quotes(text: npt.NDArray[np.uint8]) -> Mask:
    """Where a string begins or ends: the quotes after an even number of backslashes."""
    is_quote: Mask = text == QUOTE
    slashes = np.flatnonzero(text == BACKSLASH)
    if not len(slashes):
        return is_quote
    numbers = np.arange(len(slashes))
    # The number of the first backslash of each one's run.
    first = np.maximum.accumulate(np.where(np.diff(slashes, prepend=-2) != 1, numbers, 0))
    odd = slashes[(numbers - first) % 2 == 0] + 1
    is_quote[odd[odd < len(text)]] = False
    return is_quote
