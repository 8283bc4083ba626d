"""JSON as a text: what is one, and which texts of a caller are meant as one.

In rows of dicts a `str` for a JSON column is a value, the JSON string. A `JsonText` is JSON already. In columns (Arrow,
pandas, polars, Spark, Parquet) a string is JSON text, because that is how a table gives its JSON columns back;
`json_values` makes such a column from values.

A long text is only walked, token by token: Python's parser builds objects, and `[],` becomes 80 bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from strandline.errors import Invalid
from strandline.model.types import JSON

_LONG = 1 << 20
DEPTH = 900
_STRING = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"'
_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_TOKEN = re.compile(
    rf"[ \t\r\n]*+(?:(?P<text>{_STRING})|(?P<plain>{_NUMBER}|true|false|null)|(?P<sign>[\[\]{{}},:]))[ \t\r\n]*+"
)


class JsonText(str):
    """A text that is JSON: `{"doc": JsonText('{"a": 1}')}` in a row is the object, not a string."""

    __slots__ = ()


def json_values(values: Iterable[Any]) -> pa.ExtensionArray:
    """Python values as a column for a JSON column: the text "5" is a JSON string, None is null."""
    texts = []
    for row, value in enumerate(values):
        try:
            texts.append(to_text(value))
        except (TypeError, ValueError, RecursionError) as error:
            raise Invalid(f"row {row}: {str(value)[:80]!r} is not JSON ({error})", row=row) from error
    return pa.ExtensionArray.from_storage(JSON, pa.array(texts, pa.string()))


def to_text(value: Any) -> str | None:
    """The JSON text of a value. None, and the JSON text null, are null."""
    if value is None or isinstance(value, JsonText):
        return value
    return json.dumps(value, allow_nan=False)


def check(text: str) -> None:
    """Raise `ValueError` or `RecursionError` for a text that some JSON reader refuses."""
    if len(text) > _LONG or text.count("[") + text.count("{") > DEPTH:
        _walk_tokens(text)
        return
    value = json.loads(text, parse_constant=_refuse_constant)
    if "\\u" in text:
        # Python alone accepts half of a surrogate pair.
        json.dumps(value, ensure_ascii=False).encode()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _walk_tokens(text: str) -> None:
    """Check token after token; `open_` holds the brackets around the current one."""
    open_: list[str] = []
    at, wanted = 0, "value"
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise json.JSONDecodeError("Expecting value", text, at)
        wanted = _expect_after(found, wanted, open_)
        if not wanted:
            raise json.JSONDecodeError("Unexpected token", text, at)
        at = found.end()
    if wanted != "end":
        raise json.JSONDecodeError("The text ends too soon", text, at)


def _expect_after(found: re.Match[str], wanted: str, open_: list[str]) -> str:
    """What must follow this token; empty when the token is not the `wanted` one."""
    sign = found["sign"]
    if sign is None:
        if found["text"] is not None and "\\u" in found["text"] and _has_half_pair(found["text"]):
            return ""
        if wanted in ("name", "name or }"):
            return ":" if found["text"] is not None else ""
        return _expect_after_value(open_) if wanted in ("value", "value or ]") else ""
    if sign in "[{" and wanted in ("value", "value or ]"):
        open_.append(sign)
        if len(open_) > DEPTH:
            raise RecursionError("nested too deeply")
        return "value or ]" if sign == "[" else "name or }"
    if sign == ":" and wanted == ":":
        return "value"
    if sign == "," and wanted == ", or close":
        return "value" if open_[-1] == "[" else "name"
    opening, empty = ("[", "value or ]") if sign == "]" else ("{", "name or }")
    if sign in "]}" and open_[-1:] == [opening] and wanted in (", or close", empty):
        open_.pop()
        return _expect_after_value(open_)
    return ""


def _expect_after_value(open_: list[str]) -> str:
    return ", or close" if open_ else "end"


def _has_half_pair(text: str) -> bool:
    """Whether a JSON string holds half of a surrogate pair; an escaped backslash starts no escape."""
    try:
        json.loads(text).encode()
    except UnicodeEncodeError:
        return True
    return False
