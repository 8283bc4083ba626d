"""A REST catalog whose answers drip, or are too large: the sink gives it up, in time and in memory."""

import gzip
import itertools
import socket
import time
from contextlib import contextmanager

import pytest
from requests.exceptions import ReadTimeout

from hostile import answer, hostile, once
from relays import AUTHORITY, certified, proxy
from strandline.errors import Unavailable
from strandline.sinks import iceberg_wire
from strandline.sinks.iceberg_catalog import CatalogSettings, open_catalog
from support import refused

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CONFIG = b'{"defaults": {}, "overrides": {}}'


ENDLESS = HEAD + b"Content-Length: 100000\r\n\r\n"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    # The bundles count before a catalog's own.
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "requests_ca_bundle", "curl_ca_bundle"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def opened(server, timeout_s):
    facts = {"type": "rest", "uri": f"{server.scheme}://localhost:{server.port}", "ssl": {"cabundle": str(AUTHORITY)}}
    return open_catalog(CatalogSettings(facts, "catalog"), "there", timeout_s=timeout_s)


@contextmanager
def dripping(head, drop, tls=None):
    """A server that begins to answer and never ends."""

    def say(connection, request):
        connection.sendall(head)
        while not server.over.wait(0.02):
            connection.sendall(drop)

    with hostile(say, tls=tls) as server:
        yield server


def given_up(server):
    started_s = time.monotonic()
    with refused(Unavailable) as caught:
        opened(server, 0.5)
    assert "no whole answer within 0.5 s" in caught.value.message
    assert time.monotonic() - started_s < 30


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-More: 1\r\n"),
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
        (ENDLESS, b" "),
        (HEAD + b"Connection: close\r\n\r\n", b" "),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 100000\r\n\r\n", b" "),
    ],
)
def test_an_answer_that_drips_is_given_up(head, drop):
    """Each byte comes sooner than the clock that `requests` has for one."""
    with dripping(head, drop) as server:
        given_up(server)


@pytest.mark.parametrize(("tls", "proxy_tls"), [(None, None), (certified(), None), (certified(), certified())])
def test_an_answer_that_drips_through_a_proxy_is_given_up(monkeypatch, tls, proxy_tls):
    with dripping(ENDLESS, b" ", tls) as server, proxy(tls=proxy_tls) as between:
        monkeypatch.setenv(f"{server.scheme}_proxy", f"{between.scheme}://localhost:{between.port}")
        given_up(server)
        assert len(between.requests) == len(server.requests) == 1


def test_a_proxy_that_drips_instead_of_a_tunnel_is_given_up(monkeypatch):
    with dripping(b"HTTP/1.1 200 OK\r\nX-Long: ", b"x") as between, hostile(print, tls=certified()) as server:
        monkeypatch.setenv("https_proxy", f"http://localhost:{between.port}")
        given_up(server)
        assert len(between.requests) == 1


def test_an_answer_that_drips_is_given_up_when_the_clock_ended_before_there_was_a_connection(monkeypatch):
    def look_up(*arguments, **options):
        time.sleep(1)
        return found(*arguments, **options)

    found = socket.getaddrinfo
    with dripping(ENDLESS, b" ") as server:
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        given_up(server)


def test_an_answer_that_is_too_large_is_given_up(monkeypatch):
    monkeypatch.setattr(iceberg_wire, "MOST_BYTES", 1 << 20)
    sent = []

    def say(connection, request):
        connection.sendall(HEAD + b"Content-Encoding: identity\r\nConnection: close\r\n\r\n")
        for piece in itertools.repeat(b" " * 65536):
            connection.sendall(piece)
            sent.append(len(piece))

    with hostile(say) as server:
        with refused(Unavailable) as caught:
            opened(server, 60)
        assert "more than 1048576 bytes" in caught.value.message
    assert sum(sent) < 64 << 20


def test_an_answer_that_is_packed_is_refused():
    packed = gzip.compress(CONFIG)
    with hostile(once(answer("200 OK", packed, "Content-Encoding: gzip"))) as server:
        with refused(Unavailable) as caught:
            opened(server, 60)
        assert "gzip" in caught.value.message
    assert b"accept-encoding: identity\r\n" in server.requests[0].lower()


@pytest.mark.parametrize("tls", [None, certified()])
def test_an_answer_that_comes_in_time_is_taken_whole_and_the_next_one_is_watched(tls):
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
