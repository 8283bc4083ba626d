"""A REST catalog whose answers drip, or are too large: the sink gives it up, in time and in memory."""

import gzip
import itertools
import time

import pytest
from requests.exceptions import ReadTimeout

from hostile import hostile
from relays import AUTHORITY, certified
from strandline.errors import Unavailable
from strandline.sinks import iceberg_wire
from strandline.sinks.iceberg_catalog import Settings, open_catalog
from support import refused

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CONFIG = b'{"defaults": {}, "overrides": {}}'


def opened(server, timeout_s):
    facts = {"type": "rest", "uri": f"{server.scheme}://localhost:{server.port}", "ssl": {"cabundle": str(AUTHORITY)}}
    return open_catalog(Settings(facts, "catalog"), "there", timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-More: 1\r\n"),
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
        (HEAD + b"Content-Length: 100000\r\n\r\n", b" "),
        (HEAD + b"Connection: close\r\n\r\n", b" "),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 100000\r\n\r\n", b" "),
    ],
)
def test_an_answer_that_drips_is_given_up(head, drop):
    """Each byte comes sooner than the clock that `requests` has for one."""

    def say(connection, request):
        connection.sendall(head)
        while not server.over.wait(0.02):
            connection.sendall(drop)

    with hostile(say) as server:
        started_s = time.monotonic()
        with refused(Unavailable):
            opened(server, 0.5)
        assert time.monotonic() - started_s < 30


@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_an_answer_that_is_too_large_is_given_up(monkeypatch, coding):
    monkeypatch.setattr(iceberg_wire, "MOST_BYTES", 1 << 20)
    sent = []

    def say(connection, request):
        connection.sendall(HEAD + f"Content-Encoding: {coding}\r\nConnection: close\r\n\r\n".encode())
        pieces = itertools.repeat(b" " * 65536) if coding == "identity" else [gzip.compress(b" " * (64 << 20))]
        for piece in pieces:
            connection.sendall(piece)
            sent.append(len(piece))

    with hostile(say) as server:
        with refused(Unavailable) as caught:
            opened(server, 60)
        assert "more than 1048576 bytes" in caught.value.message
    assert sum(sent) < 64 << 20


@pytest.mark.parametrize("tls", [None, certified()])
def test_an_answer_that_comes_in_time_is_taken_whole_and_the_next_one_is_watched(tls, monkeypatch):
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)  # they count before a catalog's own

    def say(connection, request):
        if b"/v1/config" not in request:
            connection.sendall(HEAD)
            while not server.over.wait(0.02):
                connection.sendall(b"X-More: 1\r\n")
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for byte in CONFIG:
            connection.sendall(b"1\r\n%c\r\n" % byte)
        connection.sendall(b"0\r\n\r\n")

    with hostile(say, tls=tls) as server:
        catalog = opened(server, 2)
        with pytest.raises(ReadTimeout):
            catalog.list_namespaces()
    assert [request.split()[1] for request in server.requests] == [b"/v1/config", b"/v1/namespaces"]
