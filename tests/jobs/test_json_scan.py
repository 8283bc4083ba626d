"""The signs of a JSON text, compared with a reader that walks it sign by sign."""

from __future__ import annotations

import random

import numpy as np

from strandline.jobs.ingest.json_scan import count_quotes, is_inside, scan


def _walk(data: bytes) -> tuple[list[tuple[int, int]], bool]:
    """The places and depths of the signs outside of strings."""
    found, depth, is_open, is_escaped = [], 0, False, False
    for at, sign in enumerate(data):
        if is_escaped and sign in b'"\\':
            is_escaped = False
            continue
        is_escaped = False
        if sign == ord("\\"):
            is_escaped = True
        elif sign == ord('"'):
            is_open = not is_open
        elif not is_open and sign in b"[]{},:":
            depth += (sign in b"[{") - (sign in b"]}")
            found.append((at, depth))
    return found, is_open


def test_signs_are_found_as_by_walking_through_the_text():
    random.seed(7)
    for _ in range(500):
        data = bytes(random.choices(b'{}[],:"\\a \n', k=random.randrange(60)))
        signs = scan(data)
        found, is_open = _walk(data)
        assert list(zip(signs.at.tolist(), signs.depth.tolist(), strict=True)) == found, data
        assert signs.is_open == is_open, data


def test_quotes_after_a_backslash_do_not_count():
    assert count_quotes(rb'"a\"b\\" "', np.array([0, 1, 5, 8, 10])).tolist() == [0, 1, 1, 2, 3]


def test_a_text_that_is_cut_is_inside_of_a_value():
    assert all(map(is_inside, (b'{"a": {"b": 1}', b'{"a": "x')))
    assert not any(map(is_inside, (b'{"a": 1}', b'{"a": 1}]', b"}", b"5", b"")))
