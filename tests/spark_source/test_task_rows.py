"""The rows of a task are sorted with bounded memory, and the order is the one of the whole."""

import os

import pyarrow as pa
import pytest

from strandline.engines import temp_folder
from strandline.model.change import HASH
from strandline.spark_source import task_rows
from strandline.spark_source.task_rows import sort_rows


def pieces(count=900, rows=100):
    numbers = [(n * 7919) % count for n in range(count)]
    columns = {HASH: pa.array([(n * 2654435761) & 0xFFFFFFFF for n in numbers], pa.int64()), "id": numbers}
    whole = pa.table({**columns, "by": [None if n % 7 == 0 else n % 5 for n in range(count)]})
    return whole, [whole.slice(start, rows) for start in range(0, count, rows)]


@pytest.mark.parametrize("held_bytes", [0, 5_000, 1 << 30])
def test_rows_are_sorted_by_hash_and_order_in_memory_and_on_disk(monkeypatch, held_bytes):
    monkeypatch.setattr(task_rows, "HELD_BYTES", held_bytes)
    whole, parts = pieces()
    found = pa.Table.from_batches(sort_rows(iter(parts), ["by", "id"]), whole.schema).to_pylist()
    rank = lambda row: (row[HASH], row["by"] is not None, row["by"] or 0, row["id"])  # noqa: E731
    assert found == sorted(whole.to_pylist(), key=rank)


def test_nothing_stays_in_the_temporary_folder(monkeypatch, tmp_path):
    made = []

    def new_folder():
        made.append(str(tmp_path / f"spill{len(made)}"))
        return made[-1]

    monkeypatch.setattr(temp_folder, "new_folder", new_folder)
    monkeypatch.setattr(task_rows, "HELD_BYTES", 0)
    list(sort_rows(iter(pieces()[1]), ["id"]))
    stopped = sort_rows(iter(pieces()[1]), ["id"])
    next(stopped)
    assert os.listdir(made[1])
    stopped.close()
    assert len(made) == 2 and os.listdir(tmp_path) == []


def test_no_rows_are_no_batches():
    assert list(sort_rows(iter([]), ["id"])) == []
