"""What consumers work with: tables, state, and what this process declares."""

from __future__ import annotations

from pathlib import Path

import pytest

import strandline as sl
from pipelines import rows
from strandline.sinks.parquet import ParquetSink
from strandline.state.database import FILE
from support import refused


def test_nothing_is_written_until_something_is_remembered(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> None:
    lake.sink("archive", "items", to=ParquetSink(str(tmp_path / "out")))
    assert not lake.has_state and not lake.storage.exists(FILE)
    assert lake.consumer_state("archive").consumer is None and list(lake.consumer_states()) == ["archive"]
    items.upsert(rows(1))
    lake.tick()
    assert lake.has_state and lake.storage.exists(FILE)


def test_consumers_are_those_declared_here_and_those_of_the_state(
    lake: sl.Lake, items: sl.Table, tmp_path: Path
) -> None:
    lake.sink("b", "items", to=ParquetSink(str(tmp_path / "b")))
    items.upsert(rows(1))
    lake.tick()
    other = sl.Lake(lake.storage.uri)
    other.sink("a", "items", to=ParquetSink(str(tmp_path / "a")))
    known = other.consumer_states()
    assert list(known) == ["a", "b"]
    assert known["a"].consumer is None
    assert known["b"] == other.consumer_state("b") and set(known["b"].marks.values()) == {1}


def test_a_destination_inside_the_lake_is_refused(lake: sl.Lake, items: sl.Table) -> None:
    with refused(sl.Invalid, consumer="archive"):
        lake.sink("archive", "items", to=ParquetSink(f"{lake.storage.uri}/out"))


def test_a_producer_is_one_life_of_a_consumer(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> None:
    lake.sink("archive", "items", to=ParquetSink(str(tmp_path / "out")))
    items.upsert(rows(1))
    lake.tick()
    record = lake.state.registry.get("archive")
    producer = lake.producer(record)
    assert (producer.consumer, producer.generation, producer.life) == ("archive", record.generation, record.began_ms)
    assert producer.table_generation == items.entry.generation
    assert producer.lake_id == lake.catalog.refresh().lake_id


def test_readers_of_a_table_are_its_living_consumers(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> None:
    assert items.readers.marks() == []
    lake.sink("archive", "items", to=ParquetSink(str(tmp_path / "out")))
    items.upsert(rows(1))
    lake.tick()
    items.upsert(rows(2))
    assert items.readers.marks() == [(1, "archive")]
    with items.readers.paused():
        (report,) = lake.tick(only=["archive"]).sinks
        assert report.is_busy
    assert lake.tick(only=["archive"]).sinks[0].rows == 1


def test_a_sink_of_a_lake_in_a_bucket_needs_a_place_for_the_state(
    lake: sl.Lake, items: sl.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a bucket looks to the front; the real store is in test_s3.
    monkeypatch.setattr(type(lake.storage), "is_local", False)
    to = ParquetSink(str(tmp_path / "out"))
    with refused(sl.Invalid) as found:
        lake.sink("archive", "items", to=to)
    assert all(word in str(found.value) for word in ("state='sqlite:", "state='postgresql:", "--state"))
    assert lake.tick().is_idle, "a lake without sinks needs no state"
    named = sl.Lake(lake.storage.uri, state=f"sqlite:///{tmp_path / 'state.db'}")
    named.sink("archive", "items", to=to)
