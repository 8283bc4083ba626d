"""A request's body: taken in up to a limit, and decoded in a time that grows with its length."""

import asyncio
import contextlib
import gzip
import time

import pyarrow as pa
import pytest

import strandline as sl
from receiving import ARROW, NDJSON, arrow, light, lines
from strandline.server.body import BodyFormat, decode, discard, receive
from strandline.server.memory_cost import Weight
from strandline.sinks.forward.refusal import Refusal
from support import ITEMS


def _cpu_s(act):
    best = []
    for _ in range(3):
        start = time.process_time()
        act()
        best.append(time.process_time() - start)
    return min(best)


def _tried(data, form, schema=ITEMS):
    def act():
        with contextlib.suppress(Refusal, sl.Invalid):
            decode(data, form, Weight(1 << 40, 1 << 40, 1 << 40)).rows(schema)

    return act


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda n: (b"{" + b",".join(b'"n%d":1' % i for i in range(n)) + b"}", False, False), 20_000),
        (lambda n: (b"{" + b",".join(b'"id":1' for i in range(n)) + b"}", False, False), 20_000),
        (lambda n: (gzip.compress(b"") * n, False, True), 2_500),
        (lambda n: (arrow(pa.table({f"c{i}": pa.array([1]) for i in range(n)})), True, False), 3_000),
        (lambda n: (b'{"id":' + b"9" * n + b"}", False, False), 1_000_000),
        (lambda n: (b'{"id":"x"}\n' * n, False, False), 50_000),
    ],
    ids=["names", "one name", "members", "columns", "digits", "bad rows"],
)
def test_twice_the_body_takes_about_twice_the_time(make, size):
    def spent(n):
        data, is_arrow, is_gzip = make(n)
        return _cpu_s(_tried(data, BodyFormat(is_arrow, is_gzip)))

    # What grows with the square takes 16 times as long.
    assert spent(4 * size) < 9 * max(spent(size), 0.004)


def status_of(act):
    with pytest.raises(Refusal) as caught:
        act()
    return caught.value.status


@pytest.mark.parametrize(
    ("kind", "encoding", "form"),
    [
        (ARROW, None, BodyFormat(True, False)),
        (f"{NDJSON}; charset=utf-8", " GZIP ", BodyFormat(False, True)),
        (ARROW.upper(), "identity", BodyFormat(True, False)),
    ],
)
def test_a_form_is_read_from_its_headers(kind, encoding, form):
    assert BodyFormat.of(kind, encoding) == form
    assert len({BodyFormat(a, b).name for a in (True, False) for b in (True, False)}) == 4


@pytest.mark.parametrize(
    ("kind", "encoding"), [(None, None), ("text/csv", None), (ARROW, "br"), (NDJSON, "gzip, gzip")]
)
def test_a_form_that_is_not_known_is_unsupported(kind, encoding):
    assert status_of(lambda: BodyFormat.of(kind, encoding)) == 415


def test_the_same_rows_come_in_every_form():
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    for is_arrow, data in ((True, arrow(rows)), (False, lines(*rows))):
        for is_gzip in (True, False):
            content = gzip.compress(data[:9]) + gzip.compress(data[9:]) if is_gzip else data
            body = decode(content, BodyFormat(is_arrow, is_gzip), light())
            assert (body.count, body.is_typed) == (2, is_arrow)
            assert body.rows(ITEMS).select(["id", "name"]).to_pylist() == rows


@pytest.mark.parametrize(
    "data",
    [b"no gzip", gzip.compress(b"{}", mtime=0)[:-3], gzip.compress(b"{}", mtime=0) + b"x"],
    ids=["other", "cut", "longer"],
)
def test_a_body_that_is_not_gzip_is_malformed(data):
    assert status_of(lambda: decode(data, BodyFormat(False, True), light())) == 400


def test_many_gzip_members_are_too_many():
    assert status_of(lambda: decode(gzip.compress(b"") * 10_001, BodyFormat(False, True), light())) == 413


def test_a_body_is_held_as_it_comes_and_ends_at_its_limit():
    async def stream():
        for _ in range(4):
            yield b"x" * 10

    held = []
    assert len(asyncio.run(receive(stream(), most=40, hold=held.append))) == 40
    assert held == [10, 20, 30, 40]
    assert status_of(lambda: asyncio.run(receive(stream(), most=39, hold=held.append))) == 413
    asyncio.run(discard(stream()))
