"""Copy-on-write: which files a batch touches, and that the files then hold what a dict holds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.sinks import mirror
from strandline.sinks.contract import Batch
from strandline.sinks.mirror import NewFiles, rewrite
from strandline.storage.local import LocalStorage
from strandline.storage.snapshot import DataFile

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
CHANGED = pa.schema([("_op", pa.string()), ("_seq", pa.int64()), *COLUMNS])


@dataclass(frozen=True)
class Old:
    """A file of the destination with the bounds of its statistics."""

    storage: LocalStorage
    data: DataFile

    @property
    def size(self) -> int:
        return self.data.size

    def bounds(self, column: str) -> tuple[Any, Any]:
        return self.data.stats["minValues"].get(column), self.data.stats["maxValues"].get(column)

    def batches(self, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        yield from pq.read_table(self.storage.url(self.data.path), schema=columns).to_batches()


class Place:
    """A destination of files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.storage = LocalStorage(str(folder))
        self.new = NewFiles(self.storage, "data", "part", COLUMNS, key=("id",))
        self.files: list[DataFile] = []
        self.seq = 0

    def apply(self, *changes: tuple[int, str | None]) -> mirror.Rewrite:
        """Apply upserts, and deletes where the name is None."""
        self.seq += 1
        rows = [
            {"_op": "delete" if name is None else "upsert", "_seq": self.seq * 1000 + at, "id": id_, "name": name}
            for at, (id_, name) in enumerate(changes)
        ]
        path = f"changes/{self.seq}.parquet"
        with self.storage.output(path) as stream:
            pq.write_table(pa.Table.from_pylist(rows, schema=CHANGED), stream)
        batch = Batch(f"{self.seq}", (0,), self.seq - 1, self.seq, COLUMNS, ("id",), is_first=self.seq == 1)
        done = rewrite([Old(self.storage, file) for file in self.files], self.new, batch, [path])
        gone = {old.data.path for old in done.removed}
        self.files = [file for file in self.files if file.path not in gone] + done.added
        return done

    def rows(self) -> dict[int, str]:
        tables = [pq.read_table(self.storage.url(file.path)) for file in self.files]
        found = [row for table in tables for row in table.to_pylist()]
        assert len({row["id"] for row in found}) == len(found)
        return {row["id"]: row["name"] for row in found}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_an_update_takes_the_place_of_the_old_row_and_other_files_stay(place: Place) -> None:
    place.apply(*((id_, "a") for id_ in range(10)))
    place.apply(*((id_, "b") for id_ in range(100, 110)))
    done = place.apply((105, "B"), (3000, "new"))
    assert [old.data.rows for old in done.removed] == [10]
    assert sorted(file.rows for file in done.added) == [1, 10]
    assert place.rows() == {
        **dict.fromkeys(range(10), "a"),
        **dict.fromkeys(range(100, 110), "b"),
        105: "B",
        3000: "new",
    }
    for file in place.files:
        ids = pq.read_table(place.storage.url(file.path))["id"].to_pylist()
        assert ids == sorted(ids)


def test_a_batch_that_changes_nothing_writes_nothing(place: Place) -> None:
    place.apply((1, "a"))
    done = place.apply((2, None), (0, None))
    assert not done.removed and not done.added


@pytest.mark.parametrize("placed_bytes", [0, 32 << 20])
def test_files_hold_what_a_dict_holds(place: Place, monkeypatch: pytest.MonkeyPatch, placed_bytes: int) -> None:
    monkeypatch.setattr(mirror, "_PLACED_BYTES", placed_bytes)
    monkeypatch.setattr(mirror, "_MANY", 5)
    random_ = random.Random(seed := random.randrange(1 << 30))
    expected: dict[int, str] = {}
    for number in range(30):
        changes = [
            (random_.randrange(60), None if random_.random() < 0.3 else f"{number}")
            for _ in range(random_.randrange(12))
        ]
        place.apply(*changes)
        for id_, name in changes:
            expected.pop(id_, None)
            if name is not None:
                expected[id_] = name
        assert place.rows() == expected, f"seed {seed}"
        assert len(place.files) <= 12
