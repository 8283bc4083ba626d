"""A Delta table that mirrors a table: its commits, its positions, and what it refuses."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import strandline as sl
from deltas import table_at
from icebergs import COLUMNS, PRODUCER, batch_of, deliver, gone, up, written
from strandline.sinks.delta import DeltaDelivery, DeltaSink
from support import BUCKET, is_commit, options_for, proxied, refused

WHOLE = {"is_rows": True}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "there"


def opened(place: Path, **who: Any) -> Any:
    return DeltaSink(place, mode="mirror").open(replace(PRODUCER, **who))


def held(place: Path) -> list[tuple[Any, ...]]:
    rows = table_at(place).to_pyarrow_table().to_pylist()
    return sorted((row["id"], row["name"]) for row in rows)


def test_a_batch_is_one_commit_that_removes_and_adds_files_and_moves_three_positions(place: Path) -> None:
    mirror = opened(place)
    deliver(mirror, batch_of(0, 2, **WHOLE), up(2, 1, name="a"), up(2, 2, name="b"), up(2, 3, name="c"))
    assert table_at(place).version() == 1
    deliver(mirror, batch_of(2, 5), up(3, 1, name="A"), gone(4, 2), up(5, 9, name="z"))
    table = table_at(place)
    assert table.version() == 2
    assert held(place) == [(1, "A"), (3, "c"), (9, "z")]
    assert table.transaction_version(f"strandline/{PRODUCER.generation}") == 5
    assert table.transaction_version(f"strandline/rows/{PRODUCER.generation}") == 3
    assert table.transaction_version(f"strandline/mirror/{PRODUCER.sink}") == PRODUCER.life
    assert not list(place.rglob("changes/*.parquet"))
    assert not deliver(mirror, batch_of(2, 5), up(3, 1, name="twice"))
    deliver(mirror, batch_of(5, 6))
    assert (table_at(place).version(), held(place)) == (3, [(1, "A"), (3, "c"), (9, "z")])


def test_other_engines_read_plain_columns(place: Path) -> None:
    deliver(opened(place), batch_of(0, 1, **WHOLE), up(1, 1, name="a", qty=1), up(1, 2, name="b"))
    files = DeltaTable(place).file_uris()
    found = duckdb.sql(f"SELECT * FROM read_parquet({files}) ORDER BY id")
    assert found.columns == COLUMNS.names and found.fetchall() == [(1, "a", 1), (2, "b", None)]


def test_a_whole_table_replaces_rows_and_columns_in_one_commit(place: Path) -> None:
    deliver(opened(place), batch_of(0, 2, **WHOLE), up(2, 1, name="a", qty=1))
    columns = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string()), ("size", pa.int64())])
    life = opened(place, generation="next", life=2)
    before = table_at(place).version()
    deliver(life, batch_of(0, 3, columns, **WHOLE), up(3, 5, name="b", size=1 << 40))
    assert table_at(place).version() == before + 1
    assert table_at(place).to_pyarrow_table().to_pylist() == [{"id": 5, "name": "b", "size": 1 << 40}]
    deliver(opened(place, generation="last", life=3), batch_of(0, 4, columns, **WHOLE))
    assert held(place) == []


def test_a_whole_table_with_new_types_raises_the_protocol(place: Path) -> None:
    deliver(opened(place), batch_of(0, 2, **WHOLE), up(2, 1, name="a", qty=1))
    columns = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string()), ("at", pa.timestamp("us"))])
    at = dt.datetime(2024, 1, 1)
    life = opened(place, generation="next", life=2)
    deliver(life, batch_of(0, 3, columns, **WHOLE), up(3, 5, name="b", at=at))
    assert table_at(place).to_pyarrow_table().to_pylist() == [{"id": 5, "name": "b", "at": at}]
    deliver(life, batch_of(3, 4, columns), up(4, 6, name="c", at=at))
    assert held(place) == [(5, "b"), (6, "c")]


def test_a_table_that_others_changed_is_refused_and_a_packed_one_is_not(place: Path) -> None:
    mirror = opened(place)
    deliver(mirror, batch_of(0, 1, **WHOLE), up(1, 1, name="a"), up(1, 2, name="b"))
    table_at(place).optimize.compact()
    deliver(mirror, batch_of(1, 2), up(2, 2, name="B"))
    assert held(place) == [(1, "a"), (2, "B")]
    table_at(place).delete("id = 1")
    with refused(sl.Conflict, expected=2, found=1):
        deliver(mirror, batch_of(2, 3), up(3, 3, name="c"))
    assert held(place) == [(2, "B")]


def test_a_mirror_replaces_no_rows_that_it_did_not_send(place: Path) -> None:
    write_deltalake(place, pa.table({"id": [1], "name": ["theirs"]}))
    with refused(sl.Invalid, consumer=PRODUCER.consumer):
        deliver(opened(place), batch_of(0, 1, **WHOLE), up(1, 1, name="a"))
    assert held(place) == [(1, "theirs")]


def test_a_late_batch_of_an_earlier_life_changes_nothing(place: Path) -> None:
    old = opened(place)
    deliver(old, batch_of(0, 1, **WHOLE), up(1, 1, name="a"))
    late = batch_of(1, 2)
    results = written(old, late, up(2, 1, name="late"))
    deliver(opened(place, generation="next", life=2), batch_of(0, 5, **WHOLE), up(5, 1, name="new"))
    with refused(sl.Conflict):
        old.finish(late, results)
    assert held(place) == [(1, "new")]


def test_of_two_that_saw_the_batch_missing_one_commits_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = opened(place), opened(place)
    deliver(first, batch_of(0, 1, **WHOLE), up(1, 1, name="a"))
    batch = batch_of(1, 2)
    mine, theirs = (written(each, batch, up(2, 1, name="b"), up(2, 2, name="c")) for each in (first, second))
    loaded = DeltaDelivery._load_table
    stale = [table_at(place), table_at(place)]

    def load(self: DeltaDelivery) -> Any:
        return stale.pop() if stale else loaded(self)

    monkeypatch.setattr(DeltaDelivery, "_load_table", load)
    first.finish(batch, mine)
    stale.append(DeltaTable(place, version=1))
    second.finish(batch, theirs)
    assert held(place) == [(1, "b"), (2, "c")]


def test_a_log_of_many_commits_gets_checkpoints(place: Path) -> None:
    mirror = opened(place)
    deliver(mirror, batch_of(0, 1, **WHOLE), up(1, 1, name="a"))
    for seq in range(1, 21):
        deliver(mirror, batch_of(seq, seq + 1), up(seq + 1, seq % 3, name=f"{seq}"))
    assert (place / "_delta_log" / "_last_checkpoint").exists()
    assert held(place) == [(0, "18"), (1, "19"), (2, "20")]


def test_nothing_is_left_of_a_batch_whose_files_were_swept_away(place: Path) -> None:
    mirror = opened(place)
    deliver(mirror, batch_of(0, 1, **WHOLE), up(1, 1, name="a"))
    batch = batch_of(1, 2)
    results = written(mirror, batch, up(2, 1, name="b"))
    with contextlib.suppress(FileNotFoundError):
        for path in place.rglob("changes/*.parquet"):
            path.unlink()
    with refused(sl.Conflict):
        mirror.finish(batch, results)
    assert held(place) == [(1, "a")]


@pytest.mark.parametrize("faults", [["lost"], ["unsent", "lost"], ["down"]])
def test_a_commit_to_s3_without_an_answer_neither_loses_nor_doubles(seaweed: str, faults: list[str]) -> None:
    uri = f"s3://{BUCKET}/{uuid.uuid4().hex}"

    def opened_at(endpoint: str) -> Any:
        return DeltaSink(uri, mode="mirror", options=options_for(endpoint)).open(PRODUCER)

    batch, rows = batch_of(1, 2), [up(2, 1, name="b"), gone(2, 2), up(2, 3, name="c")]
    with proxied(seaweed) as proxy:
        mirror = opened_at(proxy.endpoint)
        deliver(mirror, batch_of(0, 1, **WHOLE), up(1, 1, name="a"), up(1, 2, name="a"))
        proxy.is_aimed, proxy.faults, proxy.seen = is_commit, list(faults), []
        results = written(mirror, batch, *rows)
        threading.Timer(1.0, lambda: setattr(proxy, "is_down", False)).start()
        with contextlib.suppress(sl.Unavailable):
            mirror.finish(batch, results)
        assert proxy.seen[0] == faults[0]
        proxy.is_down = False
        deliver(mirror, replace(batch, is_replay=True), *rows)
    options = dict(opened_at(seaweed).storage.delta_options)
    table = table_at(uri, storage_options=options)
    assert sorted(table.to_pyarrow_table()["name"].to_pylist()) == ["b", "c"]
    assert table.transaction_version(f"strandline/{PRODUCER.generation}") == 2
