"""Text files in folders named `column=value` get that column; columns can be left out of every format."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import strandline as sl
from support import refused, rows_of

CSV = "id,note,Order Date\n{},x,2024-01-01\n"
JSON = '{{"id": {}, "note": "x", "Order Date": "2024-01-01"}}\n'


@pytest.fixture(params=["csv", "json"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    for at, name in enumerate(["year=2023/zone=a%20b", "year=2024/zone=__HIVE_DEFAULT_PARTITION__"]):
        (tmp_path / "data" / name).mkdir(parents=True)
        text = (CSV if request.param == "csv" else JSON).format(at)
        (tmp_path / "data" / name / f"f.{request.param}").write_text(text)
    return tmp_path / "data"


def test_folders_of_text_files_are_columns(lake: sl.Lake, folder: Path) -> None:
    lake.ingest("t", [str(folder)], key=["year", "id"], skip=["note", "Order Date"])
    assert sorted(lake.table("t").to_arrow().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 0, "year": 2023, "zone": "a b"},
        {"id": 1, "year": 2024, "zone": None},
    ]


def test_columns_of_text_files_and_of_their_folders_are_left_out(lake: sl.Lake, folder: Path) -> None:
    lake.ingest("t", [str(folder)], key=["id"], skip=["note", "year"])
    assert lake.table("t").schema.names == ["id", "order_date", "zone"]
    table = lake.create_table("made", "id:int64, note:string", key=["id"])
    with refused(sl.Invalid, column="Order Date"):
        lake.ingest("made", [str(folder)], skip=["year", "zone"])
    lake.ingest("made", [str(folder)], skip=["year", "zone", "Order Date", "note"])
    assert rows_of(table.to_arrow()) == [(0, None), (1, None)]
    with refused(sl.Invalid, column="nope"):
        lake.ingest("other", [str(folder)], key=[], skip=["nope"])


def test_a_table_without_the_column_of_a_folder_is_told(lake: sl.Lake, folder: Path) -> None:
    lake.create_table("t", "id:int64, note:string, order_date:date", key=["id"])
    with refused(sl.Invalid, column="year") as caught:
        lake.ingest("t", [str(folder)])
    assert "--skip year,zone" in caught.value.hint


@pytest.mark.parametrize(("name", "text"), [("a.csv", "id,p\n1,{}\n2,{}\n"), ("a.json", '{{"id": 1, "p": {}}}\n')])
def test_a_text_file_with_the_column_of_its_folder_must_agree(
    lake: sl.Lake, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / "p=7").mkdir()
    path = tmp_path / "p=7" / name
    path.write_text(text.format(8, 8))
    with refused(sl.Invalid, column="p", file=str(path)):
        lake.ingest("t", [str(path)], key=["id"])
    path.write_text(text.format(7, 7))
    lake.ingest("t", [str(path)], key=["id"])
    assert set(lake.table("t").to_arrow().column("p").to_pylist()) == {7}


def test_a_row_that_is_retried_keeps_the_value_of_its_folder(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "d" / "y=1").mkdir(parents=True)
    (tmp_path / "d" / "y=1" / "a.csv").write_text("id,a\n2,5\n3,300000\n")
    table = lake.create_table("t", "id:int64, a:int16, y:int64", key=["id"])
    assert lake.ingest("t", [str(tmp_path / "d")], rejects=True).rejects == 1
    table.evolve(pa.schema([("a", pa.int64())]))
    table.rejects().retry()
    assert rows_of(table.to_arrow()) == [(2, 5, 1), (3, 300000, 1)]
