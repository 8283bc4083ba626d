"""An HTTP sink as a value: one spelling of its address, no secret kept, and receivers of either kind."""

import datetime as dt
import json
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

import forwarding
import strandline as sl
from foreign_receiver import Endpoint
from forwarding import PRODUCER, any_sink, batch_of, deliver, leaving, some_rows
from receiving import asking
from strandline.server.app import make_app
from strandline.sinks.forward import encode
from strandline.sinks.http import HttpSink
from support import refused

foreign, endpoint = forwarding.foreign, forwarding.endpoint
server, receiver = forwarding.server, forwarding.receiver
# --- a receiver that keeps positions ---------------------------------------------------------------------------


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


def test_an_address_without_a_table_is_completed_in_the_hint(endpoint):
    endpoint.control(page=None)
    root = endpoint.server
    with refused(sl.Invalid, status=404) as caught:
        HttpSink(f"{root}/").open(PRODUCER).is_delivered(batch_of(is_first=True))
    assert f"--to {root}/ingest/TABLE" in caught.value.hint
    assert "table create" not in caught.value.hint


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


# --- values and bodies -----------------------------------------------------------------------------------------


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
