"""Folders named `column=value` become columns, with a type that writes every value as the folder does."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

import strandline as sl
from strandline.jobs.partitions import add_partitions, partition_fields, partitions_of
from support import refused


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("data/year=2024/month=01/a.parquet", {"year": "2024", "month": "01"}),
        ("data/city=S%C3%A3o%20Paulo%2FX/a.csv", {"city": "São Paulo/X"}),
        ("a%20b=1/a.csv", {"a b": "1"}),
        ("p=__HIVE_DEFAULT_PARTITION__/a.csv", {"p": None}),
        ("q=a=b/r=/a.csv", {"q": "a=b", "r": ""}),
        ("=x/plain/year=2024.parquet", {}),
    ],
)
def test_folders_of_a_path_hold_values(path: str, found: dict[str, str | None]) -> None:
    assert partitions_of(path) == found


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["2024", "-1", "0", None], pa.int64()),
        (["01", "02"], pa.string()),
        (["1", "+2"], pa.string()),
        (["-0"], pa.string()),
        (["9223372036854775808"], pa.string()),
        (["٣"], pa.string()),
        (["2024-02-29", "1999-12-31"], pa.date32()),
        (["2024-02-30"], pa.string()),
        (["20240229", "2024-02-29"], pa.string()),
        ([None], pa.string()),
    ],
)
def test_a_type_is_inferred_only_when_every_value_is_written_that_way(
    texts: list[str | None], kind: pa.DataType
) -> None:
    assert partition_fields([{"p": text} for text in texts]) == [pa.field("p", kind)]


def test_values_are_added_in_the_type_of_the_column() -> None:
    schema = pa.schema([("p", pa.int16()), ("day", pa.date32()), ("id", pa.int64())])
    rows = add_partitions(pa.table({"id": [1, 2]}), {"p": "7", "day": "2024-02-29", "other": "x"}, schema, "here")
    assert rows.to_pylist() == [{"id": i, "p": 7, "day": dt.date(2024, 2, 29)} for i in (1, 2)]
    with refused(sl.Invalid, column="p", file="here"):
        add_partitions(pa.table({"id": [1]}), {"p": "x"}, schema, "here")


def test_a_column_inside_of_the_file_must_have_the_value_of_the_folder() -> None:
    schema = pa.schema([("p", pa.int64())])
    rows = pa.table({"p": [7, 7]})
    assert add_partitions(rows, {"p": "7"}, schema, "here") == rows
    for text in ("8", "x", None):
        with refused(sl.Invalid, column="p", file="here"):
            add_partitions(rows, {"p": text}, schema, "here")
    with refused(sl.Invalid, column="p"):
        add_partitions(pa.table({"p": [7, 8]}), {"p": "7"}, schema, "here")
