"""The digest of a step: what changes it, and what does not."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import math

import numpy as np
import pyarrow as pa
import pytest

from strandline.consumers.fingerprint import fingerprint_of
from support import python

FACTOR = 2


def helper(rows):
    return rows * FACTOR


def step(rows, inputs):
    """Says what it does."""
    return helper(rows) + inputs["a"]


def make(source, **more):
    found = dict(more)
    exec(source, found)
    return found["step"]


def closing_over(value):
    def step(rows, inputs):
        return rows, value

    return step


def test_the_same_step_has_the_same_digest_wherever_it_stands():
    assert fingerprint_of(step, "general") == fingerprint_of(step, "general")
    assert fingerprint_of(step, "general") != fingerprint_of(step, "monotone")

    def other(rows, inputs):
        # Another name and a comment, and no docstring.
        return helper(rows) + inputs["a"]

    assert fingerprint_of(other) == fingerprint_of(step)


def test_other_code_has_another_digest():
    def other(rows, inputs):
        return helper(rows) - inputs["a"]

    assert fingerprint_of(other) != fingerprint_of(step)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 2), (1, 1.0), (True, 1), ([1], (1,)), ({"a": 1}, {"a": 2}), ("a", b"a"), (math.sin, math.cos), (None, 0)],
)
def test_the_values_that_a_step_closes_over_count(one, other):
    assert fingerprint_of(closing_over(one)) == fingerprint_of(closing_over(one))
    assert fingerprint_of(closing_over(one)) != fingerprint_of(closing_over(other))


def test_equal_sets_and_dicts_have_one_digest():
    assert fingerprint_of(closing_over({"b", "a", "c"})) == fingerprint_of(closing_over({"c", "b", "a"}))
    assert fingerprint_of(closing_over({"a": 1, "b": 2})) == fingerprint_of(closing_over({"b": 2, "a": 1}))


def test_globals_and_the_functions_that_it_calls_count(monkeypatch):
    before = fingerprint_of(step)
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert fingerprint_of(step) != before
    monkeypatch.setitem(globals(), "FACTOR", 2)
    assert fingerprint_of(step) == before
    monkeypatch.setitem(globals(), "helper", lambda rows: rows)
    assert fingerprint_of(step) != before


def test_without_source_the_byte_code_decides():
    one = make("def step(rows, inputs):\n    return [each for each in rows if each > 1]")
    same = make("\n\ndef step(rows, inputs):\n    return [each for each in rows if each > 1]")
    other = make("def step(rows, inputs):\n    return [each for each in rows if each > 2]")
    assert fingerprint_of(one) == fingerprint_of(same) != fingerprint_of(other)


def test_lambdas_and_values_that_hold_themselves_have_a_digest():
    ring: list[object] = []
    ring.append(ring)
    assert fingerprint_of(closing_over(ring)) == fingerprint_of(closing_over(ring))
    assert fingerprint_of(lambda rows, inputs: rows) != fingerprint_of(lambda rows, inputs: inputs)


def test_what_looks_alike_as_a_list_of_texts_differs():
    pairs = [
        ({("a", "b"), ("c", "d")}, {("a", "d"), ("c", "b")}),
        ([[1], 2], [[1, 2]]),
        ({"a": {"b": 1}, "c": 2}, {"a": {"b": 1, "c": 2}}),
        ([1, 1], [1]),
    ]
    for one, other in pairs:
        assert fingerprint_of(closing_over(one)) != fingerprint_of(closing_over(other)), one


def test_partials_wrappers_and_cached_functions_count():
    def base(rows, inputs, factor):
        return rows, factor

    one, other = functools.partial(base, factor=1), functools.partial(base, factor=2)
    assert fingerprint_of(one) == fingerprint_of(functools.partial(base, factor=1)) != fingerprint_of(other)

    def logged(function, more):
        @functools.wraps(function)
        def wrapper(rows, inputs):
            return function(rows, inputs), more

        return wrapper

    assert fingerprint_of(logged(step, 1)) != fingerprint_of(logged(step, 2)) != fingerprint_of(step)
    cached = functools.lru_cache(lambda n: n + 1), functools.lru_cache(lambda n: n + 2)
    assert fingerprint_of(closing_over(cached[0])) != fingerprint_of(closing_over(cached[1]))


def test_objects_and_classes_of_ones_own_count_by_their_code():
    class Adder:
        def __init__(self, n):
            self.n = n

        def __call__(self, rows, inputs):
            return rows + self.n

    class Other:
        def __init__(self, n):
            self.n = n

        def __call__(self, rows, inputs):
            return rows - self.n

    assert fingerprint_of(Adder(1)) == fingerprint_of(Adder(1)) != fingerprint_of(Adder(2))
    assert fingerprint_of(closing_over(Adder)) != fingerprint_of(closing_over(Other))
    Other.__qualname__ = Adder.__qualname__
    assert fingerprint_of(Adder(1)) != fingerprint_of(Other(1))


def test_what_a_module_of_ones_own_holds_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "rules_of_a_test.py").write_text("K = 1\nUNUSED = 1\ndef f(rows):\n    return rows * K\n")
    import rules_of_a_test as rules

    def by_module(rows, inputs):
        return rules.f(rows)

    one = make("def step(rows, inputs):\n    return rules.f(rows)", rules=rules)
    before = fingerprint_of(by_module), fingerprint_of(one)
    monkeypatch.setattr(rules, "UNUSED", 2)
    assert (fingerprint_of(by_module), fingerprint_of(one)) == before
    monkeypatch.setattr(rules, "K", 2)
    assert fingerprint_of(one) != before[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (dt.date(2024, 1, 1), dt.date(2024, 1, 2)),
        (decimal.Decimal("1.0"), decimal.Decimal("1.1")),
        (np.array([1, 2]), np.array([1, 3])),
        (pa.table({"a": [1]}), pa.table({"a": [2]})),
    ],
)
def test_values_of_libraries_count(one, other):
    assert fingerprint_of(closing_over(one)) != fingerprint_of(closing_over(other))


def test_the_digest_is_the_same_in_every_process():
    code = """
from strandline.consumers.fingerprint import fingerprint_of
found = {}
exec("def step(rows, inputs):\\n    return rows in {'a', 'b', 'c'}, {'x', 'y'}", found)
words = {"k", "l", "m"}
def other(rows, inputs):
    return words
print(fingerprint_of(found["step"]), fingerprint_of(other))
"""
    assert len({python(code, PYTHONHASHSEED=str(seed)).stdout for seed in (1, 2, 3)}) == 1
