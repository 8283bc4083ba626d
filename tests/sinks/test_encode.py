"""The rows of a chunk as bytes: the same rows give the same bytes, and no value loses anything."""

import base64
import datetime as dt
import decimal
import gzip
import json

import pyarrow as pa
import pytest

from strandline.model.types import JSON
from strandline.sinks.forward import encode


def test_json_says_every_value_without_loss():
    when = dt.datetime(2024, 1, 31, 12, 0, 0, 123456)
    columns = {
        "bool": (pa.bool_(), True, True),
        "int": (pa.int64(), 2**60 + 1, 2**60 + 1),
        "float": (pa.float64(), 0.1, 0.1),
        "single": (pa.float32(), 1.5, 1.5),
        "nan": (pa.float64(), float("nan"), "NaN"),
        "less": (pa.float64(), float("-inf"), "-Infinity"),
        "decimal": (pa.decimal128(20, 10), decimal.Decimal("0.0000000100"), "0.0000000100"),
        "text": (pa.string(), 'a "ü"\n\u2028', 'a "ü"\n\u2028'),
        "binary": (pa.binary(), b"\xff\0a", base64.b64encode(b"\xff\0a").decode()),
        "date": (pa.date32(), dt.date(2024, 1, 31), "2024-01-31"),
        "moment": (pa.timestamp("us", "UTC"), when.replace(tzinfo=dt.UTC), "2024-01-31T12:00:00.123456Z"),
        "local": (pa.timestamp("us"), when, "2024-01-31T12:00:00.123456"),
        "json": (JSON, '{"b": 1,\n "a": [1.0]}', {"b": 1, "a": [1.0]}),
        "json_text": (JSON, '"5"', "5"),
        "list": (pa.list_(pa.date32()), [dt.date(2024, 1, 31), None], ["2024-01-31", None]),
        "struct": (pa.struct([("a", pa.binary()), ("b", pa.int8())]), {"a": b"x", "b": None}, {"a": "eA==", "b": None}),
        "map": (pa.map_(pa.string(), pa.float64()), [("k", float("inf"))], {"k": "Infinity"}),
        "pairs": (pa.map_(pa.int8(), pa.string()), [(1, "one")], [[1, "one"]]),
    }
    schema = pa.schema([(name, kind) for name, (kind, _, _) in columns.items()])
    full = {name: value for name, (_, value, _) in columns.items()}
    rows = pa.RecordBatch.from_pylist([full, dict.fromkeys(columns)], schema=schema)
    data, headers = encode.encode(rows, "ndjson")
    assert headers == {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"}
    lines = [json.loads(line, parse_constant=pytest.fail) for line in gzip.decompress(data).decode().split("\n")[:-1]]
    assert lines == [{name: said for name, (_, _, said) in columns.items()}, dict.fromkeys(columns)]
    assert encode.encode(rows, "ndjson")[0] == data


def test_json_says_years_that_python_does_not_know():
    times = pa.array([253402300800000000], pa.timestamp("us", "UTC"))
    data, _ = encode.encode(pa.record_batch({"at": times}), "ndjson")
    assert json.loads(gzip.decompress(data)) == {"at": "10000-01-01T00:00:00.000000Z"}


def test_arrow_keeps_types_and_compresses():
    rows = pa.RecordBatch.from_pylist([{"a": "{}" * 500}] * 100, schema=pa.schema([("a", JSON)]))
    data, _ = encode.encode(rows, "arrow")
    assert pa.ipc.open_stream(data).read_all().schema == rows.schema
    assert len(data) < 2000
