"""The lane of a batch: each row arrives once, whatever the receiver answers, refuses or loses."""

import itertools
import json
import signal
import uuid
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import forwarding
import strandline as sl
from foreign_receiver import Endpoint
from forwarding import PRODUCER, Outcome, any_sink, batch_of, deliver, keys_of, leaving, rows_of, some_rows
from strandline.sinks.forward.chunks import CutRule
from strandline.sinks.http import HttpSink
from support import python, refused

foreign, endpoint = forwarding.foreign, forwarding.endpoint
server, receiver = forwarding.server, forwarding.receiver


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
    assert delivery.partial_positions(4) == {1: (8, 3)}
    assert CutRule.from_dict(delivery.remaining_cuts((0, 1, 2), 4, 7)) == CutRule(2, 4 << 20, (2, 5, 0))
    assert CutRule.from_dict(delivery.remaining_cuts((1, 2), 4, 8)).done == (1, 8, 3)
    assert CutRule.from_dict(delivery.remaining_cuts((2, 3), 0, 8)).done == (2, 1, 0)
    delivery.close()


def test_a_column_that_the_receiver_lacks_stops_the_lane(receiver):
    batch = batch_of(after=0, upto=7, is_first=True)
    receiver.faults = [412]
    done = deliver(HttpSink(receiver.url, format="ndjson"), batch, some_rows(batch))
    assert type(done.error) is sl.Invalid and done.error.fields["status"] == 412
    assert (done.dead, receiver.rows) == ([], [])
    assert deliver(HttpSink(receiver.url), replace(batch, is_replay=True), some_rows(batch)).rows == 20


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


_SEND = """
import json, sys
from forwarding import HttpSink, batch_of, deliver, some_rows
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
