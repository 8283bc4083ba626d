"""Tables to ask, and a plain DuckDB that holds the same rows.

A test module takes the fixtures that it needs by assignment, as in `both = queries.both`."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

import strandline as sl

PEOPLE = [
    {"id": 1, "name": "ada", "town": "rome", "born": "1990-02-03", "tags": ["a", "b"], "facts": '{"k": [1, 2]}'},
    {"id": 2, "name": "bo", "town": "oslo", "born": "1985-12-31", "tags": [], "facts": '{"k": []}'},
    {"id": 3, "name": "cy", "town": "rome", "born": None, "tags": None, "facts": None},
    {"id": 4, "name": "Dee", "town": None, "born": "2001-06-15", "tags": ["b"], "facts": '{"z": "x"}'},
]


SALES = [
    {"id": n, "person": 1 + n % 4, "amount": n * 1.5, "kind": "ab"[n % 2], "place": {"x": n, "y": f"p{n}"}}
    for n in range(12)
]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A lake with rows in baseline and log, and a plain DuckDB with the same rows."""
    lake = sl.Lake(tmp_path_factory.mktemp("lake"))
    plain = duckdb.connect()
    plain.execute("SET TimeZone = 'UTC'")
    texts = [(name, pa.string()) for name in ("name", "town", "born", "facts")]
    people = pa.schema([("id", pa.int64()), *texts, ("tags", pa.list_(pa.string()))])
    place = pa.struct([("x", pa.int64()), ("y", pa.string())])
    sales = pa.schema(
        [("id", pa.int64()), ("person", pa.int64()), ("amount", pa.float64()), ("kind", pa.string()), ("place", place)]
    )
    for name, rows, schema in (("people", PEOPLE, people), ("sales", SALES, sales)):
        table = lake.create_table(name, schema, key=["id"], vnodes=2)
        table.upsert([{**row, "id": row["id"] + 100} for row in rows])
        table.upsert([{**rows[0], "kind": "old"} if name == "sales" else {**rows[0], "name": "old"}])
        table.compact(full=True)
        table.upsert(rows)
        table.delete([row["id"] + 100 for row in rows])
        plain.register("_rows", pa.Table.from_pylist(rows, schema))
        plain.execute(f"CREATE TABLE {name} AS FROM _rows")
    return lake, plain
