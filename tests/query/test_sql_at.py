"""A query over the past: of one table, of several, of one table at several seqs."""

import datetime as dt

import pytest

import strandline as sl
from folding import again, fold_vnodes
from strandline.query import sql
from strandline.tables.fold import KEPT_FOLDS
from strandline.tables.packing import Bundle, pack_files
from support import ITEMS, rows_of


@pytest.fixture
def past(lake, items, owners):
    """Ten commits of items, folded in the middle; and one of owners."""
    owners.upsert([{"id": 100, "owner": "x"}])
    for n in range(1, 11):
        items.upsert([{"id": n, "name": f"n{n}"}, {"id": 100, "name": f"v{n}"}])
        if n == 5:
            items.compact(full=True)
    return lake


def one(lake: sl.Lake, statement: str, **options: object) -> list[object]:
    return [tuple(row.values()) for row in lake.sql(statement, **options).to_pylist()]


def test_a_table_is_read_at_a_seq_in_the_query_or_beside_it(past):
    for seq in range(11):
        wanted = [(seq + (seq > 0),)]
        assert one(past, f"SELECT count(*) FROM items AT (VERSION => {seq})") == wanted
        assert one(past, "SELECT count(*) FROM items", at=seq) == wanted


def test_one_table_at_several_seqs_shows_each_of_them(past):
    statement = (
        "SELECT now.name AS x, a.name AS y, b.name AS z FROM items AS now JOIN items AS a AT (VERSION => 7) USING (id)"
        " JOIN items AS b AT (VERSION => 2) USING (id) WHERE id = 100"
    )
    for _ in range(2):
        assert one(past, statement) == [("v10", "v7", "v2")]
    assert one(past, statement, at=9) == [("v9", "v7", "v2")]


def test_the_order_of_the_seqs_in_the_query_does_not_matter(past):
    for seqs in ([2, 9, 6], [9, 6, 2], [6, 2, 9]):
        again = sl.Lake(past.storage.uri)
        parts = [f"SELECT {seq} AS s, count(*) AS n FROM items AT (VERSION => {seq})" for seq in seqs]
        assert sorted(one(again, " UNION ALL ".join(parts))) == [(2, 3), (6, 7), (9, 10)]


def test_a_table_is_read_at_a_few_seqs_and_no_more(past):
    many = " UNION ALL ".join(f"SELECT id FROM items AT (VERSION => {seq})" for seq in range(1, KEPT_FOLDS + 2))
    with pytest.raises(sl.Invalid) as failed:
        past.sql(many)
    assert failed.value.fields["table"] == "items"
    few = " UNION ALL ".join(f"SELECT id FROM items AT (VERSION => {seq})" for seq in range(1, KEPT_FOLDS + 1))
    assert past.sql(few).num_rows == sum(seq + 1 for seq in range(1, KEPT_FOLDS + 1))


def test_a_time_is_for_all_tables_of_the_query(past, items):
    at = dt.datetime.now(dt.UTC)
    items.delete([100])
    join = "SELECT count(*) FROM items JOIN owners USING (id)"
    assert one(past, join) == [(0,)]
    for moment in (at, at.isoformat(), at.replace(tzinfo=None)):
        assert one(past, join, at=moment) == [(1,)]
    assert one(past, f"SELECT count(*) FROM items AT (TIMESTAMP => TIMESTAMP '{at:%Y-%m-%d %H:%M:%S.%f}')") == [(11,)]


@pytest.mark.parametrize("at", [99, -1, True, "yesterday", "2999-01-01", dt.datetime(2999, 1, 1), 1.5])
def test_a_moment_that_never_was_is_refused(past, items, at):
    with pytest.raises(sl.Invalid):
        past.sql("SELECT count(*) FROM items", at=at)
    with pytest.raises(sl.Invalid):
        items.count(at=at)


def test_a_seq_is_refused_for_several_tables_but_each_may_have_its_own(past):
    with pytest.raises(sl.Invalid, match="owners"):
        past.sql("SELECT * FROM items, owners", at=1)
    both = "SELECT count(*) FROM items AS i AT (VERSION => 3), owners AS o AT (VERSION => 1)"
    assert one(past, both) == [(4,)]
    assert one(past, "SELECT count(*) FROM items, owners AS o AT (VERSION => 1)", at=3) == [(4,)]


@pytest.mark.parametrize(
    "clause", ["VERSION => 1 + 1", "VERSION => '1'", "VERSION => NULL", "TIMESTAMP => now()", "TIMESTAMP => 5"]
)
def test_at_holds_a_plain_number_or_a_plain_time(past, clause):
    with pytest.raises(sl.Invalid) as failed:
        past.sql(f"SELECT * FROM items AT ({clause})")
    assert failed.value.hint


@pytest.mark.parametrize("rival", ["folds", "packs"])
def test_a_table_that_is_read_twice_at_a_seq_may_be_folded_between_the_two_looks(lake, monkeypatch, rival):
    table = lake.create_table("twice", ITEMS, key=["id"], vnodes=4)
    table.upsert([{"id": n, "name": "old", "qty": n} for n in range(20)])
    table.upsert([{"id": n, "name": "new", "qty": n} for n in range(0, 20, 2)])
    look, looks = sql._merge_at, []

    def meddle(self, *moment):
        found = look(self, *moment)
        looks.append(found.seq)
        if len(looks) == 1 and rival == "folds":
            fold_vnodes(again(table), range(4))
        elif len(looks) == 1:
            log = again(table).log
            pack_files(log, [Bundle(tuple(log.refresh().by_seq), 1)])
        return found

    monkeypatch.setattr(sql, "_merge_at", meddle)
    both = "twice AS a JOIN twice AS b AT (VERSION => 2) USING (id)"
    found = lake.sql(f"SELECT a.name AS x, b.name AS y, count(*) FROM {both} GROUP BY ALL")
    assert looks == [2, 2]
    assert rows_of(found) == [("new", "new", 10), ("old", "old", 10)]
