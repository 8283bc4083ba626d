"""A `Path` is taken wherever a path goes."""

import json
from pathlib import Path

import pytest

import strandline as sl
from strandline.jobs.ingest.source import list_paths


def test_every_call_that_takes_a_path_takes_a_path_object(tmp_path: Path):
    lake = sl.Lake(tmp_path / "lake", state=tmp_path / "marks.db")
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"id": 1}) + "\n")
    lake.ingest("items", file, key=["id"])
    assert lake.ingest("items", [file]).rows == 0
    table = lake.table("items")
    table.export(tmp_path / "export")
    assert lake.import_table("copy", tmp_path / "export", key=["id"]).count() == 1
    lake.sink("out", "items", to=sl.ParquetSink(tmp_path / "out"))
    lake.sink("delta", "items", to=sl.DeltaSink(tmp_path / "delta"))
    assert lake.tick().is_well
    lake.backup(tmp_path / "backup")
    sl.Lake.restore_backup(tmp_path / "backup", tmp_path / "restored")
    assert sl.Lake(tmp_path / "restored").table("items").count() == 1
    assert (tmp_path / "marks.db").exists() and not (tmp_path / "lake" / "state.db").exists()


@pytest.mark.parametrize("given", ["a", Path("a"), ["a"], [Path("a")], (Path("a"),)])
def test_one_path_or_several_of_any_kind(given):
    assert list_paths(given) == ["a"]
