"""A table that changes while its history is delivered, and a record of every change, to compare destinations with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from destinations import HIDDEN, DeltaMirrorPlace, Destination, IcebergMirrorPlace, ReceiverPlace
from strandline.consumers import loop, ranges, rounds
from strandline.engines.choice import DriverLimit
from strandline.model.change import OP
from strandline.tables.packing import Bundle, pack_files

VALUE = [pa.field("name", pa.string()), pa.field("qty", pa.int32())]
SHAPES = {
    "number": [pa.field("id", pa.int64(), False)],
    "text": [pa.field("id", pa.string(), False)],
    "composite": [pa.field("city", pa.string(), False), pa.field("n", pa.int32(), False)],
}
CITIES = ["", "a", "a\x01", "b", "é"]


def small_rounds(patch: pytest.MonkeyPatch, rows: int = 4, *, table: int = 3) -> None:
    """A table of more than `table` rows is history, which comes in rounds of about so many rows."""
    patch.setattr(ranges, "SMALL", DriverLimit(table, 1 << 30))
    patch.setattr(rounds, "MOST_ROWS", rows)
    patch.setattr(loop, "Rounds", lambda **facts: rounds.Rounds(rows=rows, **facts))


class History:
    """A table whose keys are numbers here, and of any shape there. `log` has every change: (seq, op, key, row)."""

    def __init__(self, lake: sl.Lake, shape: str = "number", *, name: str = "items", vnodes: int = 4, **more: Any):
        self.shape = shape
        self.schema = pa.schema([*SHAPES[shape], *VALUE])
        self.key = tuple(field.name for field in SHAPES[shape])
        options = {"compact_ratio": 1e9, "compact_age": "1000d", **more}
        self.table = lake.create_table(name, self.schema, key=self.key, vnodes=vnodes, **options)
        self.log: list[tuple[int, str, Any, dict[str, Any] | None]] = []
        self.number = 0

    def key_of(self, number: int) -> dict[str, Any]:
        if self.shape == "composite":
            return {"city": CITIES[number // 10 % 5], "n": number % 10 + number // 50 * 100}
        return {"id": f"k{number:04d}" if self.shape == "text" else number}

    def name_of(self, row: dict[str, Any]) -> Any:
        found = tuple(row[column] for column in self.key)
        return found[0] if len(found) == 1 else found

    def put(self, *numbers: int, qty: int = 1) -> int:
        self.number += 1
        rows = [{**self.key_of(each), "name": f"v{self.number}", "qty": qty} for each in numbers]
        seq = self.table.upsert(pa.Table.from_pylist(rows, self.schema)).seq
        self.log += [(seq, "upsert", self.name_of(row), row) for row in rows]
        return seq

    def drop(self, *numbers: int) -> int:
        keys = [self.key_of(each) for each in numbers]
        commit = self.table.delete(pa.Table.from_pylist(keys, pa.schema(SHAPES[self.shape])))
        self.log += [(commit.seq, "delete", self.name_of(key), None) for key in keys]
        return commit.seq

    def pack(self) -> None:
        files = self.table.log.refresh().by_seq
        if len(files) > 1:
            pack_files(self.table.log, [Bundle(tuple(files), 1)])

    def fold(self) -> None:
        self.table.compact(full=True)

    def clean(self) -> None:
        self.table.vacuum(keep=0, grace=0)

    def rows_at(self, seq: int | None = None) -> dict[Any, dict[str, Any]]:
        found: dict[Any, dict[str, Any]] = {}
        for at, _, key, row in self.log:
            if seq is None or at <= seq:
                found.pop(key, None)
                if row is not None:
                    found[key] = row
        assert op_count(self.log) == len(self.log)
        return found

    def check(self, place: Destination) -> None:
        """The destination is the table. A key begins with its row in a round, or with a change after it, and then
        has each change once, in order."""
        assert place.current(*self.key) == self.rows_at()
        if isinstance(place, DeltaMirrorPlace | IcebergMirrorPlace):
            assert len(place.changes()) == len(self.rows_at())
            return
        sent: dict[Any, list[tuple[int, str, str | None]]] = {}
        for change in place.changes():
            sent.setdefault(self.name_of(change), []).append((change["_seq"], change[OP], change["name"]))
        for key, changes in sent.items():
            mine = [(seq, op, row and row["name"]) for seq, op, name, row in self.log if name == key]
            last = mine[-len(changes) :]
            if isinstance(place, ReceiverPlace):
                # Its lake has seqs of its own, and one change of a key in a commit.
                rest = iter(each[1:] for each in mine)
                assert all(each[1:] in rest for each in changes), key
                continue
            assert [each[1:] for each in changes] == [each[1:] for each in last], key
            # A row of a round has the seq of the table.
            assert [each[0] for each in changes[1:]] == [each[0] for each in last[1:]], key
            assert changes[0][0] >= last[0][0], key


def op_count(log: Sequence[tuple[int, str, Any, Any]]) -> int:
    """The number of changes, each of one key and seq."""
    return len({(seq, key) for seq, _, key, _ in log})


def plain_rows(rows: Sequence[dict[str, Any]]) -> Counter[str]:
    """Rows without hidden columns, which may be equal."""
    return Counter(repr(sorted((k, v) for k, v in row.items() if k not in HIDDEN)) for row in rows)
