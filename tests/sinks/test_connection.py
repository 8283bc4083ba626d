"""Requests over TLS and through proxies: real sockets, real certificates, and peers that break off or stall."""

import base64
import json
import os
import re
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import unquote

import idna
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import strandline as sl
from forwarding import any_sink, batch_of, deliver, some_rows
from hostile import answer, hostile, once, read_request
from receiving import served
from relays import AUTHORITY, certified, proxy, tls_in_front_of
from strandline.sinks.forward import connection as wire
from strandline.sinks.http import HttpSink
from support import by_id, refused

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
PASSWORD = "pr0xy/p@ss:w0rd#1"
LOGIN = f"courier:{PASSWORD}"
LOGIN_IN_URL = "courier:pr0xy%2Fp%40ss%3Aw0rd%231"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_dir"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", AUTHORITY)


@pytest.fixture
def line():
    opened = wire.Wire(timeout_s=20)
    yield opened
    opened.close()


def asked(line, url, *, body=b"", **rest):
    return line.exchange("POST", url, rest.get("headers", {}), rest.get("params", {}), body)


def sent(url, **rest):
    batch = batch_of()
    return deliver(any_sink(url, patience="0s", timeout="5s", **rest), batch, some_rows(batch, count=3))


def lake_at(folder, rows):
    lake = sl.Lake(folder)
    lake.create_table("items", COLUMNS, key=["id"]).upsert([{"id": at, "name": f"n{at}"} for at in range(rows)])
    return lake


def again(connection, request, *answers):
    """Answer one request after the other on one connection."""
    for data in answers:
        connection.sendall(data)
        request = read_request(connection)
    return request


# --- TLS ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["https", "https through a proxy", "http through a proxy"])
def test_a_tick_reaches_a_receiver(tmp_path, monkeypatch, way):
    sl.Lake(tmp_path / "central").create_table("items", COLUMNS, key=["id"])
    lake = lake_at(tmp_path / "here", 50)
    with served(str(tmp_path / "central")) as central, tls_in_front_of(central.url) as front, proxy(LOGIN) as between:
        url = central.url if way.startswith("http ") else f"https://localhost:{front.port}"
        if "proxy" in way:
            name = "https_proxy" if way.startswith("https") else "http_proxy"
            monkeypatch.setenv(name, f"http://{LOGIN_IN_URL}@127.0.0.1:{between.port}")
        lake.sink("central", "items", to=HttpSink(f"{url}/ingest/items", timeout="20s"))
        lake.tick()
        lake.table("items").upsert([{"id": 7, "name": "changed"}, {"id": 50, "name": "new"}])
        lake.table("items").delete([{"id": 8}])
        lake.tick()
        assert lake.status().sinks[0].error is None
        assert bool(front.requests) == way.startswith("https")
        assert bool(between.requests) == ("proxy" in way)
    assert by_id(sl.Lake(tmp_path / "central").table("items")) == by_id(lake.table("items"))


@pytest.mark.parametrize(
    "name, trusts, said",
    [("localhost", None, "unable to get local issuer"), ("elsewhere", AUTHORITY, "not valid for")],
    ids=["an authority that nobody knows", "a certificate for another host"],
)
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_server_that_does_not_prove_who_it_is_gets_nothing(monkeypatch, name, trusts, said, host):
    monkeypatch.setenv("SSL_CERT_FILE", trusts or "")
    with hostile(once(answer("200 OK")), tls=certified(name)) as server:
        done = sent(f"https://{host}:{server.port}/x", token="very-private-token")
        assert type(done.error) is sl.Invalid
        assert "certificate" in str(done.error)
        assert said in str(done.error)
        assert "SSL_CERT_FILE" in done.error.hint
        assert (done.rows, done.dead, done.retries) == (0, [], 0)
        with refused(sl.Invalid, url=f"https://{host}:{server.port}/x"):
            deliver(HttpSink(f"https://{host}:{server.port}/x"), batch_of(), some_rows(batch_of()))
    assert server.requests == []


def test_authorities_that_cannot_be_read_are_named(monkeypatch, tmp_path):
    (tmp_path / "odd.pem").write_text("no certificate")
    with hostile(once(answer("200 OK")), tls=certified()) as server:
        for name in ("missing.pem", "odd.pem"):
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / name))
            done = sent(server.url)
            assert type(done.error) is sl.Invalid
            assert "SSL_CERT_FILE" in str(done.error)
    assert server.requests == []


def test_a_folder_of_authorities_is_read(monkeypatch, tmp_path, line):
    hashed = tmp_path / f"{_subject_hash()}.0"
    hashed.write_bytes(Path(AUTHORITY).read_bytes())
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    with hostile(once(answer("200 OK")), tls=certified()) as server:
        assert asked(line, server.url)[0] == 200


def _subject_hash():
    told = subprocess.run(["openssl", "x509", "-in", AUTHORITY, "-noout", "-hash"], capture_output=True, text=True)
    return told.stdout.strip()


def test_plain_http_where_tls_is_spoken_and_the_other_way_round():
    with hostile(once(answer("200 OK"))) as plain, hostile(once(answer("200 OK")), tls=certified()) as secure:
        for url in (f"https://localhost:{plain.port}/x", f"http://localhost:{secure.port}/x"):
            done = sent(url)
            assert type(done.error) is sl.Unavailable
            assert done.rows == 0


@pytest.mark.parametrize("told", [b"", b"\x16\x03\x03\x40\x00"], ids=["silence", "a record that drips"])
def test_a_server_that_stalls_in_the_handshake_is_bounded_by_the_clock(told):
    def say(connection, _):
        connection.sendall(told)
        while not server.over.wait(0.1):
            if told:
                connection.sendall(b"\x02")

    with hostile(say, is_reading=False) as server:
        started_s = time.monotonic()
        with pytest.raises(wire.NoAnswer, match="too long"):
            asked(wire.Wire(timeout_s=1), f"https://localhost:{server.port}/x")
        assert time.monotonic() - started_s < 30


def test_an_answer_that_drips_inside_one_record_is_bounded_by_the_clock():
    """TLS gives out a record when it is whole; until then each byte would start the wait anew."""

    def say(connection, _):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = certified().wrap_bio(incoming, outgoing, server_side=True)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(65536))
        connection.sendall(outgoing.read())
        tls.write(answer("200 OK", b"x" * 8000))
        record = outgoing.read()
        for at in range(len(record) - 1):
            connection.sendall(record[at : at + 1])
            if server.over.wait(0.05):
                return

    with hostile(say, is_reading=False) as server:
        started_s = time.monotonic()
        with pytest.raises(wire.NoAnswer, match="too long"):
            asked(wire.Wire(timeout_s=1), f"https://localhost:{server.port}/x")
        assert time.monotonic() - started_s < 30


CUT = {
    "before the answer": b"",
    "in the head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "in a body of known length": b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nabc",
    "between chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
}


@pytest.mark.parametrize("is_clean", [False, True], ids=["torn", "closed"])
@pytest.mark.parametrize("where", CUT)
def test_a_connection_that_ends_in_the_middle_of_an_answer_is_no_answer(where, is_clean):
    def say(connection, _):
        connection.sendall(CUT[where])
        if is_clean:
            connection.unwrap()

    with hostile(say, tls=certified()) as server:
        done = sent(server.url)
        assert type(done.error) is sl.Unavailable
        assert (done.rows, done.dead) == (0, [])
        assert len(server.requests) == 1


def test_an_answer_without_a_length_ends_with_its_connection(line):
    with hostile(once(b"HTTP/1.0 200 OK\r\n\r\nall of it"), tls=certified()) as server:
        assert asked(line, server.url)[::2] == (200, b"all of it")


def test_large_bodies_go_both_ways_over_tls(line):
    body = os.urandom(6 << 20)
    told = os.urandom(3 << 20)
    got = []

    def say(connection, request):
        got.append(request.partition(b"\r\n\r\n")[2])
        connection.sendall(answer("200 OK", told))

    with hostile(say, tls=certified()) as server:
        assert asked(line, server.url, body=body)[::2] == (200, told[: wire.ANSWER_BYTES])
        # What was left of the answer is not taken for the next one.
        assert asked(line, server.url, body=b"2")[::2] == (200, told[: wire.ANSWER_BYTES])
    assert got == [body, b"2"]


def test_a_server_that_reads_slowly_over_tls_gets_all_of_it(line):
    body = os.urandom(4 << 20)
    got = bytearray()

    def say(connection, _):
        while len(got.partition(b"\r\n\r\n")[2]) < len(body):
            got.extend(connection.recv(1 << 18))
            time.sleep(0.005)
        connection.sendall(answer("200 OK"))

    with hostile(say, is_reading=False, tls=certified()) as server:
        assert asked(line, server.url, body=body)[0] == 200
    assert got.partition(b"\r\n\r\n")[2] == body


def test_a_server_that_never_reads_over_tls_is_bounded_by_the_clock(monkeypatch):
    monkeypatch.setattr(wire, "SLOWEST_BYTES_S", 64 << 20)
    with hostile(lambda *_: server.over.wait(60), is_reading=False, tls=certified()) as server:
        started_s = time.monotonic()
        with pytest.raises(wire.NoAnswer, match="too long"):
            asked(wire.Wire(timeout_s=1), server.url, body=bytes(64 << 20))
        assert time.monotonic() - started_s < 30
        server.over.set()


@pytest.mark.parametrize("tls", [None, "localhost"])
def test_a_refusal_before_the_end_of_a_large_body_is_heard(line, tls):
    def say(connection, _):
        connection.recv(1000)
        connection.sendall(answer("413 Too Large", b"too large"))
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.2)

    with hostile(say, is_reading=False, tls=certified(tls) if tls else None) as server:
        assert asked(line, server.url, body=bytes(16 << 20))[::2] == (413, b"too large")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_tls_connection_is_used_again(line, version):
    context = certified()
    context.minimum_version = context.maximum_version = version
    answers = [answer("200 OK", b"1"), answer("200 OK", b"2"), answer("200 OK", b"3")]
    with hostile(lambda *args: again(*args, *answers), tls=context) as server:
        assert [asked(line, server.url)[2] for _ in range(3)] == [b"1", b"2", b"3"]
        assert len(server.requests) == 1
        # The server hangs up while nobody asks; the next request finds out before it is sent.
        line._socket.shutdown(socket.SHUT_WR)
        time.sleep(0.3)
        assert asked(line, server.url)[2] == b"1"
        assert len(server.requests) == 2


def test_what_comes_unasked_over_tls_is_not_the_next_answer(line):
    def say(connection, _):
        connection.sendall(answer("200 OK", b"1"))
        time.sleep(0.2)
        connection.sendall(answer("200 OK", b"unasked"))
        connection.recv(65536)

    with hostile(say, tls=certified()) as server:
        for _ in range(2):
            assert asked(line, server.url)[2] == b"1"
            time.sleep(0.5)
        assert len(server.requests) == 2


# --- addresses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [None, "localhost"])
def test_an_address_of_version_6(line, monkeypatch, tls):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no ::1 here: {error}")
    with (
        hostile(once(answer("200 OK", b"here")), host="::1", tls=certified(tls) if tls else None) as server,
        proxy() as between,
    ):
        assert asked(line, server.url)[2] == b"here"
        assert f"\r\nHost: [::1]:{server.port}\r\n".encode() in server.requests[0]
        monkeypatch.setenv(f"{server.scheme}_proxy", f"127.0.0.1:{between.port}")
        assert asked(line, server.url)[2] == b"here"
        target = f"[::1]:{server.port}" if tls else server.url
        assert between.requests[0].split(b" ")[1] == target.encode()
        monkeypatch.setenv("no_proxy", "::1")
        assert asked(line, server.url)[2] == b"here"
        assert len(between.requests) == 1


def test_an_address_that_says_nothing_leaves_time_for_the_next_one(monkeypatch):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, hostile(once(answer("200 OK"))) as server:
        waiting = []
        for _ in range(8):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(full.getsockname())
        places = [full.getsockname(), ("127.0.0.1", server.port)]
        told = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: told)
        assert asked(wire.Wire(timeout_s=4), "http://two-addresses.example/x")[0] == 200
        for each in waiting:
            each.close()


def test_a_host_and_a_path_in_any_writing(line, monkeypatch):
    with hostile(once(answer("200 OK"))) as server:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
        for host, shown in (("bücher.example", "xn--bcher-kva.example"), ("straße.example", "xn--strae-oqa.example")):
            assert idna.encode(host).decode() == shown
            assert asked(line, f"http://{host}/größe/a b%2Fc", params={"q": "ä&b =/"})[0] == 200
            line_, _, head = server.requests.pop().partition(b"\r\n")
            target = f"http://{shown}/gr%C3%B6%C3%9Fe/a%20b%2Fc?q=%C3%A4%26b%20%3D%2F"
            assert line_ == f"POST {target} HTTP/1.1".encode()
            assert f"Host: {shown}\r\n".encode() in head


@pytest.mark.parametrize("host", ["a..b", "x" * 300, ".example", "-ü-.example", "ü" * 80])
def test_a_host_that_cannot_be_is_no_answer(host):
    for scheme in ("http", "https"):
        with pytest.raises(wire.NoAnswer):
            asked(wire.Wire(timeout_s=5), f"{scheme}://{host}/x")


def test_a_query_is_given_as_params_only(line):
    with refused(sl.Invalid):
        HttpSink("https://h.example/x?y=1", receiver="any")
    with hostile(once(answer("200 OK"))) as server:
        done = sent(server.url, params={"y": "1"})
        assert done.error is None
        assert server.requests[0].startswith(b"POST /ingest/items?y=1 HTTP/1.1\r\n")


# --- proxies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("login", [None, LOGIN])
@pytest.mark.parametrize("prefix", ["http://", "HTTP://", ""])
def test_a_request_goes_through_the_proxy(line, monkeypatch, scheme, login, prefix):
    answers = [answer("200 OK", b"1"), answer("200 OK", b"2")]
    tls = certified() if scheme == "https" else None
    with hostile(lambda *args: again(*args, *answers), tls=tls) as server, proxy(login) as between:
        user = f"{LOGIN_IN_URL}@" if login else ""
        monkeypatch.setenv(f"{scheme}_proxy", f"{prefix}{user}127.0.0.1:{between.port}/")
        # Over a proxy, too, a connection is used again.
        assert [asked(line, server.url, body=b"abc")[2] for _ in range(2)] == [b"1", b"2"]
        assert len(between.requests) == len(server.requests) == 1
        assert f"\r\nHost: 127.0.0.1:{server.port}\r\n".encode() in server.requests[0]
        start = f"CONNECT 127.0.0.1:{server.port} " if tls else f"POST {server.url} "
        assert between.requests[0].startswith(start.encode())
        if tls:
            # The login is the proxy's, and the request is the server's.
            assert b"Proxy-Authorization" not in server.requests[0]
            assert b"abc" not in between.requests[0]
        # Another way to the same server is another connection.
        monkeypatch.setenv("NO_PROXY", "other.example, 127.0.0.1")
        assert asked(line, server.url)[2] == b"1"
        assert (len(between.requests), len(server.requests)) == (1, 2)


@pytest.mark.parametrize("text", ["socks5://courier:{0}@127.0.0.1:1", "https://courier:{0}@127.0.0.1:1",
                                  "http://courier:{0}@127.0.0.1:port", "http://courier:{0}@", "courier:{0}@[::1",
                                  "http://courier:{0}@127.0.0.1:1"])  # fmt: skip
def test_a_proxy_that_cannot_be_used_is_said_without_its_login(monkeypatch, text):
    monkeypatch.setenv("http_proxy", text.format(PASSWORD))
    done = sent("http://h.example/x")
    assert type(done.error) is sl.Unavailable
    assert "proxy" in str(done.error)
    assert PASSWORD not in str(done.error)


PROXY_ANSWERS = {
    "407": answer("407 Proxy Authentication Required", b"who?"),
    "502": answer("502 Bad Gateway"),
    "a redirect": answer("302 Found", b"", "Location: http://127.0.0.1:1/"),
    "nothing": b"",
    "garbage": b"SSH-2.0-OpenSSH_9.6\r\n",
    "only a continue": b"HTTP/1.1 100 Continue\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nX: ",
    "headers without end": b"HTTP/1.1 200 OK\r\n" + b"X-Long: y\r\n" * 20_000,
    "no TLS behind it": b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("name", PROXY_ANSWERS)
def test_a_proxy_that_opens_no_tunnel_is_no_answer(monkeypatch, name):
    with hostile(once(PROXY_ANSWERS[name])) as between:
        monkeypatch.setenv("https_proxy", f"http://{LOGIN_IN_URL}@127.0.0.1:{between.port}")
        done = sent("https://h.example/x", token="very-private-token")
        assert type(done.error) is sl.Unavailable
        assert (done.rows, done.dead) == (0, [])
        assert name == "no TLS behind it" or f"proxy 127.0.0.1:{between.port}" in str(done.error)
        assert not any(b"very-private-token" in request for request in between.requests)


def test_a_tunnel_opens_after_a_continue(line, monkeypatch):
    def say(connection, _):
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        with certified().wrap_socket(connection, server_side=True) as inside:
            read_request(inside)
            inside.sendall(answer("200 OK", b"inside"))

    with hostile(say) as between:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{between.port}")
        assert asked(line, "https://localhost/x")[2] == b"inside"


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nX: ", b""])
def test_a_proxy_that_drips_is_bounded_by_the_clock(monkeypatch, head):
    def say(connection, _):
        connection.sendall(head)
        while not server.over.wait(0.1):
            connection.sendall(b"x" if head else b"HTTP/1.1 100 Continue\r\n\r\n")

    with hostile(say) as server:
        for scheme in ("http", "https"):
            monkeypatch.setenv(f"{scheme}_proxy", f"127.0.0.1:{server.port}")
            started_s = time.monotonic()
            with pytest.raises(wire.NoAnswer):
                asked(wire.Wire(timeout_s=1), f"{scheme}://h.example/x")
            assert time.monotonic() - started_s < 30


@pytest.mark.parametrize("status", ["407 No", "400 Bad", "503 Busy", "302 Found"])
def test_the_login_of_a_proxy_is_never_written_down(tmp_path, monkeypatch, status):
    def say(connection, request):
        told = request.partition(b"\r\n\r\n")[0] + f"\n{LOGIN} {LOGIN_IN_URL} {PASSWORD.encode().hex()}".encode()
        connection.sendall(answer(status, told, f"Location: http://{LOGIN_IN_URL}@other.example/"))

    lake = lake_at(tmp_path / "lake", 3)
    with hostile(say) as between:
        monkeypatch.setenv("http_proxy", f"http://{LOGIN_IN_URL}@127.0.0.1:{between.port}")
        lake.sink("out", "items", to=any_sink("http://h.example/x", patience="0s", timeout="5s"))
        report = lake.tick()
        assert b"Proxy-Authorization: Basic " in between.requests[0]
    shown = [repr(report), json.dumps(lake.status().to_dict(), default=str), repr(lake.state.letters.all())]
    kept = b"".join(path.read_bytes() for path in (tmp_path / "lake").rglob("*") if path.is_file())
    for secret in (PASSWORD, LOGIN_IN_URL, base64.b64encode(LOGIN.encode()).decode(), PASSWORD.encode().hex()):
        assert not any(secret in text for text in shown)
        assert secret.encode() not in kept


def test_threads_with_lines_of_their_own_share_what_is_trusted():
    with hostile(once(answer("200 OK")), tls=certified()) as server:
        done = []
        threads = [
            threading.Thread(target=lambda: done.append(asked(wire.Wire(timeout_s=20), server.url)[0]))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert done == [200] * 8


@given(st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="?#"), max_size=30))
@example("%zz%4%")
@example("%2F%C3%A4")
def test_a_path_arrives_as_it_was_written(path):
    with hostile(once(answer("200 OK"))) as server:
        asked(wire.Wire(timeout_s=20), f"{server.url}/{path}")
        target = server.requests[0].split(b" ")[1].decode("ascii")
    assert unquote(target) == unquote(f"/ingest/items/{path}")
    assert not re.search("%(?![0-9A-Fa-f]{2})", target)


def test_a_server_without_tls_is_told_as_such_and_no_class_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reply():
            there, _ = listener.accept()
            with there:
                there.recv(100)
                there.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=reply)
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/"
        with pytest.raises(wire.NoAnswer, match="give its address as http://, not https://"):
            wire.Wire(timeout_s=5).exchange("GET", url, {}, {}, b"")
        thread.join()
    with pytest.raises(wire.NoAnswer, match=r"^Connection refused$"):
        wire.Wire(timeout_s=5).exchange("GET", "http://127.0.0.1:9/", {}, {}, b"")
