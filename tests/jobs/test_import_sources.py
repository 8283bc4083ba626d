"""Tables elsewhere that can be imported: Delta tables, Parquet files and folders; others are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import strandline as sl
from support import BUCKET, options_for, refused, rows_of

ROWS = pa.table(
    {
        "id": pa.array(range(100), pa.int64()),
        "part": pa.array([f"p{i % 3}" for i in range(100)]),
        "at": pa.array(range(100), pa.timestamp("us", "UTC")),
        "n": pa.array([None if i % 7 == 0 else i for i in range(100)], pa.uint16()),
    }
)


def test_parquet_files_and_folders_are_imported(lake: sl.Lake, tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "one.parquet")
    assert rows_of(lake.import_table("one", tmp_path / "one.parquet").to_arrow()) == rows_of(ROWS)
    folder = tmp_path / "many"
    (folder / "deeper").mkdir(parents=True)
    pq.write_table(ROWS.slice(0, 50), folder / "a.parquet")
    pq.write_table(ROWS.slice(50).drop_columns(["n"]), folder / "deeper" / "b.parquet")
    (folder / "_SUCCESS").write_text("")
    (folder / "_hidden.parquet").write_text("not parquet")
    found = lake.import_table("many", folder, key=["id"]).to_arrow().sort_by("id")
    assert found.column("id").to_pylist() == list(range(100))
    assert found.column("n").to_pylist() == [*ROWS.column("n").to_pylist()[:50], *[None] * 50]


def test_partition_folders_become_columns(lake: sl.Lake, tmp_path: Path) -> None:
    rows = ROWS.append_column("year", pa.array([2024 + i % 2 for i in range(100)]))
    ds.write_dataset(
        rows, tmp_path / "hive", format="parquet", partitioning=["year", "part"], partitioning_flavor="hive"
    )
    table = lake.import_table("hive", tmp_path / "hive", key=["id"])
    assert table.schema.field("year").type == pa.int64()
    wanted = [[row[name] for name in table.schema.names] for row in rows.to_pylist()]
    assert sorted(map(list, rows_of(table.to_arrow()))) == sorted(wanted)


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        (None, sl.NotFound),
        ("notes.txt", sl.NotFound),
        ("", sl.Invalid),
        (".hoodie/hoodie.properties", sl.Invalid),
        ("metadata/v1.metadata.json", sl.Invalid),
        ("a.parquet", sl.Invalid),
        (f"_delta_log/{0:020d}.json", sl.Invalid),
    ],
)
def test_what_is_no_table_is_refused(
    lake: sl.Lake, tmp_path: Path, file: str | None, kind: type[sl.StrandlineError]
) -> None:
    if file is not None:
        path = tmp_path / "source" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("nonsense")
    with refused(kind):
        lake.import_table("t", tmp_path / "source", key=["id"])
    assert lake.tables() == []


def test_tables_on_an_object_store_are_imported(s3_lake: Callable[..., sl.Lake], seaweed: str) -> None:
    lake = s3_lake()
    with lake.storage.output("parquet/a.parquet") as out:
        pq.write_table(ROWS, out)
    assert lake.import_table("p", f"{lake.storage.uri}/parquet", key=["id"]).to_arrow().num_rows == 100
    assert lake.import_table("f", f"{lake.storage.uri}/parquet/a.parquet").to_arrow().num_rows == 100
    options = {f"aws_{name}": value for name, value in options_for(seaweed).items()} | {"aws_allow_http": "true"}
    uri = f"{lake.storage.uri}/delta"
    assert BUCKET in uri
    write_deltalake(uri, ROWS, storage_options=options)
    assert rows_of(lake.import_table("d", uri, key=["id"]).to_arrow()) == rows_of(ROWS)


@pytest.mark.parametrize(
    "form", ["../{name}", "part=p0/../../{name}", "%2E%2E/{name}", "{folder}/{name}", "file://{folder}/{name}"]
)
def test_a_delta_table_that_names_files_outside_of_its_folder_is_not_imported(
    lake: sl.Lake, tmp_path: Path, form: str
) -> None:
    write_deltalake(tmp_path / "delta", ROWS.slice(0, 1))
    pq.write_table(ROWS.slice(1, 1), tmp_path / "secret.parquet")
    log = tmp_path / "delta" / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            size = (tmp_path / "secret.parquet").stat().st_size
            path = form.format(name="secret.parquet", folder=tmp_path)
            action["add"] = {**action["add"], "path": path, "size": size, "stats": None}
    log.write_text("\n".join(map(json.dumps, actions)))
    with refused(sl.Invalid, path=str(tmp_path / "delta")):
        lake.import_table("mine", tmp_path / "delta", key=["id"])
    assert "mine" not in lake.tables()
