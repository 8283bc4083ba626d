"""The server as a process: who is served, where it listens, and how it ends."""

import signal
import threading
import time

import httpx
import pytest

import strandline as sl
from receiving import NDJSON, arrow, chunk_of, lines, row_at, served
from strandline.server.run import serve
from strandline.state.tokens import Tokens
from support import ITEMS, by_id, refused, start_python

PLAIN = {"Content-Type": NDJSON}


@pytest.fixture(scope="module")
def hall(tmp_path_factory):
    """A lake and a server of it, for all tests that need nothing else."""
    lake = sl.Lake(tmp_path_factory.mktemp("hall") / "lake")
    lake.create_table("first", ITEMS)
    with served(lake.storage.uri) as server:
        yield lake, server


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_server_has_answered_what_it_took(lake, items, sign):
    acknowledged, refused_ids = set(), []

    def client(number):
        with httpx.Client(base_url=server.url, timeout=60) as own:
            for at in range(10_000):
                try:
                    answer = own.post("/ingest/items", content=lines({"id": number * 10_000 + at}), headers=PLAIN)
                except httpx.TransportError:
                    return
                (acknowledged.add if answer.status_code == 200 else refused_ids.append)(number * 10_000 + at)

    with served(lake.storage.uri) as server:
        threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        while len(acknowledged) < 40:
            time.sleep(0.01)
        assert server.stop(sign) == 0
        for thread in threads:
            thread.join()
    assert not refused_ids
    assert set(by_id(items)) == acknowledged


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_others_are_not_served_without_a_token(lake, items, host):
    with refused(host=host) as caught:
        serve(lake, tokens=Tokens(lake.state.database), host=host, port=0, on_listening=print)
    assert "strandline token add NAME --role writer" in caught.value.hint


def test_a_public_server_takes_tokens_only(lake, items):
    secret = Tokens(lake.state.database).add("edge", "writer")
    with served(lake.storage.uri, host="0.0.0.0") as server:
        here = server.url.replace("0.0.0.0", "127.0.0.1")
        with httpx.Client(base_url=here) as client:
            assert client.post("/ingest/items", content=lines({"id": 1}), headers=PLAIN).status_code == 401
            allowed = {**PLAIN, "Authorization": f"Bearer {secret}"}
            assert client.post("/ingest/items", content=lines({"id": 1}), headers=allowed).status_code == 200
            assert client.get("/status", headers=allowed).status_code == 403
            assert client.get("/healthz").status_code == 200
        assert server.stop() == 0


def test_an_address_that_is_taken_is_said_so(lake, items, hall):
    _, server = hall
    port = int(server.url.rsplit(":", 1)[1])
    with refused(sl.Unavailable, port=port):
        serve(lake, tokens=None, port=port, on_listening=print)
    with refused(host="no such host"):
        serve(lake, tokens=None, host="no such host", on_listening=print)


VERB = """
import sys
from strandline.cli import app
app(sys.argv[1:])
"""


def test_the_verb_says_where_it_listens_and_ends_with_0(lake, items):
    process = start_python(VERB, "serve", "--lake", lake.storage.uri, "--port", "0", "--no-evolve")
    try:
        line = process.stdout.readline()
        assert line.startswith(f"Serving {lake.storage.uri} on http://127.0.0.1:")
        url = line.split()[-1]
        assert httpx.post(f"{url}/ingest/items", content=lines({"id": 1}), headers=PLAIN).json()["rows"] == 1
        grown = arrow([row_at(0, 1, 0, id=2, more=1)])
        answer = httpx.post(f"{url}/ingest/items", content=grown, headers=chunk_of([0, 0, 1, 0, 2, 0], first=True))
        assert answer.status_code == 412
    finally:
        process.terminate()
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert [line.partition("strandline.server: ")[2].partition(",")[0] for line in err.splitlines()] == [
        "POST /ingest/items 200",
        "POST /ingest/items 412",
    ]
    assert by_id(items) == {1: None}


def test_a_lake_whose_tokens_were_all_revoked_is_not_served(lake, items):
    tokens = Tokens(lake.state.database)
    tokens.add("edge", "reader")
    tokens.revoke("edge")
    with refused(sl.Invalid, host="127.0.0.1"):
        serve(lake, tokens=tokens, port=0, on_listening=print)
