"""A request that is repeated under its key counts once; the key with another body is refused."""

import asyncio
import gzip

import pytest

import receiving
import strandline as sl
from receiving import ARROW, NDJSON, arrow, asking, chunk_of, error_of, lines, post, row_at
from strandline.server.app import make_app
from strandline.server.idempotency import HashedBody, Key
from support import by_id, nothing_written, refused

client = receiving.client


def test_a_repeated_key_is_answered_with_the_first_commit(client, items):
    first = post(client, [{"id": 1, "name": "a"}], **{"Idempotency-Key": "k"}).json()
    items.upsert([{"id": 1, "name": "newer"}])
    again = post(client, [{"id": 1, "name": "a"}], **{"Idempotency-Key": "k"}).json()
    assert again == {**first, "repeated": True}
    assert by_id(items) == {1: "newer"}
    assert post(client, [{"id": 1, "name": "b"}], **{"Idempotency-Key": "l"}).json()["seq"] == 3


def test_a_key_with_another_body_is_refused_and_says_where_the_first_one_is(lake, items):
    rows = lines({"id": 1, "name": "a"})
    others = [
        (lines({"id": 2, "name": "b"}), {}),
        (rows + b"\n", {}),
        (gzip.compress(rows), {"Content-Encoding": "gzip"}),
        (arrow([{"id": 1, "name": "a"}]), {"Content-Type": ARROW}),
        (b"", {}),
        (b"no JSON", {}),
    ]
    for _ in range(2):
        with asking(make_app(lake)) as client:  # what a key stands for is in the log, not in the process
            told = {"Content-Type": NDJSON, "Idempotency-Key": "k"}
            post(client, rows, **told)
            with nothing_written(items):
                for content, headers in others:
                    error = error_of(post(client, content, **{**told, **headers}), 422)
                    assert (error["kind"], error["seq"]) == ("Invalid", 1)
                assert post(client, rows, **told).json() == {"rows": 1, "skipped": 0, "seq": 1, "repeated": True}
    assert by_id(items) == {1: "a"}


def test_a_key_that_was_refused_or_brought_nothing_stands_for_no_body(client, items):
    told = {"Content-Type": NDJSON, "Idempotency-Key": "k"}
    error_of(post(client, lines({"id": "x"}), **told), 422)
    error_of(post(client, b"no JSON", **told), 400)
    assert post(client, b"", **told).json()["rows"] == 0
    assert post(client, lines({"id": 1}), **told).json()["seq"] == 1


@pytest.mark.parametrize("has_length", [True, False])
def test_what_was_done_is_answered_so_by_a_server_that_would_refuse_it_now(lake, items, has_length):
    """Smaller limits, and a table that has become another one."""
    keyed = lines(*({"id": n, "name": "x" * 50} for n in range(100)))
    placed = arrow([row_at(0, 1, n, id=n, name=f"{n}" * 50) for n in range(100)], compression=None)
    sent = [
        (keyed, {"Content-Type": NDJSON, "Idempotency-Key": "k"}),
        (placed, chunk_of((0, 0, 1, 0, 2, 0), first=True)),
    ]

    async def in_pieces(content):
        for at in range(0, len(content), 500):
            yield content[at : at + 500]

    def told(content):
        return content if has_length else in_pieces(content)

    with asking(make_app(lake)) as client:
        done = [client.post("/ingest/items", content=told(c), headers=headers).json() for c, headers in sent]
    items.drop_column("name")
    for limits, is_counted in (({}, True), ({"body_bytes": 1000, "queue_bytes": 1000}, False)):
        with asking(make_app(lake, **limits)) as client, nothing_written(items):
            again = [client.post("/ingest/items", content=told(c), headers=headers).json() for c, headers in sent]
            count = 100 if is_counted else None
            assert again == [{**done[0], "rows": count, "repeated": True}, {"rows": 0, "skipped": count, "seq": None}]
            other = client.post("/ingest/items", content=told(keyed + b"\n"), headers=sent[0][1])
            assert error_of(other, 422)["seq"] == 1
            if not is_counted:
                new = {**sent[0][1], "Idempotency-Key": "l"}
                error_of(client.post("/ingest/items", content=told(keyed), headers=new), 413)


@pytest.mark.parametrize("key", ["", "x" * 257])
def test_a_key_has_a_length(client, items, key):
    error_of(post(client, [{"id": 1}], **{"Idempotency-Key": key}), 400)


def test_a_key_knows_its_commit_and_no_other_body():
    key = Key("k", 123)
    assert key.seq_in({}) is None
    assert key.seq_in({key.app: key.packed(9)}) == 9
    with refused(sl.Invalid, seq=9):
        key.seq_in({key.app: Key("k", 124).packed(9)})


def test_the_digest_is_of_the_bytes_and_of_how_they_are_written():
    async def digest_of(pieces, *how):
        async def stream():
            for piece in pieces:
                yield piece

        summed = HashedBody(stream(), *how)
        assert b"".join([piece async for piece in summed.pieces()]) == b"".join(pieces)
        return summed.digest

    whole = asyncio.run(digest_of([b"abc"], "arrow"))
    assert asyncio.run(digest_of([b"a", b"bc"], "arrow")) == whole
    assert asyncio.run(digest_of([b"abc"], "ndjson")) != whole
    assert asyncio.run(digest_of([b"abd"], "arrow")) != whole
