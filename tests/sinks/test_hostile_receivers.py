"""A sink before a server that answers what it likes, as slowly as it likes: the lane ends with an error of ours,
nothing counts as sent that was not acknowledged, and no secret is kept."""

import base64
import contextlib
import gzip
import html
import itertools
import json
import resource
import threading
import time
from urllib.parse import quote

import pyarrow as pa
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strandline as sl
from foreign_receiver import Endpoint, foreign_receiver
from forwarding import any_sink, batch_of, deliver, some_rows
from hostile import answer, hostile, once
from strandline.sinks.forward import connection as wire
from strandline.sinks.http import HttpSink
from support import refused

TOKEN = "sl_Yq3ZkX9vTn7LwP2rB8sD4fGhJ6mN1cVx"
COOKIE = "session=0123-very-private-4567"
PARAM = "p4r4m/+=&secret value"
SECRETS = (TOKEN, "0123-very-private-4567", "secret value")


def sink_to(url, **rest):
    return any_sink(url, patience="0s", timeout="2s", **rest)


def sent(sink, count=3):
    batch = batch_of()
    return deliver(sink, batch, some_rows(batch, count=count))


# --- what it answers ---------------------------------------------------------------------------------------------

GARBAGE = {
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "half a status line": b"HTTP/1.1 20",
    "a status of letters": b"HTTP/1.1 abc OK\r\n\r\n",
    "status 0": b"HTTP/1.1 000 Zero\r\nContent-Length: 0\r\n\r\n",
    "status -1": b"HTTP/1.1 -1 Minus\r\nContent-Length: 0\r\n\r\n",
    "status 99": b"HTTP/1.1 099 Low\r\nContent-Length: 0\r\n\r\n",
    "status 2000": b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP 9.9": b"HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a request": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "only a continue": b"HTTP/1.1 100 Continue\r\n\r\n",
    "a flood of continues": b"HTTP/1.1 100 Continue\r\n\r\n" * 50_000,
    "early hints for ever": b"HTTP/1.1 103 Early\r\nLink: <x>\r\n\r\n" * 10_000,
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    "headers without end": b"HTTP/1.1 200 OK\r\n" + b"X-Long: y\r\n" * 200_000,
    "one endless header": b"HTTP/1.1 200 OK\r\nX-Long: " + b"y" * 3_000_000,
    "a header without a name": b"HTTP/1.1 200 OK\r\n: x\r\nContent-Length: 0\r\n\r\n",
    "a NUL in a header": b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\nabcdefg",
    "a length below zero": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nabc",
    "a length of letters": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nabc",
    "a body cut short": b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nabc",
    "chunks of garbage": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    "a chunk below zero": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n\r\n",
    "chunks cut short": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\nabc",
    "an unknown framing": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: rot13\r\n\r\nabc",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_an_answer_that_is_none_is_a_silent_receiver(name):
    with hostile(once(GARBAGE[name])) as server:
        done = sent(sink_to(server.url))
        assert isinstance(done.error, sl.Unavailable), done.error
        assert (done.rows, done.dead) == (0, [])
        with refused(sl.Unavailable):
            sent(HttpSink(server.url, patience="0s", timeout="2s"))


@pytest.mark.parametrize("status", [300, 304, 305, 306, 402, 403, 404, 405, 418, 451, 501, 505, 599, 600, 799, 999])
def test_a_status_that_nobody_foresaw_stops_the_sink(status):
    with hostile(once(answer(f"{status} Odd"))) as server:
        done = sent(sink_to(server.url))
        assert isinstance(done.error, sl.Invalid)
        assert done.error.fields["status"] == status
        assert (done.rows, done.dead) == (0, [])


@pytest.mark.parametrize("reason", [b"\xff\xfe", b"\x1b[31mred", b""])
def test_a_reason_is_never_read_and_a_body_in_no_encoding_is(reason):
    line = b"HTTP/1.1 200 " + reason + b"\r\nContent-Length: 2\r\n\r\n\xff\xfe"
    with hostile(once(line)) as server:
        done = sent(sink_to(server.url))
    # Some of these are no status lines; then there is no answer.
    assert (done.error is None and done.rows == 3) or (isinstance(done.error, sl.Unavailable) and done.rows == 0)


POSITIONS = [
    None, 7, "x", {}, [7], [[]], [[0, 3, 5]], [[0, 3, 5, 0, 0]], [[0, 3, "5", 0]], [[0, 3, 5.0, 0]], [[0, 3, True, 0]],
    [[0, 3, None, 0]], [[0, 3, -1, 0]], [[0, 3, 5, -1]], [[0, 3, 1 << 63, 0]], [[0, 3, 10**400, 0]],
    [[0, 3, 5, 1 << 31]], [[3, 0, 5, 0]], [[-5, 3, 5, 0]], [[0, 3, 5, 0], [2, 3, 6, 0]], [[0, 4095, 5, 0]] * 9000,
]  # fmt: skip


@pytest.mark.parametrize("told", POSITIONS, ids=lambda told: str(told)[:30])
def test_positions_that_make_no_sense_are_no_positions(told):
    document = json.dumps({"positions": told, "error": {"message": "no", "positions": told}}).encode()
    with hostile(once(answer("200 OK", document))) as server, refused(sl.Invalid, status=200):
        sent(HttpSink(server.url, patience="0s", timeout="5s"))

    def gap(connection, request):
        good = answer("200 OK", json.dumps({"positions": [[0, 3, 5, 0]]}).encode())
        connection.sendall(good if request.startswith(b"GET") else answer("409 Conflict", document))

    with hostile(gap) as server:
        done = sent(HttpSink(server.url, patience="0s", timeout="5s"))
        assert isinstance(done.error, sl.Conflict)
        assert done.rows == 0


@pytest.mark.parametrize("seq", [9, 10**9, (1 << 32) - 1])
@pytest.mark.parametrize("is_replay", [False, True])
def test_a_receiver_that_has_more_than_was_ever_sent_is_not_believed(seq, is_replay):
    told = answer("200 OK", json.dumps({"positions": [[0, 3, seq, 0]]}).encode())
    batch = batch_of(is_replay=is_replay)
    with hostile(once(told)) as server, refused(sl.Conflict):
        deliver(HttpSink(server.url), batch, some_rows(batch))


def test_an_answer_to_nothing_is_not_taken_for_the_next_one():
    """The first answer has another one behind it, which would acknowledge a request that was never answered."""
    count = itertools.count()

    def say(connection, _):
        if next(count) == 0:
            connection.sendall(answer("200 OK") + answer("200 OK", b"early"))
            with contextlib.suppress(OSError):
                connection.recv(65536)

    with hostile(say) as server:
        done = sent(sink_to(server.url), count=10)
        assert isinstance(done.error, sl.Unavailable)
        assert done.rows == 5
        assert len(server.requests) == 2


def test_a_connection_on_which_something_comes_unasked_is_not_used_again():
    def say(connection, _):
        connection.sendall(answer("200 OK"))
        time.sleep(0.2)
        connection.sendall(answer("200 OK"))
        connection.recv(65536)

    with hostile(say) as server:
        line = any_sink(server.url).open(None)._open_connection()
        assert line.post(b"1", {"Idempotency-Key": "a"}).is_ack
        time.sleep(0.5)
        assert line.post(b"2", {"Idempotency-Key": "b"}).is_ack
        line.close()
        assert len(server.requests) == 2


def test_a_redirect_is_not_followed_and_no_other_server_gets_the_token():
    with hostile(once(answer("200 OK"))) as other:
        for status in ("301 Moved", "302 Found", "307 Temporary", "308 Permanent"):
            moved = answer(status, b"", f"Location: {other.url}?code={TOKEN}&x={TOKEN}")
            with hostile(once(moved)) as server:
                done = sent(sink_to(server.url, token=TOKEN))
            assert isinstance(done.error, sl.Invalid)
            assert other.url in str(done.error)
            assert TOKEN not in str(done.error)
        assert other.requests == []


# --- how much and how slowly -------------------------------------------------------------------------------------


def memory_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def test_an_answer_is_asked_for_as_it_is_and_never_unpacked():
    zeros = bytes(1 << 24)
    packed = zstandard.compress(zeros * 8)
    assert len(packed) < 100_000
    twice = gzip.compress(gzip.compress(zeros))
    for encoding, data in (("zstd", packed), ("gzip", gzip.compress(zeros)), ("gzip, gzip", twice), ("br", b"x")):
        before = memory_bytes()
        with hostile(once(answer("400 Bad", data, f"Content-Encoding: {encoding}"))) as server:
            done = sent(sink_to(server.url))
            assert b"\r\nAccept-Encoding: identity\r\n" in server.requests[0]
        assert done.error is None
        assert len(done.dead) == 1
        assert memory_bytes() - before < 64 << 20


@pytest.mark.parametrize("status", ["200 OK", "422 No", "500 Broken", "409 Conflict"])
@pytest.mark.parametrize("framing", ["length", "chunks", "close"])
def test_no_more_of_an_answer_is_read_than_a_bound(status, framing):
    written = []

    def say(connection, _):
        piece = b"x" * 65536
        heads = {"length": "Content-Length: 9000000000", "chunks": "Transfer-Encoding: chunked", "close": "X: y"}
        connection.sendall(f"HTTP/1.1 {status}\r\n{heads[framing]}\r\n\r\n".encode())
        for number in range(400):
            connection.sendall(b"10000\r\n" + piece + b"\r\n" if framing == "chunks" else piece)
            written.append(number)

    with hostile(say) as server:
        done = sent(sink_to(server.url), count=1)
    assert len(written) < 400
    assert (done.rows == 1) == (status == "200 OK")
    assert done.error is None or isinstance(done.error, sl.StrandlineError)


def drip(head, *, every_s=0.1):
    def say(connection, _):
        connection.sendall(head)
        while True:
            time.sleep(every_s)
            connection.sendall(b"x")

    return say


DRIPS = {
    "a body": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
    "a body of a refusal": b"HTTP/1.1 422 No\r\nContent-Length: 100000\r\n\r\n",
    "a header": b"HTTP/1.1 200 OK\r\nX-Long: ",
    "a status line": b"HTTP/1.1 200 O",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffff\r\n",
    "until the end": b"HTTP/1.1 200 OK\r\n\r\n",
}


@pytest.mark.parametrize("name", DRIPS)
def test_an_answer_that_drips_ends_with_the_clock(name):
    before = threading.active_count()
    with hostile(drip(DRIPS[name])) as server:
        inside = threading.active_count()
        started_s = time.monotonic()
        done = sent(any_sink(server.url, patience="0s", timeout="1s"))
        assert 0.9 < time.monotonic() - started_s < 30
        assert isinstance(done.error, sl.Unavailable)
        assert (done.rows, done.dead) == (0, [])
        # Only those of the server are there: no thread of ours is left.
        assert threading.active_count() <= inside + len(server.requests)
    assert threading.active_count() <= before


def test_a_server_that_never_reads_does_not_hold_a_request(monkeypatch):
    monkeypatch.setattr(wire, "SLOWEST_BYTES_S", 64 << 20)
    over = threading.Event()
    with hostile(lambda *_: over.wait(60), is_reading=False) as server:
        opened = wire.Wire(timeout_s=1)
        started_s = time.monotonic()
        with pytest.raises(wire.NoAnswer):
            opened.exchange("POST", server.url, {}, {}, bytes(64 << 20))
        assert time.monotonic() - started_s < 30
        over.set()


def test_a_server_that_reads_a_little_at_a_time_does_not_hold_a_request(monkeypatch):
    monkeypatch.setattr(wire, "SLOWEST_BYTES_S", 64 << 20)

    def say(connection, _):
        while True:
            connection.recv(4096)
            time.sleep(0.05)

    with hostile(say, is_reading=False) as server:
        opened = wire.Wire(timeout_s=1)
        started_s = time.monotonic()
        with pytest.raises(wire.NoAnswer):
            opened.exchange("POST", server.url, {}, {}, bytes(64 << 20))
        assert time.monotonic() - started_s < 30


def test_a_large_body_has_the_time_that_it_needs():
    """Sending takes longer than the timeout, which bounds each other step; it goes on all the same."""

    def say(connection, _):
        left = 6 << 20
        while left > 0:
            left -= len(connection.recv(1 << 18))
            time.sleep(0.06)
        connection.sendall(answer("200 OK"))

    with hostile(say, is_reading=False) as server:
        opened = wire.Wire(timeout_s=0.6)
        started_s = time.monotonic()
        assert opened.exchange("POST", server.url, {}, {}, bytes(6 << 20))[0] == 200
        assert time.monotonic() - started_s > 0.6


# --- how long to wait --------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.one_of(
        st.binary(max_size=300),
        st.binary(max_size=200).map(lambda data: b"HTTP/1.1 200 OK\r\n" + data),
        st.tuples(st.integers(100, 999), st.binary(max_size=200)).map(
            lambda pair: answer(f"{pair[0]} X", pair[1], "Retry-After: 0")
        ),
    )
)
def test_whatever_bytes_come_the_lane_ends_with_an_error_of_ours(data):
    with hostile(once(data)) as server:
        done = sent(any_sink(server.url, patience="0s", timeout="0.5s"), count=2)
    assert done.error is None or isinstance(done.error, sl.Unavailable | sl.Invalid | sl.Conflict)
    is_ack = data.startswith((b"HTTP/1.1 2", b"HTTP/1.0 2"))
    assert done.rows == 0 or is_ack


# --- what it repeats ---------------------------------------------------------------------------------------------

ECHOES = {
    "as it is": lambda text: text,
    "in JSON": lambda text: json.dumps({"error": {"message": f"bad request: {text}"}}),
    "escaped in JSON": lambda text: json.dumps({"odd": "".join(f"\\u{ord(c):04x}" for c in text)}),
    "in a URL": lambda text: quote(text),
    "in HTML": html.escape,
    "in base64": lambda text: base64.b64encode(text.encode()).decode(),
    "with colours": lambda text: f"\x1b[31m{text}\x1b[0m\r\n\u202e",
}


@pytest.mark.parametrize("status", [400, 401, 403, 409, 422, 413, 500, 503, 302])
@pytest.mark.parametrize("way", ECHOES)
def test_a_receiver_that_repeats_the_request_gets_no_secret_written_down(tmp_path, way, status):
    def say(connection, request):
        head = request.partition(b"\r\n\r\n")[0].decode("latin-1")
        told = [head, *(line for line in head.split("\r\n") if any(secret[:6] in line for secret in SECRETS))]
        echoed = ECHOES[way]("\n".join(reversed(told)))
        connection.sendall(answer(f"{status} No", echoed.encode(), f"Location: {server.url}/{TOKEN}?{TOKEN}"))

    lake = sl.Lake(tmp_path / "lake")
    items = lake.create_table("items", pa.schema([("id", pa.int64()), ("name", pa.string())]), key=["id"])
    items.upsert([{"id": number, "name": f"n{number}"} for number in range(3)])
    with hostile(say) as server:
        to = sink_to(server.url, token=TOKEN, headers={"Cookie": COOKIE}, params={"code": PARAM})
        lake.sink("out", "items", to=to)
        report = lake.tick()
    shown = [repr(report), json.dumps(lake.status().to_dict(), default=str), repr(lake.state.letters.all())]
    assert "out" in shown[1]
    kept = b"".join(path.read_bytes() for path in (tmp_path / "lake").rglob("*") if path.is_file())
    for secret in SECRETS:
        for form in {secret, quote(secret), base64.b64encode(secret.encode()).decode()[:-4] or secret}:
            assert not any(form in text for text in shown)
            assert form.encode() not in kept
    if letters := lake.state.letters.all():
        assert all(letter.reason.isprintable() for letter in letters)
    assert not any(character in text for text in shown for character in "\x1b\u202e")


def test_a_hostile_receiver_stops_no_other_sink(tmp_path):
    lake = sl.Lake(tmp_path / "lake")
    items = lake.create_table("items", pa.schema([("id", pa.int64()), ("name", pa.string())]), key=["id"])
    items.upsert([{"id": number, "name": f"n{number}"} for number in range(5)])
    with foreign_receiver(tmp_path) as address, hostile(drip(DRIPS["a body"])) as slow, hostile(once(b"\xff")) as odd:
        good = Endpoint(address, "/good")
        lake.sink("a_slow", "items", to=any_sink(slow.url, patience="0s", timeout="1s"))
        lake.sink("b_odd", "items", to=sink_to(odd.url))
        lake.sink("c_good", "items", to=any_sink(good.url))
        lake.tick()
        assert sorted(row["id"] for row in good.rows()) == list(range(5))
        states = {sink.name: sink for sink in lake.status().sinks}
        assert states["c_good"].error is None
        for name in ("a_slow", "b_odd"):
            assert states[name].error
            assert states[name].letters == 0
            assert not states[name].lag.is_none
