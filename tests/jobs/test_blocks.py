"""Rows that travel as blocks: what comes out is what went in, laid by cluster key, and compact on the way."""

import itertools

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.engines.lanes import ExportLane, ReadLane, staged_of
from strandline.jobs.export import blocks as gather
from strandline.jobs.export.blocks import BLOCK, BlockLane, GatherLane
from strandline.model.types import JSON
from strandline.storage.open import LocalStorage
from support import rows_of

SCHEMA = pa.schema(
    [
        pa.field("session", pa.string()),
        pa.field("day", pa.date32()),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("tools", JSON),
        pa.field("raw", pa.binary()),
        pa.field("text", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
    ]
)
CLUSTER_BY = ("session", "day")
ORDER = (*CLUSTER_BY, "id")


def batches_of(rows, cuts):
    table = pa.Table.from_pylist(rows, SCHEMA)
    at = 0
    for cut in itertools.chain(cuts, [len(rows)]):
        part = table.slice(at, max(0, min(cut, len(rows) - at)))
        at += part.num_rows
        yield from part.combine_chunks().to_batches()
        if at >= len(rows):
            return


def sorted_blocks(blocks):
    """What Spark's sort does: blocks by their key, nulls first."""
    table = pa.Table.from_batches(blocks)
    by = [(name, "ascending") for name in CLUSTER_BY]
    return table.sort_by(by).to_batches(max_chunksize=3)


def written(folder, blocks):
    storage = LocalStorage(str(folder))
    lane = BlockLane(ExportLane(storage, "x", SCHEMA, CLUSTER_BY), CLUSTER_BY, ORDER, SCHEMA)
    receipts = [row for batch in lane(iter(blocks)) for row in batch.to_pylist()]
    files, staged, failure = staged_of(receipts)
    assert failure is None, failure
    storage.publish(staged)
    return [pq.read_table(storage.url(file.path)) for file in files]


WIDE = [f'{{"tool": "{letter * 700}"}}' for letter in "abc"]
rows = st.lists(
    st.fixed_dictionaries(
        {
            "session": st.sampled_from(["s1", "s2", None, ""]),
            "day": st.sampled_from([0, 20_000, None]),
            "tools": st.sampled_from([*WIDE, "[]", None]),
            "raw": st.sampled_from([b"\0" * 600, b"", None]),
            "text": st.one_of(st.none(), st.text(max_size=5), st.just("t" * 999)),
            "tags": st.one_of(st.none(), st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=3)),
        }
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=40)
@given(rows=rows, cuts=st.lists(st.integers(0, 20), max_size=6), held=st.sampled_from([1, 4000, 32 << 20]))
def test_what_travels_in_blocks_arrives_as_it_was(tmp_path_factory, rows, cuts, held):
    rows = [{**row, "id": at} for at, row in enumerate(rows)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "_HELD_BYTES", held)
        patch.setattr(gather, "_SENT_BYTES", held)
        blocks = list(GatherLane(SCHEMA, CLUSTER_BY, None)(batches_of(rows, cuts)))
        found = written(tmp_path_factory.mktemp("out"), sorted_blocks(blocks))
    table = pa.concat_tables(found)
    assert rows_of(table) == rows_of(pa.Table.from_pylist(rows, SCHEMA))
    keys = [(row["session"], row["day"]) for row in table.to_pylist()]
    runs = [key for key, _ in itertools.groupby(keys)]
    assert len(runs) == len(set(runs)), "a key lies together"
    if held > 1 << 20:
        for key, group in itertools.groupby(table.to_pylist(), key=lambda row: (row["session"], row["day"])):
            ids = [row["id"] for row in group]
            assert ids == sorted(ids), key


def test_a_wide_value_travels_once_a_block():
    value = "x" * 100_000
    rows = [
        {"session": f"s{at % 4}", "day": 1, "id": at, "tools": f'"{at % 4}{value}"', "text": value} for at in range(400)
    ]
    blocks = list(GatherLane(SCHEMA, CLUSTER_BY, None)(batches_of(rows, [50] * 8)))
    sizes = [len(block) for batch in blocks for block in batch.column(BLOCK).to_pylist()]
    assert len(sizes) == 4
    assert all(200_000 < size < 230_000 for size in sizes)


def test_files_are_read_into_blocks_with_their_dictionaries(tmp_path):
    """Columns that a file of an earlier schema lacks are null; narrower numbers are widened."""
    value = "x" * 50_000
    old = pa.schema([("session", pa.string()), ("id", pa.int32()), ("tools", JSON)])
    rows = [{"session": f"s{at % 3}", "id": at, "tools": f'"{at % 3}{value}"'} for at in range(300)]
    pq.write_table(pa.Table.from_pylist(rows, old), tmp_path / "old.parquet", dictionary_pagesize_limit=1 << 30)
    newer = [{**row, "id": row["id"] + 300, "text": value, "tags": ["a"], "day": 3} for row in rows]
    pq.write_table(pa.Table.from_pylist(newer, SCHEMA), tmp_path / "new.parquet")
    read = ReadLane(LocalStorage(str(tmp_path)), (old, SCHEMA), tuple(SCHEMA.names), None)
    listing = pa.RecordBatch.from_pylist(
        [{"path": "old.parquet", "schema_id": 0, "number": 0}, {"path": "new.parquet", "schema_id": 1, "number": 0}]
    )
    coded = list(read.read_coded(iter([listing])))
    assert pa.types.is_dictionary(coded[0].column("tools").type) and len(coded[0].column("tools").dictionary) == 3
    blocks = list(GatherLane(SCHEMA, CLUSTER_BY, read)(iter([listing])))
    table = pa.concat_tables(written(tmp_path / "out", sorted_blocks(blocks)))
    assert rows_of(table) == rows_of(pa.Table.from_pylist([*rows, *newer], SCHEMA))
