"""Every type of a file has a stored type that holds its values exactly, or is refused by name."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import strandline as sl
from strandline.jobs.foreign_types import (
    convert_array,
    convert_rows,
    leave_out,
    stored_schema,
    stored_type,
    unify_files,
)
from strandline.model.types import JSON, canonical_type
from support import refused

ONE = uuid.UUID("0f8fad5b-d9cb-469f-a165-70867728950e")
TIMES = {0: "00:00:00", 1: "00:00:00.000000001", 1500: "00:00:00.000001500", 5_000_000_000: "00:00:05"}


def _extension(kind: pa.DataType, values: list[Any]) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


CASES: list[tuple[pa.Array, pa.DataType, list[Any]]] = [
    (pa.array([0, 2**64 - 1, None], pa.uint64()), pa.decimal128(20, 0), [Decimal(0), Decimal(2**64 - 1), None]),
    (pa.array([255, None], pa.uint8()), pa.int16(), [255, None]),
    (pa.array([1.5, None], pa.float16()), pa.float32(), [1.5, None]),
    (pa.array([b"ab", None], pa.binary(2)), pa.binary(), [b"ab", None]),
    (_extension(pa.uuid(), [None, ONE.bytes]), pa.string(), [None, str(ONE)]),
    (_extension(pa.bool8(), [0, 1, None]), pa.bool_(), [False, True, None]),
    (_extension(pa.json_(pa.large_string()), ["{}", None]), JSON, ["{}", None]),
    (pa.nulls(2), pa.string(), [None, None]),
    (pa.array([*TIMES, None], pa.time64("ns")), pa.string(), [*TIMES.values(), None]),
    (pa.array([86_399_999], pa.time32("ms")), pa.string(), ["23:59:59.999000"]),
    (pa.array([2, None], pa.duration("s")), pa.int64(), [2_000_000, None]),
    (pa.array([7000], pa.duration("ns")), pa.int64(), [7]),
    (pa.array([Decimal("1.50")], pa.decimal256(38, 2)), pa.decimal128(38, 2), [Decimal("1.50")]),
    (pa.array([Decimal("1.50")], pa.decimal256(60, 2)), pa.string(), ["1.50"]),
    (pa.array([Decimal("1.5")], pa.decimal32(5, 1)), pa.decimal128(5, 1), [Decimal("1.5")]),
    (pa.array([Decimal(100)], pa.decimal128(5, -2)), pa.decimal128(7, 0), [Decimal(100)]),
    (pa.array(["x", None, "x"]).dictionary_encode(), pa.string(), ["x", None, "x"]),
    (pc.run_end_encode(pa.array([1, 1, 2])), pa.int64(), [1, 1, 2]),
    (pa.array([["a"], None, [], ["c"]], pa.list_view(pa.string())), pa.list_(pa.string()), [["a"], None, [], ["c"]]),
    (pa.array([[1, 2], None], pa.list_(pa.time32("s"), 2)), pa.list_(pa.string()), [["00:00:01", "00:00:02"], None]),
    (pa.array([[2**64 - 1]], pa.large_list(pa.uint64())), pa.list_(pa.decimal128(20, 0)), [[Decimal(2**64 - 1)]]),
    (
        pa.array([None, [("k", 1)], [("l", None)]], pa.map_(pa.string(), pa.time64("us"))),
        pa.map_(pa.string(), pa.string()),
        [None, [("k", "00:00:00.000001")], [("l", None)]],
    ),
    (
        pa.array([{"n": None, "d": [1]}, None], pa.struct([("n", pa.null()), ("d", pa.list_(pa.duration("us")))])),
        pa.struct([("n", pa.string()), ("d", pa.list_(pa.int64()))]),
        [{"n": None, "d": [1]}, None],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("array", "kind", "values"), CASES, ids=[str(case[0].type) for case in CASES])
def test_a_foreign_type_becomes_the_stored_type_that_holds_its_values(
    array: pa.Array, kind: pa.DataType, values: list[Any]
) -> None:
    assert stored_type(array.type) == kind
    assert canonical_type(kind, "a") == kind
    found = convert_array(array, kind)
    found.validate(full=True)
    assert found.to_pylist() == values
    assert convert_array(array.slice(1), kind).to_pylist() == values[1:]


@pytest.mark.parametrize(
    ("array", "row"),
    [
        (pa.array([0, 1], pa.duration("ns")), 1),
        (pa.array([None, 86_400_000_000], pa.int64()).cast(pa.time64("us")), 1),
        (pa.array([-1], pa.int64()).cast(pa.time64("us")), 0),
        (pa.array([1_000, 1_001], pa.timestamp("ns")), 1),
    ],
    ids=["digits after microseconds", "24:00", "before midnight", "nanoseconds"],
)
def test_a_value_that_has_no_exact_form_is_named(array: pa.Array, row: int) -> None:
    schema = pa.schema([("a", stored_type(array.type))])
    with refused(sl.Invalid, row=10 + row, column="a"):
        convert_rows(pa.table({"a": array}), schema, 10)


def test_all_columns_without_a_stored_type_are_named_at_once() -> None:
    odd = pa.sparse_union([pa.field("x", pa.int64())])
    with refused(sl.Invalid, columns=["a", "c"]) as caught:
        stored_schema(pa.schema([("a", odd), ("b", pa.int64()), ("c", pa.list_(odd))]))
    assert "--skip a,c" in caught.value.hint


def test_a_column_to_skip_must_be_there() -> None:
    assert leave_out(["a", "b"], ["a"], "here") == ["b"]
    with refused(sl.Invalid, column="c"):
        leave_out(["a", "b"], ["a", "c"], "here")


def test_files_of_different_types_share_one_that_holds_all_values() -> None:
    schemas = [
        pa.schema([pa.field("a", pa.uint64(), nullable=False), ("b", pa.null()), ("c", pa.int32())]),
        pa.schema([("a", pa.int64()), ("b", pa.time32("s")), ("c", pa.int64()), pa.field("d", pa.int8(), False)]),
    ]
    found = unify_files(schemas, ["a", "b", "c", "d"], [], "here")
    assert found == pa.schema([("a", pa.decimal128(20, 0)), ("b", pa.string()), ("c", pa.int64()), ("d", pa.int8())])
    with refused(sl.Invalid):
        unify_files([pa.schema([("a", pa.int64())]), pa.schema([("a", pa.string())])], ["a"], [], "here")
