"""Forwarding over HTTP: to a foreign receiver in a process of its own, and to one that keeps positions."""

import base64
import datetime as dt
import decimal
import gzip
import itertools
import json
import pickle
import signal
import time
import uuid
from dataclasses import dataclass, field, replace
from email.utils import format_datetime

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import strandline as sl
from foreign_receiver import Endpoint, foreign_receiver
from positions_receiver import positions_receiver
from receiving import asking
from strandline.model.change import RefusedRows
from strandline.model.types import JSON
from strandline.server.app import make_app
from strandline.sinks.contract import Batch, Producer
from strandline.sinks.forward import encode
from strandline.sinks.forward.chunks import Rule
from strandline.sinks.forward.client import Reply, wait_s
from strandline.sinks.http import HttpSink
from support import free_ports, python, refused

COLUMNS = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string())])
PRODUCER = Producer("lake-1", "central", "items", "table-1", "9b1d-1", 7)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    with foreign_receiver(tmp_path_factory.mktemp("foreign")) as address:
        yield address


@pytest.fixture
def endpoint(foreign):
    return Endpoint(foreign, f"/{uuid.uuid4().hex}")


@pytest.fixture(scope="module")
def server():
    with positions_receiver() as running:
        yield running


@pytest.fixture
def receiver(server):
    server.reset()
    return server


def batch_of(vnodes=(0, 1, 2, 3), after=4, upto=7, **rest):
    return Batch(f"{after}-{upto}", tuple(vnodes), after, upto, COLUMNS, ("id",), **rest)


def rows_of(batch, places, withheld=(), name=lambda at: f"name {at}", first_id=0):
    """One row for each (vnode, seq), in that order; those whose ordinal is in `withheld` do not leave."""
    rows = []
    for at, (vnode, seq) in enumerate(sorted(places)):
        op = "withheld" if at in withheld else "delete" if at % 5 == 4 else "upsert"
        told = name(at) if op == "upsert" else None
        rows.append({"_op": op, "_vnode": vnode, "_seq": seq, "id": first_id + at, "name": told})
    return pa.RecordBatch.from_pylist(rows, schema=batch.incoming)


def some_rows(batch, count=20, **rest):
    vnodes, seqs = itertools.cycle(batch.vnodes), itertools.cycle(range(batch.upto, batch.after, -1))
    return rows_of(batch, [(next(vnodes), next(seqs)) for _ in range(count)], **rest)


@dataclass
class Outcome:
    """What the lanes of a batch did, over all their runs."""

    rows: int = 0
    withheld: int = 0
    requests: int = 0
    retries: int = 0
    bytes: int = 0
    dead: list[RefusedRows] = field(default_factory=list)
    error: sl.StrandlineError | None = None
    cuts: list[object] = field(default_factory=list)

    @property
    def dead_ids(self):
        return [row["id"] for each in self.dead for row in pa.ipc.open_stream(each.keys).read_all().to_pylist()]


def deliver(sink, batch, rows, step=7):
    """Run a batch as the cursor does: save what a lane asks for and run it again."""
    done = Outcome()
    delivery = sink.open(PRODUCER)
    try:
        if delivery.is_delivered(batch):
            return done
        while True:
            pieces = (rows.slice(at, step) for at in range(0, rows.num_rows, step))
            [result] = pickle.loads(pickle.dumps(delivery.lane(batch)))(pieces)
            for name in ("rows", "withheld", "requests", "retries", "bytes"):
                setattr(done, name, getattr(done, name) + getattr(result, name))
            done.dead += result.dead
            done.error = result.error
            if result.cuts is None:
                if result.error is None:
                    delivery.finish(batch, [result])
                return done
            done.cuts.append(result.cuts)
            batch = replace(batch, cuts=json.loads(json.dumps(result.cuts)))
    finally:
        delivery.close()


def leaving(rows):
    return [row["id"] for row in rows.to_pylist() if row["_op"] != "withheld"]


def any_sink(url, **rest):
    return HttpSink(url, receiver="any", **{"chunk_rows": 5, "patience": "2s", **rest})


def keys_of(requests):
    return [request["key"] for request in requests]


# --- any receiver ----------------------------------------------------------------------------------------------


def test_rows_arrive_once_and_say_where_they_are_from(endpoint):
    batch = batch_of()
    rows = some_rows(batch, withheld={2, 3})
    done = deliver(any_sink(endpoint.url), batch, rows)
    assert done.error is None and not done.dead and not done.retries
    received = endpoint.rows()
    assert [row["id"] for row in received] == leaving(rows)
    assert list(received[0]) == ["_op", "_vnode", "_seq", "_index", "id", "name"]
    requests = endpoint.requests()
    assert (done.rows, done.withheld, done.requests) == (len(received), 2, len(requests))
    assert done.bytes == sum(request["bytes"] for request in requests)
    assert len(set(keys_of(requests))) == len(requests) == 4
    headers = requests[0]["headers"]
    assert headers["user-agent"] == f"strandline/{sl.__version__}"
    assert headers["content-type"] == "application/x-ndjson"
    assert "strandline-chunk" not in headers


def test_a_batch_that_is_repeated_is_the_same_requests(endpoint):
    batch = batch_of()
    rows = some_rows(batch)
    deliver(any_sink(endpoint.url), batch, rows)
    deliver(any_sink(endpoint.url), replace(batch, is_replay=True), rows, step=3)
    keys = keys_of(endpoint.requests())
    assert keys[:4] == keys[4:]
    assert [row["id"] for row in endpoint.rows()] == leaving(rows)


def test_the_rule_is_asked_to_be_saved_before_anything_is_sent(endpoint):
    batch = batch_of()
    sink = any_sink(endpoint.url)
    [result] = sink.open(PRODUCER).lane(batch)(iter([some_rows(batch)]))
    assert result.cuts == {"rows": 5, "bytes": 4 << 20, "done": None, "dead": []}
    assert (result.requests, endpoint.requests()) == (0, [])


def test_a_saved_rule_wins_over_the_sinks_own_settings(endpoint):
    batch = batch_of()
    rows = some_rows(batch)
    endpoint.control(script=[{}, {"lost": True}])
    first = deliver(any_sink(endpoint.url, patience="0s"), batch, rows)
    assert isinstance(first.error, sl.Unavailable)
    batch = replace(batch, cuts=first.cuts[0], is_replay=True)
    assert deliver(any_sink(endpoint.url, chunk_rows=3, chunk_bytes=100), batch, rows).error is None
    assert [row["id"] for row in endpoint.rows()] == leaving(rows)


def test_nothing_is_sent_when_nothing_leaves(endpoint):
    batch = batch_of()
    rows = some_rows(batch, count=4, withheld={0, 1, 2, 3})
    done = deliver(any_sink(endpoint.url), batch, rows)
    assert (done.error, done.withheld, done.requests) == (None, 4, 0)
    assert endpoint.requests() == []


def test_lesson_1_rows_that_are_not_in_seq_order_all_arrive_after_chunk_2_fails(endpoint):
    batch = batch_of()
    rows = some_rows(batch, count=40)
    seqs = [row["_seq"] for row in rows.to_pylist()]
    assert seqs != sorted(seqs)
    endpoint.control(script=[{}, {"status": 503}])
    first = deliver(any_sink(endpoint.url, patience="0s"), batch, rows)
    assert isinstance(first.error, sl.Unavailable) and 0 < first.rows < 40
    deliver(any_sink(endpoint.url), replace(batch, cuts=first.cuts[0], is_replay=True), rows)
    assert [row["id"] for row in endpoint.rows()] == leaving(rows)


def test_lesson_2_a_lost_acknowledgement_is_repeated_under_the_same_id(endpoint):
    batch = batch_of()
    rows = some_rows(batch)
    endpoint.control(script=[{}, {"lost": True}])
    done = deliver(any_sink(endpoint.url), batch, rows)
    keys = keys_of(endpoint.requests())
    assert (done.error, done.retries, len(keys)) == (None, 1, 5)
    assert keys[1] == keys[2]
    assert [row["id"] for row in endpoint.rows()] == leaving(rows)


@pytest.mark.parametrize("status", [400, 422])
def test_lesson_12_a_refused_chunk_is_a_dead_letter_and_the_lane_goes_on(endpoint, status):
    batch = batch_of()
    rows = some_rows(batch)
    endpoint.control(refuse={"column": "id", "value": 6, "status": status})
    done = deliver(any_sink(endpoint.url), batch, rows)
    assert done.error is None and done.rows == 15
    [dead] = done.dead
    assert (dead.rows, dead.status, dead.reason) == (5, status, "6 is not welcome")
    assert done.dead_ids == [5, 6, 7, 8, 9]
    first = rows.to_pylist()[5]
    assert dead.at[:2] == (first["_vnode"], first["_seq"])
    assert sorted(row["id"] for row in endpoint.rows()) == [at for at in range(20) if at not in done.dead_ids]
    # Found again by a run that knows nothing of this one.
    assert deliver(any_sink(endpoint.url), batch, rows).dead == done.dead
    assert len(endpoint.rows()) == 15
    # By the saved rule it is dead also for a receiver that was put right.
    endpoint.control(refuse=None)
    assert not deliver(any_sink(endpoint.url), replace(batch, cuts=done.cuts[-1], is_replay=True), rows).dead
    assert len(endpoint.rows()) == 15


def test_lesson_12_a_row_that_is_named_is_dead_alone(endpoint):
    batch = batch_of()
    rows = some_rows(batch)
    endpoint.control(refuse={"column": "name", "value": "name 6", "names_row": True})
    done = deliver(any_sink(endpoint.url), batch, rows)
    assert (done.error, done.dead_ids, done.rows) == (None, [6], 19)
    keys = keys_of(endpoint.requests())
    assert len(set(keys)) == len(keys) == 5
    again = deliver(any_sink(endpoint.url), replace(batch, is_replay=True), rows)
    assert again.dead == done.dead
    assert keys_of(endpoint.requests()) == keys * 2
    assert [row["id"] for row in endpoint.rows()] == [at for at in range(20) if at != 6]


def test_lesson_12_what_is_sent_without_a_refused_row_is_sent_so_again_when_the_receiver_is_put_right(endpoint):
    batch = batch_of()
    rows = some_rows(batch)
    endpoint.control(refuse={"column": "name", "value": "name 6", "names_row": True})
    [result] = (
        any_sink(endpoint.url).open(PRODUCER).lane(replace(batch, cuts={"rows": 5, "bytes": 10000}))(iter([rows]))
    )
    assert result.cuts is not None and len(result.dead) == 1
    assert [row["id"] for row in endpoint.rows()] == list(range(5))
    batch = replace(batch, cuts=result.cuts, is_replay=True)
    endpoint.control(script=[{}, {"status": 503}])
    assert isinstance(deliver(any_sink(endpoint.url, patience="0s"), batch, rows).error, sl.Unavailable)
    endpoint.control(refuse=None)
    done = deliver(any_sink(endpoint.url), batch, rows)
    assert (done.error, done.dead) == (None, [])
    assert [row["id"] for row in endpoint.rows()] == [at for at in range(20) if at != 6]


def test_lesson_12_good_rows_among_many_that_are_refused_arrive(endpoint, receiver):
    first = batch_of(after=0, upto=7, is_first=True)
    rows = some_rows(first, count=600, name=lambda at: "bad" if at % 25 == 3 else f"name {at}")
    bad = [row["id"] for row in rows.to_pylist() if row["name"] == "bad"]
    assert len(bad) == 24
    endpoint.control(refuse={"column": "name", "value": "bad", "names_row": True})
    receiver.refuses = lambda row: row["name"] == "bad"
    for sink in (any_sink(endpoint.url, chunk_rows=1000), HttpSink(receiver.url, chunk_rows=1000)):
        done = deliver(sink, first, rows)
        assert (done.error, done.dead_ids, done.rows) == (None, bad, 600 - len(bad))
        assert len(done.cuts) < 30 and done.requests < 40
        there = endpoint.rows() if sink.receiver == "any" else receiver.rows
        assert [row["id"] for row in there] == [at for at in range(600) if at not in bad]


def test_lesson_2_rows_of_a_restored_lake_are_not_taken_for_those_that_had_their_seqs(endpoint):
    batch = batch_of()
    deliver(any_sink(endpoint.url), batch, some_rows(batch))
    deliver(any_sink(endpoint.url), replace(batch, id="after the restore"), some_rows(batch, first_id=100))
    assert [row["id"] for row in endpoint.rows()] == [*range(20), *range(100, 120)]


@pytest.mark.parametrize(("status", "kind"), [(503, sl.Unavailable), (409, sl.Conflict), (422, sl.Invalid)])
def test_a_dead_letter_that_is_sent_again_fails_by_what_the_receiver_says(endpoint, status, kind):
    batch = batch_of()
    rows = some_rows(batch, count=2).drop_columns(["_vnode"])
    delivery = any_sink(endpoint.url, patience="0s").open(PRODUCER)
    endpoint.control(script=[{"status": status, "body": {"error": {"message": "no", "row": 1}}}])
    with pytest.raises(kind) as caught:
        delivery.resend("letter", rows, 7)
    assert type(caught.value) is kind and caught.value.fields["status"] == status
    delivery.resend("letter", rows, 7)
    delivery.resend("letter", rows, 7)
    delivery.close()
    assert [row["id"] for row in endpoint.rows()] == [0, 1]


def test_a_chunk_of_which_nearly_all_rows_are_refused_is_refused_as_a_whole(endpoint):
    batch = batch_of()
    rows = some_rows(batch, count=100)
    endpoint.control(refuse={"column": "_op", "value": "upsert", "names_row": True})
    done = deliver(any_sink(endpoint.url, chunk_rows=1000), batch, rows)
    assert (done.error, done.requests) == (None, 17)
    assert [dead.rows for dead in done.dead] == [1] * 16 + [84]
    assert sorted(done.dead_ids) == list(range(100))


def test_a_row_that_is_named_wrongly_means_all_rows(endpoint):
    batch = batch_of()
    for row in (-1, 5, "0", True, None, 1.0):
        told = {"error": {"message": "no", "row": row}}
        endpoint.control(script=[{"status": 422, "body": told}])
        done = deliver(any_sink(endpoint.url), batch, some_rows(batch, count=5))
        assert [dead.rows for dead in done.dead] == [5]


def test_a_reason_is_the_beginning_of_what_the_receiver_says(endpoint):
    batch = batch_of()
    for text, reason in (("x" * 900, "x" * 499 + "…"), ("", "HTTP status 400"), ("[1]", "[1]")):
        endpoint.control(script=[{"status": 400, "body": text}])
        [dead] = deliver(any_sink(endpoint.url), batch, some_rows(batch, count=1)).dead
        assert dead.reason == reason


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


def test_a_chunk_that_is_too_large_is_cut_smaller_and_the_cut_is_saved(endpoint):
    batch = batch_of()
    rows = some_rows(batch, count=64, withheld={40})
    endpoint.control(max_rows=10)
    done = deliver(any_sink(endpoint.url, chunk_rows=16), batch, rows)
    assert done.error is None and not done.dead
    assert [row["id"] for row in endpoint.rows()] == leaving(rows)
    assert (done.rows, done.withheld) == (63, 1)
    assert len(done.cuts) == 2 and done.cuts[1]["done"] is not None
    requests = endpoint.requests()
    # Found out once a batch, not once a chunk.
    assert [request["status"] for request in requests].count(413) == 1
    before = len(requests)
    again = replace(batch, cuts=done.cuts[-1], is_replay=True)
    assert deliver(any_sink(endpoint.url, chunk_rows=3), again, rows).error is None
    assert keys_of(requests[1:]) == keys_of(endpoint.requests()[before:])
    assert len(endpoint.rows()) == 63


def test_chunks_before_one_that_is_too_large_are_not_sent_again(endpoint):
    batch = batch_of([0])
    rows = rows_of(batch, [(0, 5)] * 40, name=lambda at: "abcdef"[at % 6] * (1 if at < 20 else 3000))
    endpoint.control(max_rows=5)
    done = deliver(any_sink(endpoint.url, chunk_rows=5, chunk_bytes=1 << 20), batch, rows)
    assert done.error is None and len(done.cuts) == 1
    endpoint.control(max_rows=3)
    later = batch_of([0], after=7, upto=8)
    rows = rows_of(later, [(0, 8)] * 40, name=lambda at: "x" * at, first_id=100)
    done = deliver(any_sink(endpoint.url), later, rows)
    assert done.error is None
    assert [row["id"] for row in endpoint.rows()] == [*range(40), *range(100, 140)]


def test_one_row_that_is_too_large_is_dead(endpoint):
    batch = batch_of([0])
    noise = "".join(uuid.uuid4().hex for _ in range(100))
    rows = rows_of(batch, [(0, 5)] * 8, name=lambda at: noise if at == 3 else "x")
    endpoint.control(max_bytes=1000)
    done = deliver(any_sink(endpoint.url, chunk_rows=100), batch, rows)
    assert (done.error, done.dead_ids, done.dead[0].status) == (None, [3], 413)
    assert [row["id"] for row in endpoint.rows()] == [0, 1, 2, 4, 5, 6, 7]


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


def test_a_conflict_of_any_receiver_stops_the_lane(endpoint):
    batch = batch_of()
    endpoint.control(script=[{"status": 409}])
    done = deliver(any_sink(endpoint.url), batch, some_rows(batch))
    assert type(done.error) is sl.Conflict and done.error.fields["consumer"] == "central"


def test_what_fails_in_reading_the_rows_is_returned(endpoint):
    batch = replace(batch_of(), cuts={"rows": 5, "bytes": 10000})

    def failing(error):
        yield some_rows(batch, count=12)
        raise error

    for error, kind in [
        (sl.Corrupt("a file is missing"), sl.Corrupt),
        (OSError("gone"), sl.Unavailable),
        (KeyError("x"), sl.Internal),
    ]:
        [result] = any_sink(endpoint.url).open(PRODUCER).lane(batch)(failing(error))
        assert type(result.error) is kind and result.rows == 10


def test_any_receiver_cannot_say_what_it_has(endpoint):
    delivery = any_sink(endpoint.url).open(PRODUCER)
    assert delivery.position(4) is None
    assert not delivery.is_delivered(replace(batch_of(), is_first=True, is_replay=True))
    assert endpoint.requests() == []


def test_arrow_goes_to_any_receiver_too(endpoint):
    batch = batch_of()
    rows = some_rows(batch)
    deliver(any_sink(endpoint.url, format="arrow"), batch, rows)
    assert [row["id"] for row in endpoint.rows()] == leaving(rows)
    assert endpoint.requests()[0]["headers"]["content-type"] == "application/vnd.apache.arrow.stream"


fault = st.sampled_from([{}, {}, {"lost": True}, {"cut": True}, {"status": 500}, {"status": 503}])


@settings(max_examples=30)
@given(
    places=st.lists(st.tuples(st.integers(0, 3), st.integers(5, 7)), max_size=30),
    withheld=st.sets(st.integers(0, 30)),
    script=st.lists(fault, max_size=6),
    limit=st.integers(1, 10) | st.just(100),
    refuse=st.none() | st.fixed_dictionaries({"value": st.integers(0, 30), "names_row": st.booleans()}),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    forgets=st.lists(st.booleans(), max_size=4),
)
def test_any_receiver_has_each_row_once_whatever_fails(
    foreign, places, withheld, script, limit, refuse, sizes, forgets
):
    """A run of which the result is forgotten is one that was killed before anything of it was saved."""
    endpoint = Endpoint(foreign, f"/{uuid.uuid4().hex}")
    endpoint.control(script=script, max_rows=limit, refuse={"column": "id", **refuse} if refuse else None)
    batch = batch_of()
    rows = rows_of(batch, places, withheld)
    dead, size = [], itertools.cycle(sizes)
    for forgotten in itertools.chain(forgets, itertools.repeat(False)):
        lane = any_sink(endpoint.url, chunk_rows=next(size), patience="0s").open(PRODUCER).lane(batch)
        [result] = lane(iter([rows]))
        if forgotten:
            continue
        dead += result.dead
        if result.cuts is not None:
            batch = replace(batch, cuts=result.cuts)
        elif result.error is None:
            break
        else:
            assert isinstance(result.error, sl.Unavailable), result.error
    here = [(row["_vnode"], row["_seq"], row["_index"], row["id"]) for row in endpoint.rows()]
    assert sorted(here) == here and len(set(here)) == len(here)
    # A run that ends in an error has told of its dead rows, and the next one tells again.
    gone = set(Outcome(dead=dead).dead_ids)
    assert sorted([*(row[3] for row in here), *gone]) == leaving(rows)


# --- a receiver that keeps positions ---------------------------------------------------------------------------


def positions_at(receiver):
    return receiver.positions[PRODUCER.sink]


def test_rows_and_positions_arrive(receiver):
    batch = batch_of(after=0, upto=7, is_first=True)
    rows = some_rows(batch, withheld={3})
    done = deliver(HttpSink(receiver.url, chunk_rows=6, token="t"), batch, rows)
    assert done.error is None and not done.cuts
    assert [row["id"] for row in receiver.rows] == leaving(rows)
    assert (done.rows, done.withheld) == (19, 1)
    assert positions_at(receiver) == dict.fromkeys(range(4), (8, 0))
    chunk = receiver.chunks[0]
    assert (chunk["version"], chunk["sink"], chunk["life"], chunk["is_first"]) == (1, "lake-1.central", 7, True)
    assert chunk["source"] == {
        "lake": "lake-1", "consumer": "central", "table": "items", "table_generation": "table-1",
    }  # fmt: skip
    assert chunk["headers"]["Content-Type"] == "application/vnd.apache.arrow.stream"
    assert chunk["headers"]["Authorization"] == "Bearer t"
    assert len(set(receiver.keys)) == len(receiver.keys)
    later = batch_of(after=7, upto=9)
    assert deliver(HttpSink(receiver.url), later, some_rows(later)).error is None
    assert positions_at(receiver) == dict.fromkeys(range(4), (10, 0))


@pytest.mark.parametrize("count", [0, 3])
def test_a_range_of_which_nothing_leaves_moves_the_positions(receiver, count):
    batch = batch_of(after=0, upto=7, is_first=True)
    rows = some_rows(batch, count=count, withheld=range(count))
    done = deliver(HttpSink(receiver.url), batch, rows)
    assert (done.error, done.requests, done.withheld) == (None, 1, count)
    assert positions_at(receiver) == dict.fromkeys(range(4), (8, 0))
    assert receiver.rows == []


def test_a_first_load_has_one_seq(receiver):
    batch = batch_of(after=0, upto=7, is_first=True)
    rows = rows_of(batch, [(at % 4, 7) for at in range(40)])
    assert deliver(HttpSink(receiver.url, chunk_rows=6), batch, rows).error is None
    assert [row["id"] for row in receiver.rows] == leaving(rows)
    assert positions_at(receiver) == dict.fromkeys(range(4), (8, 0))


def test_lesson_2_a_lost_acknowledgement_counts_once(receiver):
    batch = batch_of(after=0, is_first=True)
    rows = some_rows(batch)
    receiver.faults = ["lost", 503]
    done = deliver(HttpSink(receiver.url, chunk_rows=6, patience="2s"), batch, rows)
    assert (done.error, done.retries) == (None, 2)
    assert receiver.keys[0] == receiver.keys[1]
    assert [row["id"] for row in receiver.rows] == leaving(rows)


def test_a_repeated_batch_is_skipped_however_it_is_cut(receiver):
    batch = batch_of(after=0, is_first=True)
    rows = some_rows(batch)
    deliver(HttpSink(receiver.url, chunk_rows=6), batch, rows)
    [result] = HttpSink(receiver.url, chunk_rows=4).open(PRODUCER).lane(batch)(iter([rows]))
    assert result.error is None
    assert [row["id"] for row in receiver.rows] == leaving(rows)


def is_delivered(receiver, batch):
    """What a delivery that is opened now says."""
    delivery = HttpSink(receiver.url).open(PRODUCER)
    try:
        return delivery.is_delivered(batch)
    finally:
        delivery.close()


def test_a_batch_that_is_there_is_delivered(receiver):
    batch = batch_of(after=0, upto=7, is_first=True)
    assert not is_delivered(receiver, batch)
    deliver(HttpSink(receiver.url), batch, some_rows(batch))
    assert is_delivered(receiver, batch)
    later = batch_of(after=7, upto=9, is_replay=True)
    assert not is_delivered(receiver, later)
    positions_at(receiver).update({0: (10, 0), 1: (8, 0), 2: (10, 0), 3: (9, 500)})
    assert not is_delivered(receiver, later)
    positions_at(receiver).update({1: (10, 0), 3: (10, 0)})
    assert is_delivered(receiver, later)
    # Nothing behind the batch was ever sent.
    positions_at(receiver)[1] = (12, 4)
    with refused(sl.Conflict, found=12):
        is_delivered(receiver, later)


def test_a_receiver_is_asked_once_for_all_batches_of_a_delivery(receiver):
    batch = batch_of(after=0, upto=7, is_first=True)
    deliver(HttpSink(receiver.url), batch, some_rows(batch))
    delivery = HttpSink(receiver.url).open(PRODUCER)
    asked = receiver.questions
    for _ in range(3):
        assert not delivery.is_delivered(batch_of(after=7, upto=9))
    assert receiver.questions == asked + 1
    delivery.close()


def test_a_receiver_that_is_ahead_of_a_batch_that_is_new_is_a_conflict(receiver):
    batch = batch_of(after=0, upto=7, is_first=True)
    deliver(HttpSink(receiver.url), batch, some_rows(batch))
    positions_at(receiver)[3] = (9, 5)
    with pytest.raises(sl.Conflict) as caught:
        is_delivered(receiver, batch_of(after=7, upto=9))
    assert (caught.value.fields["expected"], caught.value.fields["found"]) == (7, 9)
    assert not is_delivered(receiver, batch_of(after=7, upto=9, is_replay=True))


def test_positions_are_the_last_complete_seqs(receiver):
    delivery = HttpSink(receiver.url).open(PRODUCER)
    assert delivery.position(4) == {}
    receiver.lives[PRODUCER.sink] = PRODUCER.life
    receiver.positions[PRODUCER.sink] = {0: (8, 0), 1: (9, 0), 2: (0, 0), 9: (8, 3)}
    assert delivery.position(4) == {0: 7, 1: 8, 2: 0}
    delivery.close()


def test_a_position_inside_a_seq_says_where_the_rest_of_its_batch_begins(receiver):
    delivery = HttpSink(receiver.url, chunk_rows=2).open(PRODUCER)
    receiver.lives[PRODUCER.sink] = PRODUCER.life
    receiver.positions[PRODUCER.sink] = {0: (8, 0), 1: (8, 3), 9: (8, 3)}
    assert delivery.position(4) == {0: 7, 1: 7}
    assert delivery.inside(4) == {1: (8, 3)}
    assert Rule.from_dict(delivery.rest((0, 1, 2), 4, 7)) == Rule(2, 4 << 20, (2, 5, 0))
    assert Rule.from_dict(delivery.rest((1, 2), 4, 8)).done == (1, 8, 3)
    assert Rule.from_dict(delivery.rest((2, 3), 0, 8)).done == (2, 1, 0)
    delivery.close()


def test_a_column_that_the_receiver_lacks_stops_the_lane(receiver):
    batch = batch_of(after=0, upto=7, is_first=True)
    receiver.faults = [412]
    done = deliver(HttpSink(receiver.url, format="ndjson"), batch, some_rows(batch))
    assert type(done.error) is sl.Invalid and done.error.fields["status"] == 412
    assert (done.dead, receiver.rows) == ([], [])
    assert deliver(HttpSink(receiver.url), replace(batch, is_replay=True), some_rows(batch)).rows == 20


@pytest.mark.parametrize("evolve", [True, False])
def test_a_strandline_receiver_refuses_no_rows_for_a_column_that_it_may_not_add(tmp_path, evolve):
    lake = sl.Lake(tmp_path / "there")
    table = lake.create_table("items", pa.schema([pa.field("id", pa.int64(), False)]), key=["id"], vnodes=4)
    chunk = {"version": 1, "sink": "s", "life": 1, "is_first": True, "ranges": [[0, 0, 5, 0, 6, 0]]}
    rows = pa.RecordBatch.from_pylist([{"_op": "upsert", "_vnode": 0, "_seq": 5, "_index": 0, "id": 1, "name": "n"}])
    data, headers = encode.encode(rows, "ndjson" if evolve else "arrow")
    with asking(make_app(lake, evolve=evolve)) as client:

        def post():
            told = {**headers, "Strandline-Chunk": json.dumps(chunk)}
            return client.post("/ingest/items", content=data, headers=told)

        answer = post()
        error = answer.json()["error"]
        assert (answer.status_code, error["kind"], error["column"]) == (412, "Conflict", "name")
        assert "row" not in error
        table.evolve(pa.schema([("name", pa.string())]))
        assert post().json()["rows"] == 1
        wrong = pa.RecordBatch.from_pylist([{"_op": "upsert", "_vnode": 0, "_seq": 6, "_index": 0, "id": "x"}])
        data, headers = encode.encode(wrong, "ndjson")
        chunk["ranges"] = [[0, 0, 6, 0, 7, 0]]
        assert post().status_code == 422


@pytest.mark.parametrize("page", [None, "<html>sign in</html>", "[]", '{"positions": "many"}'])
def test_what_is_no_strandline_receiver_is_found_out_before_the_first_batch(endpoint, page):
    endpoint.control(page=page)
    delivery = HttpSink(endpoint.url).open(PRODUCER)
    with refused(sl.Invalid, url=endpoint.url, status=200 if page else 404) as caught:
        delivery.is_delivered(batch_of(is_first=True))
    assert "receiver='any'" in caught.value.hint
    assert endpoint.requests() == []


def test_a_receiver_that_lost_rows_is_a_conflict(receiver):
    batch = batch_of(after=0, upto=7, is_first=True)
    deliver(HttpSink(receiver.url), batch, some_rows(batch))
    later = batch_of(after=7, upto=9)
    positions_at(receiver)[2] = (5, 3)
    done = deliver(HttpSink(receiver.url), later, some_rows(later))
    assert type(done.error) is sl.Conflict
    told = {"consumer": "central", "vnode": 2, "expected": [8, 0], "found": [5, 3], "status": 409}
    assert told.items() <= done.error.fields.items()
    assert "strandline mark reset central" in done.error.hint
    receiver.positions.clear()
    done = deliver(HttpSink(receiver.url), later, some_rows(later))
    assert type(done.error) is sl.Conflict and "found" not in done.error.fields


def test_a_receiver_that_loses_rows_within_the_first_batch_is_a_conflict(receiver):
    batch = batch_of([0, 1], after=0, upto=7, is_first=True)
    rows = rows_of(batch, [(0, 7)] * 10 + [(1, 7)] * 10)

    def losing():
        yield rows.slice(0, 7)
        receiver.positions.clear()
        receiver.rows.clear()
        yield rows.slice(7)

    [result] = HttpSink(receiver.url, chunk_rows=6).open(PRODUCER).lane(batch)(losing())
    assert type(result.error) is sl.Conflict
    assert receiver.rows == []


def test_a_chunk_that_is_too_large_for_it_is_halved_in_place(receiver):
    batch = batch_of(after=0, upto=7, is_first=True)
    rows = some_rows(batch, count=80)
    receiver.limit = 7
    done = deliver(HttpSink(receiver.url, chunk_rows=40), batch, rows)
    assert done.error is None and not done.cuts and not done.dead
    assert [row["id"] for row in receiver.rows] == leaving(rows)
    # The second half is cut smaller from the beginning.
    assert sum(chunk["rows"] > 7 for chunk in receiver.chunks) < 10


@pytest.mark.parametrize("names_rows", [True, False])
def test_lesson_12_rows_it_refuses_are_on_record_before_its_position_moves(receiver, names_rows):
    batch = batch_of([0, 1], after=0, upto=7, is_first=True)
    rows = some_rows(batch)
    receiver.refuses = lambda row: row["id"] in (7, 8)
    receiver.names_rows = names_rows
    sink = HttpSink(receiver.url, chunk_rows=6)
    [result] = sink.open(PRODUCER).lane(batch)(iter([rows]))
    # Killed here: nothing of the result is saved, and a run that knows nothing of it finds the same.
    held = dict(positions_at(receiver))
    assert result.cuts is not None and result.error is None and result.rows == 6
    assert sink.open(PRODUCER).is_delivered(replace(batch, is_replay=True)) is False
    done = deliver(sink, replace(batch, is_replay=True), rows)
    assert done.dead[0] == result.dead[0]
    assert held[0] < (8, 0)
    assert done.error is None
    assert done.dead_ids == ([7, 8] if names_rows else [6, 7, 8, 9])
    assert [row["id"] for row in receiver.rows] == [at for at in range(20) if at not in done.dead_ids]
    assert positions_at(receiver) == {0: (8, 0), 1: (8, 0)}
    assert done.rows == 20 - len(done.dead_ids)


def test_a_receiver_that_refuses_everything_still_comes_to_an_end(receiver):
    batch = batch_of(after=0, upto=7, is_first=True)
    receiver.refuses = lambda row: True
    for names_rows, count in ((True, 17), (False, 4)):
        receiver.positions.clear()
        receiver.names_rows = names_rows
        done = deliver(HttpSink(receiver.url, chunk_rows=5), batch, some_rows(batch))
        assert (done.error, done.rows, len(done.dead)) == (None, 0, count)
        assert sorted(done.dead_ids) == list(range(20))
        assert positions_at(receiver) == dict.fromkeys(range(4), (8, 0))


def test_a_receiver_that_refuses_rows_and_tells_no_positions_stops_the_lane_in_the_middle(endpoint):
    batch = batch_of()
    endpoint.control(script=[{}, {"status": 422}])
    [result] = HttpSink(endpoint.url, chunk_rows=5).open(PRODUCER).lane(batch)(iter([some_rows(batch)]))
    assert (type(result.error), result.rows, result.dead) == (sl.Invalid, 5, ())
    assert "Nothing was sent" not in result.error.hint


def test_a_receiver_that_refuses_a_chunk_without_rows_is_invalid(endpoint):
    batch = batch_of()
    endpoint.control(script=[{"status": 400}])
    [result] = HttpSink(endpoint.url).open(PRODUCER).lane(batch)(iter(()))
    assert type(result.error) is sl.Invalid and not result.dead


def test_json_goes_to_a_receiver_that_keeps_positions_too(receiver):
    batch = batch_of(after=0, upto=7, is_first=True)
    rows = some_rows(batch)
    assert deliver(HttpSink(receiver.url, format="ndjson", chunk_rows=7), batch, rows).error is None
    assert [row["id"] for row in receiver.rows] == leaving(rows)


def test_a_replay_counts_once_and_not_when_newer_rows_are_there(receiver):
    batch = batch_of(after=0, upto=7, is_first=True)
    rows = some_rows(batch, count=2)
    delivery = HttpSink(receiver.url, patience="0s").open(PRODUCER)
    letter = rows.drop_columns(["_vnode"])
    receiver.faults = ["lost"]
    with pytest.raises(sl.Unavailable):
        delivery.resend("letter", letter, 7)
    delivery.resend("letter", letter, 7)
    assert [row["id"] for row in receiver.rows] == [0, 1]
    assert deliver(HttpSink(receiver.url), batch, rows).error is None
    delivery.resend("another", letter, 7)
    assert len(receiver.rows) == 6
    with pytest.raises(sl.Conflict):
        delivery.resend("late", letter, 6)
    with pytest.raises(sl.Conflict):
        HttpSink(receiver.url).open(replace(PRODUCER, life=6)).resend("old", letter, 9)
    delivery.resend("letter", letter, 7)
    delivery.close()
    assert len(receiver.rows) == 6


@settings(max_examples=60)
@given(
    ranges=st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=25), min_size=1, max_size=3),
    withheld=st.sets(st.integers(0, 25)),
    faults=st.lists(st.sampled_from([200, 200, "lost", "cut", 500, 429]), max_size=8),
    limit=st.integers(1, 10) | st.just(100),
    bad=st.sets(st.integers(0, 80), max_size=8),
    names_rows=st.booleans(),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    forgets=st.lists(st.booleans(), max_size=6),
)
@example([[(0, 1), (0, 1)]], set(), ["lost"], 100, {1}, False, [1, 2], [])
@example([[(0, 1), (0, 1), (1, 1), (1, 1)]], set(), [200, 200, "lost"], 100, {1, 3}, False, [1, 1, 4], [])
def test_a_receiver_with_positions_has_each_row_once_whatever_fails(
    server, ranges, withheld, faults, limit, bad, names_rows, sizes, forgets
):
    """A run of which the result is forgotten is one that was killed before anything of it was saved; each run may cut
    in its own way."""
    server.reset()
    # 200 stands for no fault.
    server.faults = [None if each == 200 else each for each in faults]
    server.limit, server.names_rows, server.refuses = limit, names_rows, lambda row: row["id"] in bad
    forget, size, gone, expected = iter(forgets), itertools.cycle(sizes), [], []
    for number, places in enumerate(ranges):
        after = 3 * number
        batch = batch_of(after=after, upto=after + 3, is_first=number == 0)
        rows = rows_of(batch, [(vnode, after + seq) for vnode, seq in places], withheld, first_id=30 * number)
        expected += leaving(rows)
        while True:
            delivery = HttpSink(server.url, chunk_rows=next(size), patience="0s").open(PRODUCER)
            if delivery.is_delivered(batch):
                break
            [result] = delivery.lane(batch)(iter([rows.slice(0, 4), rows.slice(4)]))
            delivery.close()
            batch = replace(batch, is_replay=True)
            if next(forget, False):
                continue
            gone += result.dead
            if result.cuts is not None:
                batch = replace(batch, cuts=result.cuts)
            elif result.error is None:
                break
            else:
                assert isinstance(result.error, sl.Unavailable), result.error
    here = [row["id"] for row in server.rows]
    assert sorted([*here, *Outcome(dead=gone).dead_ids]) == sorted(expected)
    assert server.positions[PRODUCER.sink] == dict.fromkeys(range(4), (3 * len(ranges) + 1, 0))
    by_vnode = [[(row["_seq"], row["_index"]) for row in server.rows if row["_vnode"] == vnode] for vnode in range(4)]
    assert all(sorted(set(places)) == places for places in by_vnode)


# --- killed ----------------------------------------------------------------------------------------------------

_SEND = """
import json, sys
from test_http import HttpSink, batch_of, deliver, some_rows
batch = batch_of(after=0, upto=7, is_first=True, is_replay=len(sys.argv) > 3)
done = deliver(HttpSink(sys.argv[1], receiver=sys.argv[2], chunk_rows=5), batch, some_rows(batch))
print(json.dumps([str(done.error), done.rows]))
"""


@pytest.mark.parametrize("point", ["sink.chunk_sending", "sink.chunk_acked"])
@pytest.mark.parametrize("kind", ["any", "strandline"])
def test_a_killed_sender_is_followed_by_one_that_sends_the_rest(endpoint, receiver, point, kind):
    url = endpoint.url if kind == "any" else receiver.url
    killed = python(_SEND, url, kind, crash=f"{point}:3")
    assert killed.returncode == -signal.SIGKILL
    there = endpoint.rows() if kind == "any" else list(receiver.rows)
    assert len(there) == (10 if point == "sink.chunk_sending" else 15)
    after = python(_SEND, url, kind, "again")
    assert json.loads(after.stdout) == ["None", 20], after.stderr
    there = endpoint.rows() if kind == "any" else receiver.rows
    assert [row["id"] for row in there] == list(range(20))


# --- values and bodies -----------------------------------------------------------------------------------------


def test_json_says_every_value_without_loss():
    when = dt.datetime(2024, 1, 31, 12, 0, 0, 123456)
    columns = {
        "bool": (pa.bool_(), True, True),
        "int": (pa.int64(), 2**60 + 1, 2**60 + 1),
        "float": (pa.float64(), 0.1, 0.1),
        "single": (pa.float32(), 1.5, 1.5),
        "nan": (pa.float64(), float("nan"), "NaN"),
        "less": (pa.float64(), float("-inf"), "-Infinity"),
        "decimal": (pa.decimal128(20, 10), decimal.Decimal("0.0000000100"), "0.0000000100"),
        "text": (pa.string(), 'a "ü"\n\u2028', 'a "ü"\n\u2028'),
        "binary": (pa.binary(), b"\xff\0a", base64.b64encode(b"\xff\0a").decode()),
        "date": (pa.date32(), dt.date(2024, 1, 31), "2024-01-31"),
        "moment": (pa.timestamp("us", "UTC"), when.replace(tzinfo=dt.UTC), "2024-01-31T12:00:00.123456Z"),
        "local": (pa.timestamp("us"), when, "2024-01-31T12:00:00.123456"),
        "json": (JSON, '{"b": 1, "a": [1.0]}', '{"b": 1, "a": [1.0]}'),
        "list": (pa.list_(pa.date32()), [dt.date(2024, 1, 31), None], ["2024-01-31", None]),
        "struct": (pa.struct([("a", pa.binary()), ("b", pa.int8())]), {"a": b"x", "b": None}, {"a": "eA==", "b": None}),
        "map": (pa.map_(pa.string(), pa.float64()), [("k", float("inf"))], {"k": "Infinity"}),
        "pairs": (pa.map_(pa.int8(), pa.string()), [(1, "one")], [[1, "one"]]),
    }
    schema = pa.schema([(name, kind) for name, (kind, _, _) in columns.items()])
    full = {name: value for name, (_, value, _) in columns.items()}
    rows = pa.RecordBatch.from_pylist([full, dict.fromkeys(columns)], schema=schema)
    data, headers = encode.encode(rows, "ndjson")
    assert headers == {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"}
    lines = [json.loads(line, parse_constant=pytest.fail) for line in gzip.decompress(data).decode().split("\n")[:-1]]
    assert lines == [{name: said for name, (_, _, said) in columns.items()}, dict.fromkeys(columns)]
    assert encode.encode(rows, "ndjson")[0] == data


def test_json_says_years_that_python_does_not_know():
    times = pa.array([253402300800000000], pa.timestamp("us", "UTC"))
    data, _ = encode.encode(pa.record_batch({"at": times}), "ndjson")
    assert json.loads(gzip.decompress(data)) == {"at": "10000-01-01T00:00:00.000000Z"}


def test_arrow_keeps_types_and_compresses():
    rows = pa.RecordBatch.from_pylist([{"a": "{}" * 500}] * 100, schema=pa.schema([("a", JSON)]))
    data, _ = encode.encode(rows, "arrow")
    assert pa.ipc.open_stream(data).read_all().schema == rows.schema
    assert len(data) < 2000


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("HTTPS://Central.Example:443/ingest/Messages/", "https://central.example/ingest/Messages"),
        ("http://central:80", "http://central/"),
        ("http://central:8080/a", "http://central:8080/a"),
        ("http://[::1]:8080/a", "http://[::1]:8080/a"),
        ("https://central:80/a%20b", "https://central:80/a%20b"),
    ],
)
def test_a_destination_has_one_spelling(url, normal):
    sink = HttpSink(url)
    assert sink.destination == sink.url == normal
    assert HttpSink(normal) == sink


def test_an_address_of_any_receiver_is_kept_to_the_letter():
    assert HttpSink("http://H/in/A/", receiver="any").destination == "http://h/in/A/"


@pytest.mark.parametrize("receiver", ["any", "strandline"])
def test_a_query_in_an_address_is_refused_and_not_repeated(receiver):
    for url in ("http://central/x?code=s3cret", "ftp://central/x?code=s3cret#part", "http://central/x?"):
        with refused(sl.Invalid) as caught:
            HttpSink(url, receiver=receiver)
        assert "s3cret" not in str(caught.value) and "params=" in caught.value.hint


def test_parameters_are_sent_and_never_told(foreign, monkeypatch):
    monkeypatch.setenv("SINK_CODE", "s3cret")
    path = f"/{uuid.uuid4().hex}"
    endpoint = Endpoint(foreign, f"{path}?code=s3cret")
    sink = any_sink(f"{foreign}{path}", params={"code": "env:SINK_CODE"})
    assert sink.to_dict()["params"] == {"code": "env:SINK_CODE"}
    assert HttpSink.from_dict(sink.to_dict()) == sink
    batch = batch_of()
    rows = some_rows(batch)
    elsewhere = "http://central/y?code=s3cret"
    endpoint.control(script=[{"status": 302, "location": elsewhere}])
    stopped = deliver(sink, batch, rows)
    assert stopped.error.fields["location"] == "http://central/y"
    endpoint.control(script=[{"status": 503}])
    silent = deliver(replace(sink, patience="0s"), batch, rows)
    lane = sink.open(PRODUCER).lane(batch)
    for told in (stopped.error, silent.error, lane, repr(lane.secrets), sink, sink.destination, silent.error.fields):
        assert "s3cret" not in f"{told} {told!r}"
    assert deliver(sink, batch, rows).error is None
    assert [row["id"] for row in endpoint.rows()] == leaving(rows)


def test_parameters_go_with_the_question_for_positions(receiver):
    batch = batch_of(after=0, upto=7, is_first=True)
    assert deliver(HttpSink(receiver.url, params={"code": "s3cret"}), batch, some_rows(batch)).error is None
    assert {each["code"][0] for each in receiver.queries} == {"s3cret"}
    assert HttpSink(receiver.url, params={"code": "s3cret"}).to_dict()["params"] == {"code": "given"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "ftp://central/x"}, {"url": "central/x"}, {"url": ""}, {"url": "http://"}, {"url": 3},
        {"url": "http://user:word@central/x"}, {"url": "http://central/x#part"}, {"url": "http://central/x y"},
        {"url": "http://central:port/x"}, {"url": "http://central:99999/x"}, {"url": "http://central/x?a=b"},
        {"receiver": "other"}, {"format": "csv"}, {"lanes": 0}, {"lanes": True}, {"lanes": 1000}, {"chunk_rows": 0},
        {"chunk_rows": 2.5}, {"chunk_bytes": -1}, {"chunk_bytes": 1 << 40}, {"patience": "soon"}, {"patience": -1},
        {"timeout": "0s"}, {"timeout": None}, {"token": ""}, {"token": 5}, {"token": "a\nb"}, {"headers": ["a"]},
        {"headers": {"a b": "c"}}, {"headers": {"A": "b", "a": "b"}}, {"headers": {"X": "ü"}}, {"headers": {"X": 1}},
        {"params": ["a"]}, {"params": {"": "x"}}, {"params": {"a": 1}}, {"params": {"a": ""}},
        {"params": {"sink": "x"}}, {"params": {"life": "x"}}, {"headers": {"Content-Type": "text/html"}},
        {"headers": {"authorization": "Basic x"}, "token": "t"},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(wrong):
    with refused(sl.Invalid) as caught:
        HttpSink(**{"url": "http://central/x", **wrong})
    assert "word" not in str(caught.value)


def test_only_references_of_secrets_are_kept():
    sink = HttpSink(
        "https://central/x",
        token="s3cret",
        headers={"X-Key": "s3cret", "X-Other": "env:OTHER"},
        receiver="any",
        format="arrow",
        lanes=2,
        patience=90,
        timeout=dt.timedelta(seconds=5),
    )
    facts = json.loads(json.dumps(sink.to_dict()))
    assert "s3cret" not in json.dumps(facts) and "s3cret" not in repr(sink)
    assert facts["headers"] == {"X-Key": "given", "X-Other": "env:OTHER"}
    assert (facts["token"], facts["patience"], facts["timeout"]) == ("given", "90s", "5s")
    kept = HttpSink.from_dict(facts)
    assert kept.to_dict() == facts
    assert (kept.url, kept.receiver, kept.body_format, kept.lanes) == (sink.url, "any", "arrow", 2)
    with refused(sl.Invalid) as caught:
        kept.secrets()
    assert caught.value.hint
    plain = HttpSink("https://central/x", token="env:TOKEN", headers={})
    assert HttpSink.from_dict(plain.to_dict()) == plain
    assert (plain.kind, plain.is_ordered, plain.lanes, plain.body_format) == ("http", True, 4, "arrow")


def test_a_secret_that_no_header_can_hold_is_invalid(monkeypatch):
    monkeypatch.setenv("SINK_TOKEN", "a\nb")
    with refused(sl.Invalid) as caught:
        HttpSink("https://central/x", token="env:SINK_TOKEN").secrets()
    assert "a\nb" not in str(caught.value)
