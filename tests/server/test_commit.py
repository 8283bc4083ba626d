"""One commit for many requests: all land in order and once, and one never harms another."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

import receiving
import strandline as sl
from receiving import arrow, error_of, light, positions, post, row_at, send
from strandline.server.body import BodyFormat, decode
from strandline.server.commit import Outcome, commit_posts
from strandline.server.idempotency import Key
from strandline.server.requests import make_posts
from strandline.sinks.forward.message import ChunkHeader
from support import Oracle, by_id, nothing_written, refused

client = receiving.client


def posts(table, rows, *, key=None, chunk=None):
    body = decode(arrow(rows), BodyFormat(True, False), light())
    return make_posts(
        body.rows(table.schema), table.definition, chunk=chunk, key=None if key is None else Key(key, len(rows))
    )


def test_a_group_is_one_commit_in_the_order_of_arrival(items):
    group = [
        *posts(items, [{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]),
        *posts(items, [{"id": 1, "_op": "delete"}, {"id": 3, "_op": "delete"}]),
        *posts(items, [{"id": 3, "name": "c"}, {"id": 2, "name": "c"}]),
    ]
    assert commit_posts(items.log, group) == [Outcome(2, seq=1), Outcome(2, seq=1), Outcome(2, seq=1)]
    assert items.head == 1
    assert by_id(items) == {2: "c", 3: "c"}


def test_one_key_twice_in_a_group_counts_once_and_both_are_answered(items):
    group = [*posts(items, [{"id": 1}], key="k"), *posts(items, [{"id": 2}]), *posts(items, [{"id": 1}], key="k")]
    assert commit_posts(items.log, group) == [
        Outcome(1, seq=1),
        Outcome(1, seq=1),
        Outcome(1, seq=1, is_repeated=True),
    ]
    assert items.history()[-1].rows == 2


def test_one_key_with_two_bodies_in_a_group_takes_the_first_and_refuses_the_other(items):
    group = [
        *posts(items, [{"id": 1}], key="k"),
        *posts(items, [{"id": 8}, {"id": 9}], key="k"),
        *posts(items, [{"id": 2}]),
    ]
    first, other, third = commit_posts(items.log, group)
    assert (first, third) == (Outcome(1, seq=1), Outcome(1, seq=1))
    assert isinstance(other, sl.Invalid)
    assert sorted(by_id(items)) == [1, 2]
    later = [*posts(items, [{"id": 8}, {"id": 9}], key="k"), *posts(items, [{"id": 1}], key="k")]
    with nothing_written(items):
        other, again = commit_posts(items.log, later)
    assert isinstance(other, sl.Invalid) and other.fields["seq"] == 1
    assert again == Outcome(1, seq=1, is_repeated=True)


def test_chunks_of_a_group_see_those_before_them_and_a_gap_harms_no_other(items):
    def chunk(start, end, first=False):
        return ChunkHeader.parse(
            json.dumps({"version": 1, "sink": "s", "life": 1, "is_first": first, "ranges": [[0, 0, *start, *end]]})
        )

    group = [
        *posts(items, [row_at(0, 1, 0, id=1)], chunk=chunk((1, 0), (2, 0), True)),
        *posts(items, [row_at(0, 3, 0, id=3)], chunk=chunk((3, 0), (4, 0))),
        *posts(items, [row_at(0, 1, 0, id=1), row_at(0, 2, 0, id=2)], chunk=chunk((1, 0), (3, 0))),
        *posts(items, [row_at(0, 1, 0, id=1)], chunk=chunk((1, 0), (2, 0), True)),
    ]
    first, gap, second, repeated = commit_posts(items.log, group)
    assert (first, second, repeated) == (Outcome(1, seq=1), Outcome(1, 1, seq=1), Outcome(0, 1))
    assert isinstance(gap, sl.Conflict)
    assert gap.fields["positions"] == [[0, 0, 2, 0]]
    assert sorted(by_id(items)) == [1, 2]


def test_rows_checked_before_a_column_was_added_share_a_commit_with_later_ones(items):
    early = posts(items, [{"id": 1, "name": "a"}])
    items.evolve(pa.schema([("score", pa.float64()), ("qty", pa.int64())]))
    late = posts(items, [{"id": 2, "name": "b", "score": 1.0, "qty": 1 << 40}])
    assert commit_posts(items.log, [*early, *late]) == [Outcome(1, seq=2), Outcome(1, seq=2)]
    found = sorted(items.to_arrow(columns=["id", "score"]).to_pylist(), key=lambda row: row["id"])
    assert found == [{"id": 1, "score": None}, {"id": 2, "score": 1.0}]


def test_a_dropped_table_takes_nothing_more(lake, items):
    waiting = posts(items, [{"id": 1}])
    lake.drop("items")
    with refused(sl.NotFound):
        commit_posts(items.log, waiting)


def test_handles_that_race_with_one_chunk_apply_it_once(lake, items):
    """Each has a view of the log of its own, as processes have."""
    tables = [sl.Lake(lake.storage.uri).table("items") for _ in range(4)]
    for seq in range(1, 6):
        facts = {"version": 1, "sink": "s", "life": 1, "is_first": seq == 1, "ranges": [[0, 1, seq, 0, seq + 1, 0]]}
        chunk = ChunkHeader.parse(json.dumps(facts))
        rows = [row_at(0, seq, 0, id=seq), row_at(1, seq, 0, id=-seq)]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda t, c=chunk, r=rows: commit_posts(t.log, posts(t, r, chunk=c))[0], tables))
        assert sorted((outcome.rows, outcome.skipped) for outcome in found) == [(0, 2)] * 3 + [(2, 0)]
    assert items.head == 5
    assert [entry.rows for entry in items.history()[1:]] == [2] * 5


VERSIONED = pa.schema([("id", pa.int64()), ("name", pa.string()), ("v", pa.int64())])


def test_with_versions_a_chunk_says_in_several_commits_what_one_cannot(lake, client):
    table = lake.create_table("versioned", VERSIONED, key=["id"], version="v")
    oracle = Oracle(["id"], "v")
    dice = random.Random(3)
    first = True
    for start in range(1, 60, 10):
        rows = []
        for seq in range(start, start + 10):
            row = {"id": dice.randint(1, 3), "name": str(seq), "v": dice.randint(1, 9)}
            if dice.random() < 0.4:
                oracle.delete([row])
                rows.append(row_at(0, seq, 0, "delete", id=row["id"], name=None, v=None))
            else:
                oracle.upsert([row])
                rows.append(row_at(0, seq, 0, **row))
        answer = send(client, [[0, 0, start, 0, start + 10, 0]], rows, first=first, table="versioned")
        assert answer.json()["rows"] == 10
        assert answer.json()["seq"] == table.head
        first = False
    assert by_id(table) == {row["id"]: row["name"] for row in oracle.copy()}
    assert table.head > 6
    assert positions(client, "versioned") == [[0, 0, 61, 0]]


def test_no_part_of_a_chunk_with_versions_is_applied_without_those_before_it(lake):
    table = lake.create_table("versioned", VERSIONED, key=["id"], version="v")
    rows = [
        row_at(0, 1, 0, id=1, v=5), row_at(0, 2, 0, "delete", id=1), row_at(0, 3, 0, id=1, v=1),
        row_at(1, 1, 0, "delete", id=1), row_at(1, 2, 0, id=1, v=2),
    ]  # fmt: skip
    facts = {"version": 1, "sink": "s", "life": 1, "is_first": True, "ranges": [[0, 2, 1, 0, 9, 0]]}
    parts = posts(table, rows, chunk=ChunkHeader.parse(json.dumps(facts)))
    assert [part.rows.num_rows for part in parts] == [2, 2, 1]
    assert [part.chunk.is_first for part in parts] == [True, False, False]
    for late in parts[1:]:
        assert isinstance(commit_posts(table.log, [late])[0], sl.Conflict)
    assert [commit_posts(table.log, [part])[0].rows for part in parts] == [2, 2, 1]
    assert [row["v"] for row in table.to_arrow().to_pylist()] == [2]


def test_a_chunk_without_rows_moves_the_positions_of_a_table_with_versions(lake, client):
    lake.create_table("versioned", VERSIONED, key=["id"], version="v")
    answer = send(client, [[0, 3, 1, 0, 9, 0]], [], first=True, table="versioned")
    assert answer.json() == {"rows": 0, "skipped": 0, "seq": 1}
    assert positions(client, "versioned") == [[0, 3, 9, 0]]


def test_with_versions_a_group_ends_before_an_upsert_of_a_deleted_key(lake):
    table = lake.create_table("versioned", VERSIONED, key=["id"], version="v")
    table.upsert([{"id": 1, "name": "high", "v": 9}])
    group = [
        *posts(table, [{"id": 1, "_op": "delete"}]),
        *posts(table, [{"id": 2, "name": "other", "v": 1}]),
        *posts(table, [{"id": 1, "name": "low", "v": 1}]),
        *posts(table, [{"id": 1, "_op": "delete"}]),
    ]
    assert commit_posts(table.log, group) == [Outcome(1, seq=2), Outcome(1, seq=2)]
    assert commit_posts(table.log, group[2:]) == [Outcome(1, seq=3), Outcome(1, seq=3)]
    assert by_id(table) == {2: "other"}


def test_with_versions_one_request_cannot_revive_what_it_deletes(lake, client):
    table = lake.create_table("versioned", VERSIONED, key=["id"], version="v")
    rows = [{"id": 1, "v": 3}, {"id": 1, "_op": "delete"}, {"id": 2, "v": 1}, {"id": 1, "v": 1}]
    with nothing_written(table):
        assert error_of(post(client, rows, "versioned"), 422)["row"] == 3
    assert post(client, rows[:3], "versioned").json()["rows"] == 3
    assert sorted(by_id(table)) == [2]
