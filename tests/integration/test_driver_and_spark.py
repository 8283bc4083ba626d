"""Each operation leaves the same table on the driver and on Spark, for a column of every type."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shapes
import strandline as sl
from shapes import OPTIONS, as_frame, plain
from support import refused

SCHEMA = pa.schema(
    [
        *shapes.SCHEMA,
        pa.field("tiny", pa.int8()),
        pa.field("mid", pa.int32()),
        pa.field("single", pa.float32()),
        pa.field("huge", pa.decimal128(38, 10)),
        pa.field("map", pa.map_(pa.string(), pa.int64())),
        pa.field("deep", pa.list_(pa.struct([("on", pa.date32()), ("raw", pa.list_(pa.binary()))]))),
    ]
)


def row(n, rev=0):
    return {
        **shapes.row(n, rev),
        "tiny": None if n % 5 == 0 else n - 128,
        "mid": -(1 << 31) + n,
        "single": [float("nan"), float("-inf"), -0.0, 1.5][n % 4],
        "huge": [None, Decimal("9" * 28 + ".0000000001"), Decimal(-n)][n % 3],
        "map": [None, [], [("a", n), ("b", None)]][n % 3],
        "deep": [None, [], [{"on": dt.date(1582, 10, 10), "raw": [b"\0", None]}, None]][n % 3],
    }


class Side:
    """One engine at work on a lake of its own."""

    def __init__(self, folder, engine, spark):
        self.folder, self.engine = folder / engine, engine
        self.spark = spark if engine == "spark" else None
        self.lake = sl.Lake(self.folder / "lake", spark=spark)
        folder.joinpath(engine).mkdir()

    def rows(self, rows, schema):
        """The rows as a DataFrame, or as Arrow."""
        if self.spark is not None:
            return as_frame(self.spark, rows, schema, self.folder)
        return pa.Table.from_pylist(rows, schema)

    def keys(self, *ids):
        keys = [{"part": f"p{n // 10}", "id": n % 10} for n in ids]
        return self.rows(keys, pa.schema([SCHEMA.field("part"), SCHEMA.field("id")]))


@pytest.mark.parametrize("shape", OPTIONS)
def test_each_operation_leaves_the_same_for_every_type(spark, tmp_path, monkeypatch, shape):
    sides = [Side(tmp_path, engine, spark) for engine in ("driver", "spark")]
    is_keyed = shape != "unkeyed"

    def both(operation, name="t"):
        """Do the operation on both sides; what it leaves is the same."""
        found = []
        for side in sides:
            monkeypatch.setenv("STRANDLINE_ENGINE", side.engine)
            operation(side)
            table = side.lake.table(name)
            changes = table.changes() if not table.log.refresh().trimmed_to else None
            found.append((table.head, plain(table.to_arrow()), changes and plain(changes), table.schema))
            assert plain(table.to_spark().toArrow()) == found[-1][1]
        assert found[0] == found[1]

    def write(side, rows, schema):
        table = side.lake.table("t")
        (table.upsert if is_keyed else table.append)(side.rows(rows, schema))

    both(lambda side: side.lake.create_table("t", SCHEMA, **OPTIONS[shape]))
    both(lambda side: write(side, [row(n) for n in range(40)], SCHEMA))
    both(lambda side: side.lake.table("t").compact(full=True))
    both(lambda side: write(side, [row(n, rev=1) for n in range(30, 50)], SCHEMA))
    both(
        lambda side: side.lake.table("t").evolve(pa.schema([("tiny", pa.int64()), ("more", SCHEMA.field("deep").type)]))
    )
    wider = pa.schema([pa.field("tiny", pa.int64()) if each.name == "tiny" else each for each in SCHEMA])
    wider = wider.append(pa.field("more", SCHEMA.field("deep").type))
    later = [{**row(n, rev=2), "more": row(n)["deep"]} for n in range(45, 60)]
    both(lambda side: write(side, later, wider))
    if is_keyed:
        both(lambda side: side.lake.table("t").delete(side.keys(3, 44, 45, 99)))

    exported = []
    for side in sides:
        monkeypatch.setenv("STRANDLINE_ENGINE", side.engine)
        report = side.lake.table("t").export(side.folder / "out")
        assert report.engine == side.engine
        exported.append(pq.read_table(side.folder / "out"))
        changes = side.lake.table("t").export(side.folder / "changes", changes=(1, None))
        assert changes.engine == side.engine
    assert plain(exported[0]) == plain(exported[1])
    assert exported[0].schema.remove_metadata().equals(exported[1].schema.remove_metadata())
    assert plain(pq.read_table(sides[0].folder / "changes")) == plain(pq.read_table(sides[1].folder / "changes"))

    def send(side):
        side.lake.sink("files", "t", to=sl.ParquetSink(str(side.folder / "sent")), start="backfill")
        assert side.lake.plan().sinks[0].works[0].engine == side.engine
        side.lake.tick(only=["files"]).raise_for_errors()

    both(send)
    assert plain(pq.read_table(sides[0].folder / "sent" / "data")) == plain(
        pq.read_table(sides[1].folder / "sent" / "data")
    )

    # Both load the files that the driver exported.
    files = str(sides[0].folder / "out" / "*.parquet")
    key = OPTIONS[shape].get("key", [])
    both(lambda side: side.lake.ingest("loaded", files, key=key), "loaded")
    assert plain(sides[0].lake.table("loaded").to_arrow()) == plain(sides[0].lake.table("t").to_arrow())
    if shape == "keyed":
        both(lambda side: side.lake.table("t").restore(2))
        both(lambda side: side.lake.table("t").restore(1))
    else:
        for side in sides:
            with refused():
                side.lake.table("t").restore(1)
    both(lambda side: side.lake.table("t").compact(full=True))
