"""The one Parquet reader: batches are bounded by bytes whatever the rows are, damage is noticed."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.storage.open import LocalStorage
from strandline.storage.parquet import reader

MIB = 1 << 20


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(str(tmp_path))


def opened(storage, table, *, is_coded=False, **options):
    pq.write_table(table, storage.url("x.parquet"), dictionary_pagesize_limit=1 << 30, **options)
    return reader.open_file(storage, "x.parquet", is_coded=is_coded)


def test_narrow_rows_come_in_large_batches(storage):
    table = pa.table({"n": range(100_000)})
    with opened(storage, table) as file:
        batches = list(reader.batches(file))
    assert pa.Table.from_batches(batches).equals(table)
    assert max(batch.num_rows for batch in batches) > 8000


def test_rows_that_turn_wide_come_in_small_batches(storage):
    wide = "x" * 100_000
    table = pa.table({"text": pa.array([None] * 3000 + [wide] * 3000)})
    with opened(storage, table) as file:
        batches = list(reader.batches(file, ["text"]))
    assert sum(batch.num_rows for batch in batches) == 6000
    assert max(batch.nbytes for batch in batches) <= reader.BATCH_BYTES + 512 * 100_010


def test_no_rows_are_no_batches(storage):
    with opened(storage, pa.table({"n": pa.array([], pa.int64())})) as file:
        assert list(reader.batches(file)) == []
        assert list(reader.coded_batches(file, ["n"])) == []


def test_coded_texts_stay_in_their_dictionary_and_the_others_bound_the_batch(storage):
    same = [f"{at % 3}" + "s" * 50_000 for at in range(3000)]
    each = [f"{at:05d}" + "u" * 20_000 for at in range(3000)]
    table = pa.table({"same": same, "each": each})
    with opened(storage, table, is_coded=True, use_dictionary=["same"]) as file:
        batches = list(reader.coded_batches(file, ["same", "each"]))
    assert all(pa.types.is_dictionary(batch.schema.field("same").type) for batch in batches)
    assert all(batch.schema.field("each").type == pa.string() for batch in batches)
    assert max(batch.column("each").nbytes for batch in batches) <= reader.BATCH_BYTES + MIB
    assert [text for batch in batches for text in batch.column("same").to_pylist()] == same
    assert [text for batch in batches for text in batch.column("each").to_pylist()] == each


@pytest.mark.parametrize("is_coded", [False, True])
def test_a_flipped_bit_is_noticed(storage, is_coded):
    table = pa.table({"text": [f"value {at}" for at in range(1000)]})
    opened(storage, table, write_page_checksum=True, compression="none", use_dictionary=False).close()
    data = bytearray(storage.read("x.parquet"))
    at = data.index(b"value 500")
    data[at] ^= 1
    with open(storage.url("x.parquet"), "wb") as file:
        file.write(data)
    read = reader.coded_batches if is_coded else reader.batches
    with reader.open_file(storage, "x.parquet", is_coded=is_coded) as file, pytest.raises(OSError, match="CRC"):
        list(read(file, ["text"]))
