"""An Iceberg table of current rows: a batch replaces what it changes and leaves the other files alone."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import icebergs
from icebergs import (
    COLUMNS,
    PRODUCER,
    Opened,
    batch_of,
    deliver,
    gone,
    held,
    snapshots,
    table_of,
    up,
    withheld,
    written,
)
from strandline.errors import Conflict, Invalid
from strandline.sinks import mirror
from support import refused, rows_of

catalog, local, opened = icebergs.catalog, icebergs.local, icebergs.opened


def test_a_mirror_keeps_the_current_rows(catalog: dict[str, str], opened: Opened) -> None:
    ice = opened(catalog, mode="mirror")
    deliver(ice, batch_of(0, 2), up(1, 1, name="a"), up(1, 2, name="b"), up(2, 1, name="A", qty=2), up(1, 3, name="c"))
    assert held(ice, "id", "name", "qty") == [(1, "A", 2), (2, "b", None), (3, "c", None)]
    deliver(ice, batch_of(2, 6), gone(3, 1), up(4, 4, name="d"), gone(5, 4), up(6, 2, name="B"), gone(6, 99))
    assert held(ice, "id", "name", "qty") == [(2, "B", None), (3, "c", None)]
    assert snapshots(ice) == 2
    deliver(ice, batch_of(6, 7), gone(7, 77), withheld(7, 2))
    assert snapshots(ice) == 2
    assert ice.position(2) == {0: 7, 1: 7}
    wide = pa.schema([*COLUMNS.set(2, pa.field("qty", pa.int64())), ("more", pa.string())])
    deliver(ice, batch_of(7, 8, wide), up(8, 3, name="c", qty=1 << 40, more="m"))
    assert held(ice, "id", "name", "qty", "more") == [(2, "B", None, None), (3, "c", 1 << 40, "m")]
    with refused(Invalid, column="more"):
        deliver(ice, batch_of(8, 9), gone(9, 2))
    deliver(ice, batch_of(8, 9, wide), gone(9, 2), gone(9, 3))
    assert held(ice, "id") == []
    storage, folder, _ = ice._data_place(table_of(ice))
    assert list(storage.list(f"{folder}/changes")) == []


def test_a_mirror_equals_a_dict_whatever_the_batches(
    local: dict[str, str], opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_MANY", 4)
    random_ = random.Random(seed := random.randrange(1 << 30))
    columns = pa.schema(
        [("day", pa.date32()), ("code", pa.binary()), ("name", pa.string()), ("tags", pa.list_(pa.int8()))]
    )
    ice = opened(local, mode="mirror")
    expected: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    upto = 0
    for _ in range(12):
        rows, after, upto = [], upto, upto + random_.randint(1, 4)
        for seq in range(after + 1, upto + 1):
            for code in random_.sample(range(30), random_.randint(0, 12)):
                key = (dt.date(2024, 1, 1 + code % 3), bytes([code]))
                row = {"_vnode": 0, "_seq": seq, "day": key[0], "code": key[1]}
                if random_.random() < 0.3:
                    expected.pop(key, None)
                    rows.append({**row, "_op": "delete"})
                else:
                    expected[key] = (*key, f"{code}@{seq}", [code, None])
                    rows.append({**row, "_op": "upsert", "name": f"{code}@{seq}", "tags": [code, None]})
        random_.shuffle(rows)
        deliver(ice, batch_of(after, upto, columns, key=("day", "code")), *rows)
        assert held(ice, *columns.names) == sorted(expected.values(), key=repr), f"seed {seed}"
    assert len(list(table_of(ice).scan().plan_files())) <= 8


def test_a_mirror_leaves_files_alone_that_hold_no_changed_key(local: dict[str, str], opened: Opened) -> None:
    def files() -> set[str]:
        return {task.file.file_path for task in table_of(ice).scan().plan_files()}

    ice = opened(local, mode="mirror")
    deliver(ice, batch_of(0, 1), up(1, 1, name="a"), up(1, 2, name="b"))
    first = files()
    deliver(ice, batch_of(1, 2), up(2, 5, name="e"), up(2, 6, name="f"))
    deliver(ice, batch_of(2, 3), up(3, 6, name="F"))
    assert first < files()
    assert held(ice, "id", "name") == [(1, "a"), (2, "b"), (5, "e"), (6, "F")]


def test_a_mirror_keeps_nested_values_as_they_are(local: dict[str, str], opened: Opened) -> None:
    columns = pa.schema([("id", pa.int64()), ("parts", pa.list_(pa.struct([("x", pa.int8())])))])
    ice = opened(local, mode="mirror")
    deliver(ice, batch_of(0, 1, columns), up(1, 1), up(1, 3, parts=[]), up(1, 5, parts=[{"x": 1}, None]), up(1, 7))
    deliver(ice, batch_of(1, 2, columns), up(2, 7, parts=None), up(2, 8))
    files = [task.file.file_path.removeprefix("file://") for task in table_of(ice).scan().plan_files()]
    found = rows_of(duckdb.read_parquet(files).to_arrow_table())
    assert found == [(1, None), (3, []), (5, [{"x": 1}, None]), (7, None), (8, None)]


def test_a_mirror_that_others_changed_is_refused_and_a_packed_one_not(local: dict[str, str], opened: Opened) -> None:
    ice = opened(local, mode="mirror")
    deliver(ice, batch_of(0, 1), up(1, 1, name="a"), up(1, 2, name="b"))
    table = table_of(ice)
    table.overwrite(table.scan().to_arrow())
    deliver(ice, batch_of(1, 2), up(2, 2, name="B"))
    assert held(ice, "id", "name") == [(1, "a"), (2, "B")]
    table = table_of(ice)
    table.append(pa.table({"id": [7, 8], "name": ["theirs", "x"], "qty": [1, 1]}, table.schema().as_arrow()))
    with refused(Conflict, expected=2, found=4):
        deliver(ice, batch_of(2, 3), up(3, 8, name="ours"))
    assert held(ice, "id", "name") == [(1, "a"), (2, "B"), (7, "theirs"), (8, "x")]


def test_a_mirror_replaces_no_rows_that_it_did_not_send(local: dict[str, str], opened: Opened) -> None:
    ice = opened(local)
    deliver(ice, batch_of(0, 1), up(1, 1, name="a"))
    table_of(ice).overwrite(pa.table({"id": [7]}, pa.schema([("id", pa.int64())])))
    with table_of(ice).update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("_op")
        update.delete_column("_seq")
    other = opened(local, replace(PRODUCER, consumer="other", generation="other"), mode="mirror")
    with refused(Invalid, consumer="other"):
        deliver(other, batch_of(0, 1), up(1, 1, name="b"))
    assert held(ice, "id") == [(7,)]


def test_a_late_batch_of_an_earlier_life_changes_no_mirror(local: dict[str, str], opened: Opened) -> None:
    old = opened(local, mode="mirror")
    deliver(old, batch_of(0, 1), up(1, 1, name="a"))
    late, results = batch_of(1, 2), written(old, batch_of(1, 2), up(2, 1, name="late"))
    new = opened(local, replace(PRODUCER, generation="next-life", life=2), mode="mirror")
    deliver(new, batch_of(0, 5), up(5, 1, name="new"))
    with refused(Conflict, consumer="ice"):
        old.finish(late, results)
    assert held(new, "id", "name") == [(1, "new")]


@pytest.mark.parametrize("is_repeated", [False, True])
def test_the_first_batch_of_a_mirror_replaces_what_an_earlier_life_brought(
    catalog: dict[str, str], opened: Opened, is_repeated: bool
) -> None:
    deliver(opened(catalog, mode="mirror"), batch_of(0, 2), *(up(2, id, name="old") for id in range(1, 6)))
    life = replace(PRODUCER, generation="next-life")
    ice = opened(catalog, life, mode="mirror")
    batch, rows = batch_of(0, 3), [up(3, 1, name="new"), up(3, 9, name="new")]
    results = written(ice, batch, *rows)
    if is_repeated:
        again = opened(catalog, life, mode="mirror")
        again.finish(batch, written(again, batch, *rows))
    ice.finish(batch, results)
    assert held(ice, "id", "name") == [(1, "new"), (9, "new")]
    assert snapshots(ice) == 2
    deliver(ice, batch_of(3, 4), up(4, 2, name="later"), gone(4, 9))
    assert held(ice, "id", "name") == [(1, "new"), (2, "later")]


def test_a_first_batch_without_rows_empties_a_mirror(local: dict[str, str], opened: Opened) -> None:
    deliver(opened(local, mode="mirror"), batch_of(0, 2), up(2, 1, name="old"))
    ice = opened(local, replace(PRODUCER, generation="next-life"), mode="mirror")
    deliver(ice, batch_of(0, 3))
    assert held(ice, "id") == []


def test_a_mirror_needs_a_table_of_rows(local: dict[str, str], opened: Opened) -> None:
    deliver(opened(local), batch_of(0, 1), up(1, 1))
    with refused(Invalid, consumer="ice"):
        opened(local, mode="mirror").lane(batch_of(0, 1))
