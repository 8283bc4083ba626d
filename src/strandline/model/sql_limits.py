"""Limits on the size of an SQL text, checked before a parser sees it.

A text can bring a parser down. DuckDB's crashed on 400,000 tables joined by commas, and did not return from an error
inside ten nested WITHs. This module counts tokens only, in time linear in the text's length."""

from __future__ import annotations

import duckdb

from strandline.errors import Invalid
from strandline.model.text import check_text

MOST_CHARACTERS = 1 << 20
MOST_TOKENS = 20_000
MOST_NESTED = 200  # brackets inside each other
# DuckDB parses a WITH right inside a WITH several times; in a wrong query that multiplies with each level.
_MOST_RETRIES = 500_000
_RETRIES = 6


def too_deep(role: str) -> Invalid:
    return Invalid(
        f"{role} is nested too deeply: expressions, subqueries or joins inside each other",
        hint="Split it, or put long lists of values into a table.",
    )


def check_sql_size(role: str, statement: object) -> str:
    """The text; `Invalid` when it is too large for DuckDB's parser."""
    text = check_text(role, statement)
    if not text.strip():
        raise Invalid(f"{role} is empty")
    if len(text) > MOST_CHARACTERS:
        raise Invalid(
            f"{role} has {len(text):,} characters; at most {MOST_CHARACTERS:,} are allowed",
            hint="Put long lists of values into a table and join it.",
        )
    _check_tokens(role, text)
    return text


def _check_tokens(role: str, text: str) -> None:
    starts = [start for start, _ in duckdb.tokenize(text)]
    if len(starts) > MOST_TOKENS:
        raise Invalid(
            f"{role} has {len(starts):,} words and signs; at most {MOST_TOKENS:,} are allowed",
            hint="Put long lists of values into a table and join it.",
        )
    raw = text.encode()
    open_: list[bool] = []
    deepest, last, before = 0, b"", b""
    for start, end in zip(starts, [*starts[1:], len(raw)], strict=True):
        token = raw[start:end].strip()[:12].upper()
        if token in (b"(", b"[", b"{"):
            open_.append(False)
            if len(open_) > MOST_NESTED:
                raise too_deep(role)
        elif token in (b")", b"]", b"}") and open_:
            open_.pop()
        elif token == b"WITH" and last == b"(" and before in (b"AS", b"MATERIALIZED"):
            open_[-1] = True
            deepest = max(deepest, sum(open_))
        before, last = last, token
    if open_:
        raise Invalid(f"{role} is not SQL: a bracket is opened and not closed")
    if deepest and len(starts) * _RETRIES ** (deepest + 1) > _MOST_RETRIES:
        raise Invalid(
            f"{role} begins a WITH right inside of another {deepest} times, with {len(starts):,} words and signs",
            hint="Take the inner names out: WITH a AS (WITH b AS (…) …) is the same as WITH b AS (…), a AS (…).",
        )
