"""The digest of a step: what changes it, and what does not."""

from __future__ import annotations

import math

import pytest

from strandline.consumers.fingerprint import fingerprint_of

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
