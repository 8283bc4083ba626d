"""One request to a receiver: how often it is repeated, how long one waits, and which answers end it."""

import datetime as dt
import itertools
import time
from dataclasses import replace
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

import forwarding
import strandline as sl
from forwarding import PRODUCER, any_sink, batch_of, deliver, leaving, some_rows
from hostile import answer, hostile, once
from strandline.sinks.forward.client import Reply, wait_s
from strandline.sinks.http import HttpSink
from support import free_ports, refused

foreign, endpoint = forwarding.foreign, forwarding.endpoint


@pytest.mark.parametrize("asked", ["0", "-3", "soon", "nan", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_lesson_13_a_receiver_that_asks_for_no_wait_is_not_asked_in_a_busy_loop(endpoint, asked):
    batch = batch_of()
    endpoint.control(script=[{"status": 429, "retry_after": asked}] * 100)
    done = deliver(any_sink(endpoint.url, patience="1s"), batch, some_rows(batch))
    assert isinstance(done.error, sl.Unavailable)
    assert done.error.fields == {"url": endpoint.url, "status": 429, "attempts": done.requests}
    times = [request["at_s"] for request in endpoint.requests()]
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert 2 <= len(waits) <= 4
    assert all(wait > 0.1 for wait in waits) and sum(waits) < 2
    assert waits[1] > waits[0]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_busy_receiver_is_asked_again(endpoint, status):
    batch = batch_of()
    endpoint.control(script=[{"status": status}])
    done = deliver(any_sink(endpoint.url), batch, some_rows(batch, count=3))
    assert (done.error, done.retries, done.requests, done.rows) == (None, 1, 2, 3)


def test_waits_follow_the_receiver_or_a_growing_ladder():
    def asked(text, attempts=1):
        return wait_s(Reply(503, {"retry-after": text}), attempts)

    assert asked("7") == 7 and asked("0.5") == 0.5
    assert asked("100000") == 60 and 0.15 <= asked("inf") <= 0.25
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=20)
    assert 15 < asked(format_datetime(soon, usegmt=True)) <= 20
    for attempts, expected in [(1, 0.2), (2, 0.4), (4, 1.6), (7, 10), (500, 10)]:
        for wait in (asked("0", attempts), wait_s(None, attempts)):
            assert 0.75 * expected <= wait <= 1.25 * expected


def test_a_positive_wait_is_honoured_and_one_beyond_the_patience_ends_the_run(endpoint):
    batch = batch_of()
    endpoint.control(script=[{"status": 503, "retry_after": "1"}])
    assert deliver(any_sink(endpoint.url), batch, some_rows(batch, count=1)).error is None
    times = [request["at_s"] for request in endpoint.requests()]
    assert times[1] - times[0] >= 1
    endpoint.control(script=[{"status": 503, "retry_after": "30"}])
    started_s = time.monotonic()
    done = deliver(any_sink(endpoint.url), batch_of(after=7, upto=9), some_rows(batch_of(after=7, upto=9)))
    assert isinstance(done.error, sl.Unavailable) and time.monotonic() - started_s < 1


@pytest.mark.parametrize("fault", [{"cut": True}, {"slow_s": 1}])
def test_a_receiver_that_does_not_answer_is_asked_again(endpoint, fault):
    batch = batch_of()
    endpoint.control(script=[fault])
    rows = some_rows(batch, count=3)
    done = deliver(any_sink(endpoint.url, timeout="0.4s"), batch, rows)
    assert (done.error, done.retries) == (None, 1)
    time.sleep(fault.get("slow_s", 0))
    assert [row["id"] for row in endpoint.rows()] == leaving(rows)


def test_nobody_there_is_unavailable():
    url = f"http://127.0.0.1:{free_ports(1)[0]}/items"
    batch = batch_of()
    # The first wait is shorter whatever the jitter, and with the second one it is longer.
    done = deliver(any_sink(url, patience="0.4s"), batch, some_rows(batch))
    assert isinstance(done.error, sl.Unavailable)
    assert done.error.fields["attempts"] == done.requests == 2
    with refused(sl.Unavailable, url=url):
        HttpSink(url).open(PRODUCER).is_delivered(replace(batch, is_first=True))


def test_a_token_is_read_again_when_it_is_not_accepted(endpoint, tmp_path, monkeypatch):
    batch = batch_of()
    (tmp_path / "token").write_text("old\n")
    monkeypatch.setenv("SINK_TEAM", "data")
    sink = any_sink(endpoint.url, token=f"file:{tmp_path / 'token'}", headers={"X-Team": "env:SINK_TEAM"})
    endpoint.control(token="new")
    lane = sink.open(PRODUCER).lane(replace(batch, cuts={"rows": 5, "bytes": 10000}))
    (tmp_path / "token").write_text("new\n")
    [result] = lane(iter([some_rows(batch)]))
    assert (result.error, result.retries, result.rows) == (None, 1, 20)
    headers = [request["headers"] for request in endpoint.requests()]
    assert [each["authorization"] for each in headers[:3]] == ["Bearer old", "Bearer new", "Bearer new"]
    assert headers[0]["x-team"] == "data"


def test_a_token_that_is_not_accepted_twice_is_invalid(endpoint):
    batch = batch_of()
    endpoint.control(token="right")
    done = deliver(any_sink(endpoint.url, token="wrong"), batch, some_rows(batch))
    assert type(done.error) is sl.Invalid and done.error.fields["status"] == 401
    assert "wrong" not in str(done.error)
    assert done.requests == 2


def test_a_token_that_is_gone_is_invalid(endpoint, tmp_path):
    batch = batch_of()
    (tmp_path / "token").write_text("old")
    sink = any_sink(endpoint.url, token=f"file:{tmp_path / 'token'}")
    lane = sink.open(PRODUCER).lane(replace(batch, cuts={"rows": 5, "bytes": 10000}))
    (tmp_path / "token").unlink()
    endpoint.control(token="new")
    [result] = lane(iter([some_rows(batch)]))
    assert type(result.error) is sl.Invalid and result.error.fields["status"] == 401
    with refused(sl.Invalid):
        sink.open(PRODUCER).is_delivered(batch)


@pytest.mark.parametrize("status", [302, 308, 403, 404, 405, 415, 501])
def test_any_other_answer_stops_the_lane(endpoint, status):
    batch = batch_of()
    endpoint.control(script=[{"status": status, "location": "https://elsewhere/x" if status < 400 else None}])
    done = deliver(any_sink(endpoint.url), batch, some_rows(batch))
    assert type(done.error) is sl.Invalid
    assert done.error.fields["status"] == status
    assert done.error.fields.get("location") == ("https://elsewhere/x" if status < 400 else None)
    assert (done.requests, endpoint.rows(), done.dead) == (1, [], [])


def sink_to(url, **rest):
    return any_sink(url, patience="0s", timeout="2s", **rest)


def sent(sink, count=3):
    batch = batch_of()
    return deliver(sink, batch, some_rows(batch, count=count))


WAITS = [
    "Fri, 31 Dec 9999 23:59:59 GMT", "Fri, 31 Dec 9999 23:59:59 -2359", "Mon, 01 Jan 0001 00:00:00 +2359", "9" * 400,
    "1" + "0" * 5000, "-5", "-1e400", "NaN", "nan", "inf", "-inf", "1e400", "0x10", "١٢", "", " ", "soon", "1,2", "5 5",
    "Fri, 99 Zzz 2026 99:99:99 GMT", "Fri, 31 Dec 99999 23:59:59 GMT", "Fri", "\x00", "1_000", "٣", "+5",
    "1" * 20 + ".5",
]  # fmt: skip


@pytest.mark.parametrize("text", WAITS, ids=range(len(WAITS)))
def test_any_wait_that_is_asked_for_is_a_bounded_one(text):
    assert 0 < wait_s(Reply(503, {"retry-after": text}), 1) <= 60


@pytest.mark.parametrize("text", [text for text in WAITS if text.isprintable() and text.isascii()])
def test_a_receiver_that_asks_for_any_wait_is_unavailable(text):
    with hostile(once(answer("503 Busy", b"", f"Retry-After: {text}"))) as server:
        done = sent(sink_to(server.url))
    assert isinstance(done.error, sl.Unavailable)


@given(st.text(max_size=60))
def test_no_wait_is_out_of_bounds(text):
    assert 0 < wait_s(Reply(429, {"retry-after": text}), 1) <= 60
