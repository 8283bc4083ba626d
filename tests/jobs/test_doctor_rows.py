"""A deep look at the rows of files: order, keys and places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import examined
import strandline as sl
from examined import live_file, rows, wrong
from strandline.engines.lanes import files_of
from strandline.engines.log_lane import LogLane
from strandline.jobs.doctor import Report
from strandline.model.change import OP
from strandline.model.rows import check_rows
from strandline.tables.log import prepare
from strandline.tables.packing import Bundle, pack_files
from support import ITEMS, rewrite_commits

check = examined.check
folder = examined.folder


def test_a_key_in_two_files_of_a_commit_is_found_by_a_deep_look(
    items: sl.Table, lake: sl.Lake, check: Callable[..., Report]
) -> None:
    definition = items.definition
    changes = prepare(next(check_rows(rows(1, 2, 3), ITEMS)), definition, "upsert")
    files = [*items.log.write(changes, definition), *items.log.write(changes, definition)]
    items.log.commit(files, operation="UPSERT")
    assert any("in two files" in what for _, what in wrong(check(deep=True)))


@pytest.mark.parametrize("budget_bytes", [1, 1 << 30])
def test_files_of_spark_tasks_are_sound(items: sl.Table, check: Callable[..., Report], budget_bytes: int) -> None:
    changes = prepare(next(check_rows(rows(*range(500)), ITEMS)), items.definition, "upsert").drop([OP])
    lane = LogLane(items.log.storage, items.log.folder, items.definition, "upsert", False, budget_bytes)
    files, failure = files_of(row for batch in lane(iter(changes.to_batches(50))) for row in batch.to_pylist())
    assert failure is None
    items.log.commit(files, operation="UPSERT")
    assert check(deep=True).is_sound
    items.upsert([{"id": 1, "name": "later"}], missing="null")
    pack_files(items.log, [Bundle(tuple(items.log.refresh().by_seq), 1)])
    assert wrong(check(deep=True)) == []


def test_a_key_twice_at_one_seq_of_a_pack_is_found_by_a_deep_look(
    items: sl.Table, check: Callable[..., Report]
) -> None:
    definition = items.definition
    changes = prepare(next(check_rows(rows(1, 2, 3), ITEMS)), definition, "upsert")
    files = [*items.log.write(changes, definition), *items.log.write(changes, definition)]
    items.log.commit(files, operation="UPSERT")
    pack_files(items.log, [Bundle(tuple(items.log.refresh().by_seq), 1)])
    assert any("more than once" in what for _, what in wrong(check(deep=True)))


def _rewritten(file: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace a file by one of changed rows, and its size in the commit, so that only the rows are wrong."""
    table = pq.read_table(file)
    pq.write_table(change(table), file, compression="zstd")
    size = file.stat().st_size

    def resize(action: dict[str, Any]) -> None:
        if action.get("add", {}).get("path") == file.name:
            action["add"]["size"] = size

    rewrite_commits(file.parent / "_delta_log", resize)


def _reversed(table: pa.Table) -> pa.Table:
    return table.take(pa.array(range(table.num_rows - 1, -1, -1)))


def _doubled(table: pa.Table) -> pa.Table:
    return table.take(pa.array([0, *range(table.num_rows - 1)]))


def _misplaced(table: pa.Table) -> pa.Table:
    at = table.column_names.index("id")
    return table.set_column(at, table.schema.field("id"), pa.array(range(1000, 1000 + table.num_rows)))


@pytest.mark.parametrize("part", ["log", "baseline"])
@pytest.mark.parametrize("change", [_reversed, _doubled, _misplaced])
def test_only_a_deep_look_finds_wrong_rows(
    folder: Path, check: Callable[..., Report], part: str, change: Callable[[pa.Table], pa.Table]
) -> None:
    _rewritten(live_file(folder, part), change)
    assert check().is_sound
    assert [table for table, _ in wrong(check(deep=True))] == ["items"]
