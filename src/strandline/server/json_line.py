"""One line of JSON: an object that remembers a repeated name, and the texts of values that stay JSON."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection
from typing import Any

from strandline.errors import Invalid

_SPACE = re.compile(r"[ \t\r\n]*")
_decode = json.JSONDecoder().raw_decode


class JsonObject(dict[str, Any]):
    """A JSON object that remembers a repeated name."""

    twice: str | None = None

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        if len(self) != len(pairs):
            counts = Counter(name for name, _ in pairs)
            self.twice = next(name for name, count in counts.items() if count > 1)


def quote_values(line: str, names: Collection[str]) -> str:
    """`line`, with the values of these names turned into JSON strings of their text, except null."""
    parts: list[str] = []
    done, at = 0, _skip_sign(line, 0, "{")
    while not line.startswith("}", at):
        if not line.startswith('"', at):
            raise Invalid("a name is missing")
        name, at = _decode(line, at)
        at = _skip_sign(line, at, ":")
        value, end = _decode(line, at)
        if name in names and value is not None:
            parts += [line[done:at], json.dumps(line[at:end], ensure_ascii=False)]
            done = end
        at = _skip_sign(line, end, ",}")
    return "".join([*parts, line[done:]])


def _skip_sign(line: str, at: int, signs: str) -> int:
    """The position after one of `signs` and the space around it; at a '}' the position of that."""
    at = _skip_space(line, at)
    if at >= len(line) or line[at] not in signs:
        raise Invalid(f"expected {signs}")
    return at if line[at] == "}" else _skip_space(line, at + 1)


def _skip_space(line: str, at: int) -> int:
    found = _SPACE.match(line, at)
    return found.end() if found else at
