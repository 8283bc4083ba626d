"""Rows that are past their time: hidden from the seq that says so, on every path, and never a row too many."""

import datetime as dt

import pyarrow as pa
import pytest

import strandline as sl
from strandline.tables import horizon as expiry
from support import ITEMS, refused, rows_of

UTC = dt.UTC
MOMENTS = [
    None,
    dt.datetime(1, 1, 1),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    dt.datetime(1970, 1, 1),
    dt.datetime(2026, 3, 29, 1, 59, 59, 999999),
    dt.datetime(2026, 3, 29, 2),
    dt.datetime(2026, 3, 29, 2, 0, 0, 1),
    dt.datetime(2026, 3, 30),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
]
KINDS = {"date": pa.date32(), "zoned": pa.timestamp("us", tz="UTC"), "plain": pa.timestamp("us")}
HORIZONS = [
    dt.datetime(1, 1, 1),
    dt.datetime(1969, 12, 31),
    dt.date(1970, 1, 1),
    dt.datetime(2026, 3, 29, 2),
    dt.datetime(2026, 3, 29, 4, 0, 0, 1, tzinfo=dt.timezone(dt.timedelta(hours=2))),
    dt.date(2026, 3, 30),
    dt.datetime(2026, 3, 30, 0, 0, 0, 1),
]


def value_of(moment, kind):
    if moment is None:
        return None
    return moment.date() if kind == "date" else moment.replace(tzinfo=UTC) if kind == "zoned" else moment


def instant(value):
    """Any of the values as a plain UTC time."""
    if not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day)
    return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)


def schema_of(kind):
    return pa.schema([("id", pa.int64()), ("at", KINDS[kind]), ("text", pa.string())])


def rows_for(kind):
    return [{"id": n, "at": value_of(moment, kind), "text": f"t{n % 3}"} for n, moment in enumerate(MOMENTS)]


def alive(rows, horizon):
    return {row["id"] for row in rows if row["at"] is None or instant(row["at"]) >= instant(horizon)}


def ids(table):
    return set(table["id"].to_pylist())


def spark_ids(frame):
    # The id alone: PySpark itself cannot hand over the first and the last times that there are.
    return {row.id for row in frame.select("id").collect()}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_expire_the_same_on_every_path_and_in_every_type(spark, make_table, kind):
    rows = rows_for(kind)
    table = make_table(schema_of(kind), key=["id"], time="at", vnodes=2)
    table.upsert(rows[::2])
    table.compact(full=True)
    table.upsert(rows[1::2])
    for horizon in HORIZONS:
        before = table.head
        was = ids(table.to_arrow())
        assert table.expire(horizon) == before + 1
        expected = alive(rows, horizon)
        assert ids(table.to_arrow()) == expected
        assert ids(table.to_arrow(at=before)) == was, "the past is what it was"
        assert spark_ids(table.to_spark()) == expected
        assert spark_ids(table.to_spark(at=before)) == was
        for where, fits in (
            ("text = 't1'", lambda row: row["text"] == "t1"),
            ("at IS NULL OR id > 4", lambda row: row["at"] is None or row["id"] > 4),
            ("at IS NOT NULL", lambda row: row["at"] is not None),
            ("id = 3", lambda row: row["id"] == 3),
            ("id = 4", lambda row: row["id"] == 4),
        ):
            wanted = expected & {row["id"] for row in rows if fits(row)}
            assert ids(table.to_arrow(columns=["id"], where=where)) == wanted, where
            found = table.to_spark(columns=["text", "id"], where=where)
            assert found.columns == ["text", "id"]
            assert spark_ids(found) == wanted, where
        assert set(table.to_arrow(columns=["text"])["text"].to_pylist()) == {f"t{n % 3}" for n in expected}
    assert sum(batch.num_rows for batch in table.to_batches(columns=["text"])) == len(expected)
    table.compact(full=True)
    assert ids(table.to_arrow()) == expected
    assert spark_ids(table.to_spark()) == expected
    assert sum(file.rows for file in table.baseline.refresh().files()) == len(expected), "the rows are dropped"
    fresh = sl.Lake(table.log.storage.uri).table(table.name)
    assert ids(fresh.to_arrow()) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_fold_before_and_after_an_expiry_changes_no_seq(make_table, kind):
    rows = rows_for(kind)
    table = make_table(schema_of(kind), key=["id"], time="at", vnodes=2)
    for at, horizon in enumerate(HORIZONS):
        table.upsert(rows[at : at + 3])
        if at % 2:
            table.compact(full=True)
        table.expire(horizon)
    table.upsert(rows)
    expected = {seq: rows_of(table.to_arrow(at=seq)) for seq in range(table.head + 1)}
    assert ids(table.to_arrow()) == alive(rows, HORIZONS[-1]), "a row that comes late is hidden as well"
    table.compact(full=True)
    assert table.compact(full=True).vnodes == 0
    for reader in (table, sl.Lake(table.log.storage.uri).table(table.name)):
        assert {seq: rows_of(reader.to_arrow(at=seq)) for seq in expected} == expected


def test_a_row_that_replaces_one_in_time_is_hidden_with_it(make_table):
    """The last change of a key wins; when its time is past, the key has no row."""
    table = make_table(schema_of("plain"), key=["id"], time="at")
    table.upsert([{"id": 1, "at": dt.datetime(2026, 1, 10)}])
    table.expire(dt.datetime(2026, 1, 5))
    table.upsert([{"id": 1, "at": dt.datetime(2026, 1, 1)}])
    assert table.to_arrow().num_rows == 0
    table.compact(full=True)
    assert table.to_arrow().num_rows == 0
    table.upsert([{"id": 1, "at": None}])
    assert table.to_arrow().num_rows == 1


def test_horizons_only_rise(make_table):
    table = make_table(schema_of("plain"), key=["id"], time="at")
    assert table.expire(dt.datetime(2026, 1, 2)) == 1
    assert table.expire(dt.datetime(2026, 1, 2)) is None
    assert table.expire(dt.date(2026, 1, 1)) is None
    assert table.head == 1


def test_the_last_horizon_survives_a_trim_and_a_clean_up(make_table):
    table = make_table(schema_of("plain"), key=["id"], time="at", vnodes=1)
    table.upsert([{"id": n, "at": dt.datetime(2026, 1, n)} for n in range(1, 10)])
    for day in (2, 4, 6):
        table.expire(dt.datetime(2026, 1, day))
    table.compact(full=True)
    table.upsert([{"id": 20, "at": dt.datetime(2026, 1, 1)}])
    for _ in range(2):
        table.vacuum(keep=0, grace=0)
        table.log.delta.checkpoint()
    for reader in (table, sl.Lake(table.log.storage.uri).table(table.name)):
        assert ids(reader.to_arrow()) == {6, 7, 8, 9}
        assert len(expiry.horizons(reader.log.refresh().snapshot.txns)) == 1


def test_a_table_without_a_key_expires_rows(make_table):
    table = make_table(schema_of("date"), time="at", vnodes=2)
    table.append(rows_for("date"))
    table.compact(full=True)
    table.append(rows_for("date"))
    table.expire(dt.date(2026, 3, 30))
    expected = alive(rows_for("date"), dt.date(2026, 3, 30))
    assert sorted(table.to_arrow()["id"].to_pylist()) == sorted([*expected, *expected])
    table.compact(full=True)
    assert sorted(table.to_arrow()["id"].to_pylist()) == sorted([*expected, *expected])


def test_changes_tell_of_expired_rows(make_table):
    table = make_table(schema_of("plain"), key=["id"], time="at")
    table.upsert([{"id": 1, "at": dt.datetime(2026, 1, 1)}])
    table.expire(dt.datetime(2026, 2, 1))
    assert table.changes()["id"].to_pylist() == [1]


def test_a_time_column_is_named_once_and_stays(make_table):
    table = make_table(schema_of("plain"), key=["id"])
    with refused(sl.Invalid):
        table.expire(dt.datetime(2026, 1, 1))
    with refused(sl.Invalid):
        table.configure(retention="1d")
    with refused(sl.Invalid, column="text"):
        table.configure(time="text")
    with refused(sl.Invalid, column="none"):
        table.configure(time="none")
    table.upsert([{"id": 1, "at": dt.datetime(2026, 1, 1)}])
    table.configure(time="at", retention="1d")
    with refused(sl.Invalid, column="at"):
        table.drop_column("at")
    assert table.expire() == 3
    assert table.to_arrow().num_rows == 0
    with refused(sl.Invalid):
        make_table(ITEMS, key=["id"], time="name")


def test_a_table_with_a_version_column_expires_nothing(make_table):
    columns = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("rev", pa.int64())])
    table = make_table(columns, key=["id"], version="rev", time="at")
    with refused(sl.Invalid):
        table.expire(dt.datetime(2026, 1, 1))
    with refused(sl.Invalid):
        table.configure(retention="1d")
    with refused(sl.Invalid):
        make_table(columns, key=["id"], version="rev", time="at", retention="1d")


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_never_call_a_living_row_expired(make_table, kind):
    rows = rows_for(kind)
    for row in rows:
        table = make_table(schema_of(kind), key=["id"], time="at", vnodes=1)
        table.upsert([row])
        table.compact(full=True)
        (file,) = table.baseline.refresh().files()
        for horizon in HORIZONS:
            count = expiry.expired_rows(file, table.definition, expiry.micros(instant(horizon)))
            assert count == 1 - len(alive([row], horizon)), (row, horizon)


def test_a_moment_and_its_microseconds_are_the_same():
    for moment in MOMENTS[1:]:
        assert expiry.moment(expiry.micros(moment)) == moment
    assert expiry.micros(dt.datetime(1970, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2)))) == 0
    assert expiry.horizon_at({}, 9) is None
    txns = {"trim": 3, "expire/4": -5, "expire/7": 8}
    assert [expiry.horizon_at(txns, seq) for seq in (3, 4, 6, 7, 9)] == [None, -5, -5, 8, 8]
