"""The server before clients that hold connections open, drip, flood or send garbage: others are served, and the log
stays short."""

import contextlib
import json
import socket
import time

import httpx
import pyarrow as pa
import pytest

import strandline as sl
from receiving import NDJSON, lines
from support import start_python

SERVE = """
import json, os, resource, sys, threading, time
os.dup2(os.open(sys.argv[3], os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
import strandline as sl
from strandline.server import connections as door
from strandline.server.run import serve
told = json.loads(sys.argv[2])
for name, value in told.pop("door", {}).items():
    assert hasattr(door, name)
    setattr(door, name, value)
if files := told.pop("files", 0):
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
exhausted = told.pop("exhausted", False)

def listening(url):
    if exhausted:
        held = []
        try:
            while True:
                held.append(open("/dev/null"))
        except OSError:
            pass
        threading.Timer(4, lambda: [each.close() for each in held]).start()
    sys.stdout.write(url + "\\n")
    sys.stdout.flush()

serve(sl.Lake(sys.argv[1]), tokens=None, port=0, on_listening=listening, **told)
"""


class Server:
    def __init__(self, process, url, log):
        self.process, self.url, self._log = process, url, log
        self.port = httpx.URL(url).port

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def post(self, content):
        return httpx.post(f"{self.url}/ingest/items", content=content, headers={"Content-Type": NDJSON}, timeout=60)

    def is_well(self):
        """Whether it answers, if only when a burst is over: until then it may say that it is busy."""
        for _ in range(100):
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.get(f"{self.url}/healthz", timeout=60)
                if answer.status_code != 503:
                    return answer.status_code == 200
            time.sleep(0.1)
        return False

    def log(self):
        return self._log.read_bytes()


@contextlib.contextmanager
def serving(tmp_path, **told):
    lake = sl.Lake(tmp_path / "lake")
    lake.create_table("items", pa.schema([("id", pa.int64())]), key=["id"])
    process = start_python(SERVE, str(tmp_path / "lake"), json.dumps(told), str(tmp_path / "log"))
    try:
        url = process.stdout.readline().strip()
        assert url, (tmp_path / "log").read_text()
        yield Server(process, url, tmp_path / "log")
    finally:
        process.kill()
        process.communicate(timeout=30)


@contextlib.contextmanager
def held(server, count, data):
    """Connections that say something and then nothing."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            with contextlib.suppress(OSError):
                connection = stack.enter_context(server.connect())
                opened.append(connection)
                connection.sendall(data)
        yield opened


def ended(connection, within_s=30):
    """What a server says before it ends a connection; fails if it does not."""
    connection.settimeout(within_s)
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            said += piece
    return said


STORMS = {
    "silent": b"",
    "half a head": b"POST /ingest/items HTTP/1.1\r\nHost: x\r\nX-Long: ",
    "half a body": b"POST /ingest/items HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
    b"Content-Length: 999\r\n\r\n{",
    "a body that nobody reads": b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{",
    "idle": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("name", STORMS)
def test_others_are_served_while_many_connections_are_held_open(tmp_path, name):
    with serving(tmp_path, queue_requests=20) as server, held(server, 700, STORMS[name]) as connections:
        assert len(connections) > 400
        for number in range(5):
            assert server.is_well()
            if name != "half a body":  # those hold the queue until their clock has run out
                assert server.post(lines({"id": number})).status_code == 200
        assert len(server.log()) < 10_000


def test_bodies_that_do_not_come_free_the_queue(tmp_path):
    door = {"BODY_S": 1.0, "HEAD_S": 1.0}
    with serving(tmp_path, queue_requests=20, door=door) as server, held(server, 40, STORMS["half a body"]) as opened:
        said = [ended(each) for each in opened]
        assert {each[:12] for each in said} == {b"HTTP/1.1 408", b"HTTP/1.1 429"}
        assert server.post(lines({"id": 1})).status_code == 200


def drip(connection, data, *, every_s=0.1, most=400):
    """Send a byte at a time until the server has enough."""
    with contextlib.suppress(OSError):
        for number in range(most):
            connection.sendall(data[number % len(data) :][:1])
            time.sleep(every_s)
            connection.settimeout(0.001)
            with contextlib.suppress(TimeoutError):
                said = connection.recv(65536)
                return said + ended(connection)
    return b""


DRIPS = {
    "a head": (b"GET /healthz HTTP/1.1\r\nX-Long: ", b"x", b"HTTP/1.1 408"),
    "a method": (b"", b"G", b"HTTP/1.1 408"),
    "a body": (STORMS["half a body"], b" ", b"HTTP/1.1 408"),
    "a body in chunks": (
        b"POST /ingest/items HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"1\r\nx\r\n",
        b"HTTP/1.1 408",
    ),
}


@pytest.mark.parametrize("name", DRIPS)
def test_a_request_that_drips_ends_with_the_clock(tmp_path, name):
    head, rest, expected = DRIPS[name]
    with serving(tmp_path, door={"BODY_S": 1.5, "HEAD_S": 1.5, "IDLE_S": 2}) as server, server.connect() as connection:
        started_s = time.monotonic()
        connection.sendall(head)
        said = drip(connection, rest)
        assert 1 < time.monotonic() - started_s < 30
        assert said.startswith(expected)


def test_a_body_that_is_not_waited_for_is_not_waited_for_ever(tmp_path):
    with serving(tmp_path, door={"HEAD_S": 1.5}) as server, server.connect() as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n")
        connection.settimeout(30)
        assert connection.recv(65536).startswith(b"HTTP/1.1 404")
        started_s = time.monotonic()
        drip(connection, b"x")
        assert time.monotonic() - started_s < 30


def test_a_slow_body_that_goes_on_is_taken(tmp_path):
    door = {"BODY_S": 1.0, "SLOWEST_BYTES_S": 64}
    body = lines(*({"id": number} for number in range(40)))
    with serving(tmp_path, door=door) as server:

        def pieces():
            for at in range(0, len(body), 64):
                time.sleep(0.3)
                yield body[at : at + 64]

        assert server.post(pieces()).json()["rows"] == 40


def test_a_client_that_never_reads_its_answers_goes(tmp_path):
    request = b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"
    with serving(tmp_path, door={"ANSWER_S": 1.0}) as server, server.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(30)
        with pytest.raises(OSError):
            for _ in range(200_000):
                connection.sendall(request * 50)
        assert server.is_well()


def test_garbage_is_logged_in_a_line(tmp_path):
    with serving(tmp_path) as server:
        for number in range(600):
            with server.connect() as connection:
                garbage = [
                    b"\xff\xfe\r\n\r\n",
                    b"GET / HTTP/7.7\r\n\r\n",
                    b"GET /healthz HTTP/1.1\r\nUpgrade: h2c\r\nConnection: upgrade\r\nHost: x\r\n\r\n",
                ][number % 3]
                connection.sendall(garbage)
                with contextlib.suppress(OSError):
                    connection.recv(1024)
        assert server.is_well()
        assert 0 < len(server.log()) < 10_000


def test_few_files_are_few_connections_and_no_storm_in_the_log(tmp_path):
    with serving(tmp_path, files=300) as server, held(server, 500, b"GET /healthz HTTP/1.1\r\nX: "):
        for _ in range(5):
            assert server.is_well()
        assert len(server.log()) < 10_000


def test_a_server_without_files_says_so_in_a_line_and_goes_on_when_it_has_some(tmp_path):
    with serving(tmp_path, files=400, exhausted=True) as server:
        with held(server, 50, b""):
            time.sleep(3)
            assert b"No connection can be accepted" in server.log()
        assert server.is_well()
        assert len(server.log()) < 20_000


def test_a_server_under_a_storm_still_stops(tmp_path):
    with serving(tmp_path, queue_requests=20) as server, held(server, 300, STORMS["half a head"]):
        server.process.terminate()
        assert server.process.wait(60) == 0
