"""The messages of an Arrow stream, counted before anything is made of them."""

import struct

import pyarrow as pa
import pytest

from receiving import MIB, arrow, refusal, weight
from strandline.server.arrow_messages import FlatTable, schema_size
from strandline.server.body import BodyFormat, decode
from strandline.sinks.forward.refusal import Refusal


def _shared_field(count, size):
    """A schema of one field with a long name, told to be every column: four bytes each. Arrow takes 3.9 GB for 4000
    columns with a name of a megabyte. That such a schema is counted before it is made is why its message is read by
    hand, whether or not buffers are compressed."""
    fields = [pa.field("n" * size, pa.int64()), *[pa.field("x", pa.int64())] * (count - 1)]
    data = bytearray(pa.schema(fields).serialize())
    message = memoryview(data)[8:]
    start = FlatTable.header(message)._follow_offset(1) + 4
    (first,) = struct.unpack_from("<I", message, start)
    for at in range(0, 4 * count, 4):
        struct.pack_into("<I", message, start + at, first - at)
    return bytes(data)


def test_texts_that_a_schema_shares_are_counted_each_time():
    few = _shared_field(20, 1000)
    assert pa.ipc.open_stream(few).schema.names == ["n" * 1000] * 20
    many = _shared_field(4000, MIB)
    assert len(many) < 2 * MIB and refusal(many, BodyFormat(True, False)) == 412
    fields = [pa.field("n" * 60_000, pa.int64())] * 100
    assert refusal(pa.schema(fields).serialize().to_pybytes(), BodyFormat(True, False)) == 412
    many = [pa.field(f"f{n}", pa.int64(), metadata={"k": "v" * 60_000}) for n in range(100)]
    assert refusal(pa.schema(many).serialize().to_pybytes(), BodyFormat(True, False)) == 412


def test_fields_inside_of_columns_are_counted():
    """Not 413: a sender would halve its rows in vain, and give them up."""
    deep = pa.struct([(f"f{n}", pa.struct([(f"g{n}", pa.int64()) for n in range(70)])) for n in range(70)])
    assert refusal(arrow(pa.table({"id": pa.array([None], deep)})), BodyFormat(True, False)) == 412
    assert (
        decode(arrow(pa.table({"id": pa.array([None], deep)})), BodyFormat(True, False), weight(columns=5000)).count
        == 1
    )


def messages_of(table):
    return list(pa.ipc.MessageReader.open_stream(pa.py_buffer(arrow(table, compression=None))))


def test_fields_and_their_texts_are_counted_at_every_depth():
    schema = pa.schema(
        [
            ("id", pa.int64()),
            pa.field("point", pa.struct([("x", pa.int64()), ("longer", pa.string())]), metadata={"key": "value"}),
            ("at", pa.timestamp("us", tz="UTC")),
        ]
    )
    metadata = messages_of(schema.empty_table())[0].metadata
    fields, size = schema_size(metadata, most_fields=100, most_bytes=1000)
    assert fields == 5
    assert size == len("idpointxlongeratUTCkeyvalue") + 2
    # Counting ends where the limit is passed.
    assert schema_size(metadata, most_fields=2, most_bytes=1000)[0] == 3


def test_a_batch_says_its_rows_arrays_and_buffers():
    message = messages_of(pa.table({"id": [1, 2, 3], "name": ["a", None, "c"]}))[1]
    header = FlatTable.header(message.metadata)
    assert header.number(0, "<q") == 3
    assert header.pairs(1).tolist() == [[3, 0], [3, 1]]  # length and nulls of each column
    assert not header.has(3) and header.number(9, "<q", default=7) == 7
    assert int(header.pairs(2)[:, 1].sum()) <= len(memoryview(message.body))


def test_a_message_without_content_or_with_a_wild_offset_is_refused():
    with pytest.raises(Refusal):
        FlatTable.header(messages_of(pa.table({"id": [1]}))[1].metadata).table(9)
    for data, place in ((b"", 0), (b"\0" * 8, 100), (struct.pack("<ii", 1000, 0), 0)):
        with pytest.raises(struct.error):
            FlatTable(memoryview(data), place)
