"""What every sink promises: which rows leave, in which columns, and when a batch counts as delivered."""

import pyarrow as pa
import pytest

import strandline as sl
from deliveries import PARTS, PRODUCER, delete, new_batch, upserts, withheld
from strandline.sinks.contract import (
    Held,
    Producer,
    Redelivery,
    ResumableDelivery,
    drop_withheld,
    is_delivered,
    lane_schema,
    spread_position,
)
from strandline.sinks.http import HttpSink
from strandline.sinks.parquet import ParquetSink
from support import refused


def test_the_lives_of_a_consumer_share_one_sink():
    first = Producer("lake", "central", "items", "t1", "g1", 1)
    again = Producer("lake", "central", "items", "t2", "g2", 2)
    assert first.sink == again.sink == "lake.central"
    assert Producer("lake", "other", "items", "t1", "g1", 1).sink != first.sink


def test_rows_come_behind_what_they_are_and_without_a_key_with_their_number():
    columns = pa.schema([("id", pa.int64())])
    assert lane_schema(columns, ("id",)).names == ["_op", "_vnode", "_seq", "id"]
    assert lane_schema(columns, ()).names == ["_op", "_vnode", "_seq", "_row", "id"]
    batch = new_batch(0, 5)
    assert batch.lane_schema.names[3:] == batch.file_schema.names[2:] == PARTS.names
    assert batch.file_schema.names[:2] == ["_op", "_seq"]


def test_withheld_rows_are_counted_and_do_not_leave():
    batch = new_batch(0, 5)
    rows = [*upserts(3, range(3), parts=1), withheld(4, 9, 0), delete(5, 2, 0)]
    kept, count = drop_withheld(pa.RecordBatch.from_pylist(rows, schema=batch.lane_schema))
    assert (kept.num_rows, count) == (4, 1)
    assert set(kept["_op"].to_pylist()) == {"upsert", "delete"}
    whole = pa.RecordBatch.from_pylist(rows[:3], schema=batch.lane_schema)
    assert drop_withheld(whole) == (whole, 0)
    assert drop_withheld(whole.slice(0, 0))[1] == 0


@pytest.mark.parametrize(
    ("held", "is_first", "expected"),
    [(9, False, True), (12, False, True), (5, False, False), (None, True, False), (12, True, True)],
)
def test_a_batch_counts_when_the_destination_holds_its_end(held, is_first, expected):
    at = None if held is None else Held(held)
    assert is_delivered(at, new_batch(5, 9, is_first=is_first), PRODUCER, "there") is expected


@pytest.mark.parametrize("held", [None, 3, 7])
def test_a_destination_that_is_elsewhere_is_a_conflict(held):
    known = {} if held is None else {"found": held}
    with refused(sl.Conflict, consumer=PRODUCER.consumer, expected=5, **known):
        is_delivered(None if held is None else Held(held), new_batch(5, 9), PRODUCER, "there")


def test_what_is_held_rises_by_seq_and_then_by_round():
    ordered = [Held(3, 1), Held(3, 2), Held(3), Held(4, 2), Held(4)]
    assert sorted(reversed(ordered)) == ordered
    in_round = new_batch(4, 4, start_round=2, end_round=3)
    assert not is_delivered(Held(4, 2), in_round, PRODUCER, "there")
    assert is_delivered(Held(4, 3), in_round, PRODUCER, "there") and is_delivered(Held(4), in_round, PRODUCER, "there")
    with refused(sl.Conflict):
        is_delivered(Held(4, 1), in_round, PRODUCER, "there")


def test_a_destination_with_a_part_of_the_history_has_no_position():
    assert spread_position(Held(7), 2, PRODUCER, "there") == {0: 7, 1: 7}
    assert spread_position(None, 2, PRODUCER, "there") == {}
    with refused(sl.Conflict, consumer=PRODUCER.consumer, found=7):
        spread_position(Held(7, 3), 2, PRODUCER, "there")


def test_what_a_delivery_can_do_beyond_rows_is_known_by_its_verbs(tmp_path):
    forwarding, archive = HttpSink("http://127.0.0.1:1/x").open(PRODUCER), ParquetSink(tmp_path).open(PRODUCER)
    assert isinstance(forwarding, Redelivery) and isinstance(forwarding, ResumableDelivery)
    assert not isinstance(archive, Redelivery) and not isinstance(archive, ResumableDelivery)
    forwarding.close()
    archive.close()
