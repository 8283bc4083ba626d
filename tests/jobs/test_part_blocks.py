"""Blocks of rows are merged to what the driver writes. No Spark is needed."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.engines.lanes import files_of
from strandline.engines.log_lane import LogLane
from strandline.jobs.ingest import part_blocks, parts
from strandline.jobs.ingest.part_blocks import CutLane, MergeLane, count_ranges
from strandline.jobs.ingest.part_lane import PartLane
from strandline.jobs.ingest.part_report import Reports
from strandline.jobs.ingest.parts import cut_parts
from strandline.jobs.ingest.plan import Step
from strandline.jobs.ingest.source import find
from strandline.jobs.ingest.text_options import TextOptions
from strandline.model.keys import shift_for
from strandline.tables.log import prepare
from support import ITEMS, rows_of

SMALL = st.lists(st.tuples(st.integers(-3, 12), st.integers(0, 3)), max_size=60)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, sl.Table]:
    """Two tables, the second one with a version column."""
    lake = sl.Lake(tmp_path_factory.mktemp("blocks") / "lake")
    return {
        is_versioned: lake.create_table(f"t{is_versioned}", ITEMS, key=["id"], version="qty" if is_versioned else None)
        for is_versioned in (False, True)
    }


def write_in_blocks(table: sl.Table, folder: Path, ranges: int) -> list[tuple[Any, ...]]:
    """The rows of the log files that tasks write from the files of a folder, one task after the other."""
    log, definition = table.log, table.definition
    cut = cut_parts([Step(source, "load", "new") for source in find([str(folder)], None)], 2)
    reports = Reports(log.storage, log.folder)
    lane = PartLane(
        log.storage, table.entry, reports, definition, TextOptions(), None, cut.pieces, None, frozenset(), False
    )
    numbers = pa.record_batch({"id": pa.array(reversed(range(len(cut))), pa.int64())})
    blocks: dict[int, list[bytes]] = defaultdict(list)
    for batch in CutLane(lane, ranges)(iter([numbers])):
        for row in batch.to_pylist():
            blocks[row["range"]].append(row["block"])
    receipts: list[Any] = []
    for number, found in blocks.items():
        assert 0 <= number < ranges
        batch = pa.record_batch({"range": [number] * len(found), "block": found})
        merge = MergeLane(LogLane(log.storage, log.folder, definition, "upsert", is_ordered=True))
        receipts += [row for each in merge(iter([batch])) for row in each.to_pylist()]
    files, failure = files_of(receipts)
    assert failure is None and len(files) == len(blocks)
    read = [pq.read_table(log.storage.input(f"{log.folder}/{file.path}")) for file in files]
    for each in read:
        shift = shift_for(definition.vnodes)
        places = [(row["_hash"] >> shift, row["id"]) for row in each.to_pylist()]
        assert places == sorted(places)
    log.discard(files)
    reports.delete()
    return rows_of(pa.concat_tables(read))


@settings(max_examples=12)
@given(files=st.lists(SMALL, min_size=1, max_size=3), is_versioned=st.booleans(), ranges=st.sampled_from([1, 4, 16]))
def test_blocks_have_the_last_row_of_each_key(
    tables: dict[bool, sl.Table],
    tmp_path: Path,
    files: list[list[tuple[int, int]]],
    is_versioned: bool,
    ranges: int,
) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir(exist_ok=True)
    for old in inbox.iterdir():
        old.unlink()
    rows: list[dict[str, Any]] = [{"id": 99, "qty": 1, "name": "first"}]
    (inbox / "0.jsonl").write_text(json.dumps(rows[0]) + "\n")
    for number, pairs in enumerate(files, start=1):
        own = [{"id": id_, "qty": qty, "name": f"{number}/{at}"} for at, (id_, qty) in enumerate(pairs)]
        (inbox / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
        rows += own
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "LEAST_BYTES", 200)
        patch.setattr(parts, "_CHUNK_BYTES", 50)
        patch.setattr(part_blocks, "_BLOCK_BYTES", 300)
        written = write_in_blocks(tables[is_versioned], inbox, ranges)
    assert written == rows_of(
        prepare(pa.Table.from_pylist(rows, schema=ITEMS), tables[is_versioned].definition, "upsert")
    )


def test_more_bytes_make_more_ranges() -> None:
    assert count_ranges(0, 4) == 4
    assert count_ranges(part_blocks.RANGE_BYTES * 5, 4) == 8
    assert count_ranges(1 << 60, 4) == part_blocks.MOST_RANGES
