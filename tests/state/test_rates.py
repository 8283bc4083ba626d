"""Rates by name, and whether a history waits."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

import consuming
from strandline.state.database import Database
from strandline.state.rates import NO_RATE, NONE_SENT, Rate, Rates, Sent
from support import refused

state = consuming.state


@pytest.fixture
def rates(state: Database) -> Rates:
    return Rates(state)


def test_a_consumer_has_no_rate_until_one_is_set(rates: Rates) -> None:
    assert (rates.get("a"), rates.all()) == (NO_RATE, {})
    assert rates.set_rate("a", 10, None) == rates.get("a") == Rate(10, None)
    assert rates.all() == {"a": Rate(10, None)} and rates.get("b") == NO_RATE


def test_a_rate_replaces_the_one_before(rates: Rates) -> None:
    rates.set_rate("a", 10, 20)
    assert rates.set_rate("a", None, 5.5) == rates.get("a") == Rate(None, 5.5)
    assert rates.set_rate("a", None, None) == rates.get("a") == NO_RATE


def test_a_pause_keeps_the_rate_and_another_rate_ends_it(rates: Rates) -> None:
    rates.set_rate("a", 10, 20)
    assert rates.set_stopped("a", True) == rates.get("a") == Rate(10, 20, True)
    assert rates.set_stopped("a", False) == rates.get("a") == Rate(10, 20)
    for zero in ((0, None), (None, 0), (0, 7)):
        assert rates.set_rate("a", *zero) == rates.get("a") == Rate(10, 20, True)
    assert rates.set_rate("a", 30, None) == rates.get("a") == Rate(30, None)
    assert rates.set_stopped("b", True) == rates.get("b") == Rate(is_stopped=True)


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, "10", True])
def test_what_is_no_rate_is_refused_and_changes_nothing(rates: Rates, wrong: object) -> None:
    rates.set_rate("a", 10, None)
    with refused():
        rates.set_rate("a", wrong, None)  # type: ignore[arg-type]
    with refused():
        rates.set_rate("a", None, wrong)  # type: ignore[arg-type]
    with refused():
        rates.set_rate("no name", 1, None)
    assert rates.all() == {"a": Rate(10, None)}


@pytest.mark.parametrize(
    ("rate", "seconds"),
    [
        (NO_RATE, 0.0),
        (Rate(100, None), 5.0),
        (Rate(None, 1000), 2.0),
        (Rate(100, 1000), 5.0),
        (Rate(1000, 100), 20.0),
        (Rate(100, None, True), 5.0),
    ],
)
def test_what_is_sent_takes_as_long_as_the_slower_limit_wants(rate: Rate, seconds: float) -> None:
    assert rate.owed_s(500, 2000) == seconds


def test_another_process_reads_the_rates(state_url: str, rates: Rates) -> None:
    rates.set_rate("a", 10, None)
    with Database(state_url) as again:
        assert Rates(again).all() == {"a": Rate(10, None)}


def test_the_last_batch_is_known_to_the_next_process(state_url: str, rates: Rates) -> None:
    assert rates.last_sent("a") == NONE_SENT and NONE_SENT.free_s(Rate(1, 1)) < time.monotonic()
    began_s = time.monotonic() - 5
    rates.note_sent("a", Sent(100, 2000, 10.0, began_s))
    with Database(state_url) as again:
        found = Rates(again).last_sent("a")
        assert Rates(again).last_sent("b") == NONE_SENT
    assert replace(found, began_s=0) == Sent(100, 2000, 10.0, 0)
    # Databases read their clock once a millisecond or more often.
    assert found.began_s == pytest.approx(began_s, abs=0.5)
    rates.note_sent("a", Sent(1, 2, 3.0, began_s))
    assert rates.last_sent("a").rows == 1


@pytest.mark.parametrize(
    ("rate", "seconds"), [(Rate(10, None), 10.0), (Rate(100, None), 1.0), (Rate(1, None), 10.0), (NO_RATE, 0.0)]
)
def test_a_slower_rate_holds_for_what_is_sent_later(rate: Rate, seconds: float) -> None:
    assert Sent(100, 0, 10.0, 50.0).free_s(rate) == 50.0 + seconds
