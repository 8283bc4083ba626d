"""A sink as a consumer, without the loop around it. What every sink promises is in tests/contracts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import strandline as sl
from pipelines import delivered, rows
from strandline.consumers.sink import SinkConsumer
from strandline.consumers.work import Work
from strandline.sinks.definition import SinkDef
from strandline.sinks.parquet import ParquetSink
from strandline.state.consumers import ConsumerRecord
from strandline.state.intents import Intent
from strandline.state.marks import ConsumerState


@pytest.fixture
def sink(items: sl.Table, tmp_path: Path) -> SinkConsumer:
    items.upsert(rows(1, 2, 3))
    return SinkConsumer(SinkDef.declare("archive", "items", ParquetSink(str(tmp_path / "out"))))


def begun(consumer: SinkConsumer, work: Work) -> Work:
    """A work whose one lane is on record."""
    intent = Intent(
        id="i1", generation="g", lane="0-3", vnodes=work.vnodes, after=work.after, upto=work.upto,
        definition=consumer.to_dict(), schema_id=work.schema_id, cuts=None, created_s=0.0,
    )  # fmt: skip
    return replace(work, intents=(intent,))


def record_of(consumer: SinkConsumer, table: sl.Table) -> ConsumerRecord:
    return ConsumerRecord(
        name=consumer.name, kind=consumer.kind, table=table.name, table_generation=table.entry.generation,
        destination=consumer.destination, generation="g", life=1, definition=consumer.to_dict(), is_retired=False,
        created_s=1.0,
    )  # fmt: skip


def test_rows_count_when_the_lane_is_finished_and_a_replay_is_done_already(
    lake: sl.Lake, items: sl.Table, sink: SinkConsumer, tmp_path: Path
) -> None:
    record = record_of(sink, items)
    (work,) = sink.plan(lake, ConsumerState())
    (start,) = sink.prepare(work, record, lake.producer(record))
    assert (start.is_done, start.error) == (False, None)
    work = begun(sink, work)
    receipt = sink.run(work)
    assert (receipt.rows, receipt.rows_read, receipt.ends[work.lanes[0]].error) == (3, 3, None)
    sink.finish(work.intents[0])
    sink.close()
    assert len(delivered(tmp_path / "out")) == 3
    (again,) = sink.prepare(replace(work, is_replay=True), record, lake.producer(record))
    assert again.is_done
    sink.close()


def test_a_destination_that_is_ahead_of_new_work_is_a_conflict(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> None:
    """A Delta table knows how far it is."""
    items.upsert(rows(1))
    sink = SinkConsumer(lake.sink("copy", "items", to=sl.DeltaSink(str(tmp_path / "copy"))))
    lake.tick()
    record = lake.state.registry.get("copy")
    (work,) = sink.plan(lake, ConsumerState())
    (start,) = sink.prepare(work, record, lake.producer(record))
    sink.close()
    assert isinstance(start.error, sl.Conflict) and start.error.fields["found"] == 1


def test_it_is_what_its_definition_says(sink: SinkConsumer, items: sl.Table, tmp_path: Path) -> None:
    assert (sink.kind, sink.title) == ("parquet", "sink 'archive'")
    assert sink.destination == str(tmp_path / "out")
    assert sink.missing_columns(items, is_new=True) == ()
    assert SinkDef.from_dict("archive", "items", sink.to_dict()) == sink.sink
