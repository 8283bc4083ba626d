"""Delta tables of others: each feature is read rightly or refused by its name."""

from __future__ import annotations

import base64
import datetime as dt
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import strandline as sl
from support import refused

IDS = pa.table({"id": [1, 2, 3]})
ID = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
FAR = [dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1, 1, 1), None]


def _field(name: str, kind: Any, place: int | None = None) -> dict[str, Any]:
    mapped = {"delta.columnMapping.id": place, "delta.columnMapping.physicalName": f"c{place}"}
    return {"name": name, "type": kind, "nullable": True, "metadata": mapped if place else {}}


def _write_delta(
    folder: Path,
    fields: Sequence[Mapping[str, Any]] = (ID,),
    *,
    features: Sequence[str] = (),
    mapping: str | None = None,
    rows: pa.Table | None = IDS,
    file: str = "a.parquet",
    int96: bool = False,
    partitions: Mapping[str, str] | None = None,
    **add: Any,
) -> Path:
    """A Delta table of one file, its log written by hand: the library cannot write most features."""
    (folder / "_delta_log").mkdir(parents=True)
    if rows is not None:
        (folder / file).parent.mkdir(exist_ok=True)
        pq.write_table(rows, folder / file, use_deprecated_int96_timestamps=int96)
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if features:
        lists = {"readerFeatures": list(features), "writerFeatures": list(features)}
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **lists}
    metadata = {
        "id": "5f0a",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": list(fields)}),
        "partitionColumns": list(partitions or {}),
        "configuration": {"delta.columnMapping.mode": mapping, "delta.columnMapping.maxColumnId": "9"}
        if mapping
        else {},
    }
    size = (folder / file).stat().st_size if rows is not None else 100
    said = {"partitionValues": partitions or {}, "modificationTime": 0, "dataChange": True}
    action = {"path": file, "size": size, **said, **add}
    log = [{"protocol": protocol}, {"metaData": metadata}, {"add": action}]
    (folder / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, log)))
    return folder


def _rows(lake: sl.Lake, folder: Path, **options: Any) -> list[dict[str, Any]]:
    return list(lake.import_table("t", folder, **options).to_arrow().to_pylist())


def _inline_vector(deleted: Sequence[int]) -> dict[str, Any]:
    """A deletion vector in the log itself: one 32-bit Roaring bitmap with one array of 16-bit values, in Z85."""
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(deleted) - 1, 16) + struct.pack(f"<{len(deleted)}H", *deleted)
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    data += bytes(-len(data) % 4)
    # Z85 is base 85 with another alphabet.
    plain = bytes(range(48, 58)) + bytes(range(65, 91)) + bytes(range(97, 123)) + b"!#$%&()*+-;<=>?@^_`{|}~"
    other = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    text = base64.b85encode(data).translate(bytes.maketrans(plain, other)).decode()
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(deleted)}


def test_deleted_rows_are_not_imported(lake: sl.Lake, tmp_path: Path) -> None:
    folder = _write_delta(tmp_path / "d", features=["deletionVectors"], deletionVector=_inline_vector([0, 2]))
    assert _rows(lake, folder) == [{"id": 2}]


def test_a_deletion_vector_whose_file_is_gone_is_refused(lake: sl.Lake, tmp_path: Path) -> None:
    gone = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 1, "sizeInBytes": 36}
    vector = {**gone, "cardinality": 2}
    folder = _write_delta(tmp_path / "d", features=["deletionVectors"], deletionVector=vector)
    with refused(sl.Invalid, path=str(folder)) as caught:
        _rows(lake, folder)
    assert "deletion_vector_" in caught.value.message
    assert lake.tables() == []


@pytest.mark.parametrize(("feature", "kind"), [("typeWidening", "long"), ("dreaming", "long")])
def test_a_feature_that_cannot_be_read_is_named(lake: sl.Lake, tmp_path: Path, feature: str, kind: str) -> None:
    narrow = pa.table({"id": pa.array([1], pa.int32())})
    folder = _write_delta(tmp_path / "d", [_field("id", kind)], features=[feature], rows=narrow)
    with refused(sl.Invalid, path=str(folder)) as caught:
        _rows(lake, folder)
    assert feature.lower() in caught.value.fields["feature"].lower()
    assert lake.tables() == []


def test_variants_are_refused_by_column_or_left_out(lake: sl.Lake, tmp_path: Path) -> None:
    variant = pa.array([{"metadata": b"\1\0\0", "value": b"\0"}] * 3)
    fields = [
        ID,
        _field("v", "variant"),
        _field("l", {"type": "array", "elementType": "variant", "containsNull": True}),
    ]
    rows = IDS.append_column("v", variant).append_column("l", pa.array([[]] * 3, pa.list_(variant.type)))
    folder = _write_delta(tmp_path / "d", fields, features=["variantType"], rows=rows)
    with refused(sl.Invalid, columns=["v", "l"]):
        _rows(lake, folder)
    assert _rows(lake, folder, skip=["v", "l"]) == IDS.to_pylist()


@pytest.mark.parametrize("int96", [False, True])
@pytest.mark.parametrize("mapping", [None, "name"])
@pytest.mark.parametrize(("kind", "zone"), [("timestamp", "UTC"), ("timestamp_ntz", None)])
def test_times_keep_their_values(
    lake: sl.Lake, tmp_path: Path, kind: str, zone: str | None, mapping: str | None, int96: bool
) -> None:
    times = pa.array(FAR, pa.timestamp("us", zone))
    features = ["timestampNtz", *(["columnMapping"] if mapping else [])]
    fields = [_field("t", kind, 1 if mapping else None)]
    rows = pa.table({"c1" if mapping else "t": times})
    folder = _write_delta(tmp_path / "d", fields, features=features, mapping=mapping, rows=rows, int96=int96)
    found = lake.import_table("t", folder).to_arrow().column("t")
    assert found.type == times.type
    assert set(found.cast(pa.int64()).to_pylist()) == set(times.cast(pa.int64()).to_pylist())


def test_columns_that_are_mapped_by_id_are_found(lake: sl.Lake, tmp_path: Path) -> None:
    kind = pa.field("c7", pa.int64(), metadata={"PARQUET:field_id": "7"})
    rows = pa.table({"c7": [1]}, schema=pa.schema([kind]))
    folder = _write_delta(
        tmp_path / "d", [_field("id", "long", 7)], features=["columnMapping"], mapping="id", rows=rows
    )
    assert _rows(lake, folder) == [{"id": 1}]


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("a b.parquet", "a%20b.parquet"),
        ("p=a%20b/x.parquet", "p=a%2520b/x.parquet"),
        ("a.parquet", "{folder}/a.parquet"),
        ("a b.parquet", "file://{folder}/a%20b.parquet"),
    ],
)
def test_escaped_paths_and_absolute_paths_inside_are_read(lake: sl.Lake, tmp_path: Path, file: str, path: str) -> None:
    folder = tmp_path / "d"
    assert _rows(lake, _write_delta(folder, file=file, path=path.format(folder=folder))) == IDS.to_pylist()


def test_a_missing_data_file_is_named(lake: sl.Lake, tmp_path: Path) -> None:
    with refused(sl.Invalid, file="a.parquet"):
        _rows(lake, _write_delta(tmp_path / "d", rows=None))
    assert lake.tables() == []


@pytest.mark.parametrize("damage", ["log", "checkpoint", "data", "empty"])
def test_a_damaged_delta_table_is_invalid(lake: sl.Lake, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "d"
    write_deltalake(folder, IDS)
    log = folder / "_delta_log"
    if damage == "log":
        (log / f"{0:020d}.json").write_text('{"metaData": 5}\nnonsense')
    elif damage == "checkpoint":
        (log / f"{0:020d}.checkpoint.parquet").write_bytes(b"PAR1 nonsense PAR1")
        (log / "_last_checkpoint").write_text('{"version": 0, "size": 3}')
    elif damage == "data":
        file = next(folder.glob("*.parquet"))
        file.write_bytes(b"x" * file.stat().st_size)
    else:
        (log / f"{0:020d}.json").unlink()
        (log / "note.txt").write_text("")
    with refused(sl.Invalid, path=str(folder)):
        _rows(lake, folder)
    assert lake.tables() == []


def test_row_tracking_and_generated_columns_are_read(lake: sl.Lake, tmp_path: Path) -> None:
    made = {**_field("g", "long"), "metadata": {"delta.generationExpression": "id + 1"}}
    rows = IDS.append_column("g", pa.array([2, 3, 4]))
    folder = _write_delta(tmp_path / "d", [ID, made], rows=rows, baseRowId=0, defaultRowCommitVersion=0)
    assert _rows(lake, folder) == rows.to_pylist()
