"""What a table remembers of the files that were loaded into it: kept as names of transactions, and read back."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ingested
import strandline as sl
from ingested import lines
from strandline.jobs.ingest.loaded_files import PREFIX, Loaded, LoadedFiles, loads_after
from strandline.jobs.ingest.source import find

events = ingested.events
load = ingested.load


@pytest.fixture
def source(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\n{}\n")
    (found,) = find([str(tmp_path / "a.jsonl")], None)
    return found


def loaded(source, seq=0, **facts):
    return dataclasses.replace(Loaded.of(source, lines=2, digest="d"), seq=seq, **facts)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_load_survives_being_kept_as_a_name(source, is_open):
    kept = loaded(source, 7, is_open=is_open)
    assert kept.app.startswith(PREFIX)
    assert Loaded.parse(kept.app, 7) == kept


@pytest.mark.parametrize(
    "app", ["token/x", "ingest/a", "ingest/p/i/size/0/1/d", "ingest/p/i/1/2/x+/d", "ingest/1/2/3/4/5/6/7"]
)
def test_a_transaction_of_another_shape_is_no_load(app):
    assert Loaded.parse(app, 1) is None
    assert loads_after({app: 5}, 0) == []


def test_a_file_looks_the_same_by_place_or_by_inode_and_not_when_it_was_written(source):
    kept = loaded(source)
    assert kept.looks_like(source)
    assert dataclasses.replace(kept, place="elsewhere").looks_like(source)
    assert not dataclasses.replace(kept, place="elsewhere", inode="other").looks_like(source)
    for change in ({"size": 1}, {"mtime_ns": 1}):
        assert not dataclasses.replace(kept, **change).looks_like(source)


def test_the_last_load_of_a_file_counts_by_place_and_by_inode(source):
    first, moved, last = loaded(source, 1), loaded(source, 2, place="old"), loaded(source, 3, size=9, inode="new")
    memory = LoadedFiles({each.app: each.seq for each in (last, first, moved)}, 3)
    assert memory.latest(source) == [last, moved]
    assert set(memory.of_size(source.size)) == {first, moved}
    assert memory.of_size(12345) == []


def test_loads_since_a_version_are_told(source):
    txns = {loaded(source, seq, digest=str(seq)).app: seq for seq in (1, 2, 3)}
    assert sorted(each.seq for each in loads_after(txns, 1)) == [2, 3]


def test_the_memory_does_not_expire(events: sl.Table, load: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1))
    load(events, "a.jsonl")
    txns = [a["txn"] for a in events.log.delta.actions(1) if "txn" in a]
    assert [set(txn) for txn in txns] == [{"appId", "version"}], "a lastUpdated would let it expire"
