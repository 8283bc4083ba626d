"""The one Parquet writer: groups and files stay within their budgets, what repeats stays dictionary-encoded,
statistics are true bounds, and whatever goes in comes out."""

import datetime as dt
import itertools
import json
import math
import random
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rowgroup import LEAVES, array_of, columns, model_bytes

from parquet_files import chunks, metadata_of, write
from strandline.model.types import JSON, conform
from strandline.storage.open import LocalStorage
from strandline.storage.parquet import writer
from strandline.storage.parquet.writer import Budget

UTC = dt.UTC
MIB = 1 << 20


def groups(storage, file):
    metadata = metadata_of(storage, file)
    return [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]


def all_groups(storage, files):
    return [rows for file in files for rows in groups(storage, file)]


def uncompressed(parts):
    return sum(chunk.total_uncompressed_size for chunk in parts)


def read(storage, files):
    return pa.concat_tables(pq.read_table(storage.url(f"out/{file.path}")) for file in files)


def exact(value):
    """A value in a form that compares as it is: NaN equals NaN, and -0.0 is not 0.0."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return [exact(each) for each in value]
    return {name: exact(each) for name, each in value.items()} if isinstance(value, dict) else value


def exact_rows(table, schema):
    return exact(conform(table, schema).to_pylist())


@dataclass(frozen=True)
class Page:
    """One page, by its own header."""

    is_data: bool
    size: int
    encoding: str


def pages_of(storage, file, path):
    """The pages of a column, read from their headers: a footer does not tell them apart."""
    data = storage.read(f"out/{file.path}")
    names = {0: "PLAIN", 2: "PLAIN_DICTIONARY", 8: "RLE_DICTIONARY"}
    found = []
    for chunk in chunks(storage, [file])[path]:
        start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
        at, end = start, start + chunk.total_compressed_size
        while at < end:
            # PageHeader: 1 type, 2 size, 3 compressed size, 4 checksum, 5 data page, 7 dictionary page, 8 data page v2.
            header, at = thrift_struct(data, at)
            assert 4 in header, "every page has its checksum"
            inner = header.get(5) or header.get(7) or header.get(8)
            found.append(Page(7 not in header, header[2], names[inner[4 if 8 in header else 2]]))
            at += header[3]
        assert at == end
    return found


def thrift_struct(data, at):
    """A struct in Thrift's compact protocol as {field: value}, and where it ends; as much of it as pages use."""
    found, field = {}, 0
    while data[at]:
        delta, kind = divmod(data[at], 16)
        at += 1
        if not delta:
            field, at = thrift_int(data, at)
        else:
            field += delta
        if kind in (1, 2):
            found[field] = kind == 1
        elif kind in (4, 5, 6):
            found[field], at = thrift_int(data, at)
        elif kind == 8:
            size, at = varint(data, at)
            found[field], at = data[at : at + size], at + size
        else:
            assert kind == 12, kind
            found[field], at = thrift_struct(data, at)
    return found, at + 1


def thrift_int(data, at):
    number, at = varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def varint(data, at):
    number = shift = 0
    while True:
        number |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return number, at


def test_no_rows_make_no_file(storage):
    assert write(storage, pa.table({"x": pa.array([], pa.int64())})) == []
    assert list(storage.list("out")) == []


def test_a_group_closes_at_its_row_budget_across_batches(storage):
    table = pa.table({"x": range(100)})
    for batch_rows in (100, 7, 1):
        (file,) = write(storage, table, Budget(group_rows=30), batch_rows)
        assert all(rows <= 30 for rows in groups(storage, file))
        assert sum(groups(storage, file)) == 100
        assert read(storage, [file]).equals(table)


SIZES = {
    "even": [50] * 200,
    "one giant among small": [10] * 50 + [5000] + [10] * 49,
    "giants first": [900] * 5 + [1] * 50,
    "every row too large": [3000] * 6,
    "growing": list(range(0, 900, 10)),
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("batch_rows", [1, 3, 1000])
@pytest.mark.parametrize("is_repeated", [False, True], ids=["differing", "repeated"])
def test_a_group_keeps_its_budget_of_raw_bytes_or_is_one_row(storage, sizes, batch_rows, is_repeated):
    """Written out, every row counts, however often its text is there already."""
    texts = [chr(97 + (0 if is_repeated else at % 26)) * size for at, size in enumerate(sizes)]
    (file,) = write(storage, pa.table({"text": texts}), Budget(group_raw_bytes=1000), batch_rows)
    at = 0
    for rows in groups(storage, file):
        held = sum(map(len, texts[at : at + rows]))
        assert rows == 1 or held <= 1000, f"{rows} rows of {held} bytes in one group"
        at += rows
    assert read(storage, [file])["text"].to_pylist() == texts


@pytest.mark.parametrize("batch_rows", [1, 3, 1000])
@pytest.mark.parametrize("distinct", [200, 5, 1])
def test_a_group_keeps_its_budget_of_encoded_bytes_where_a_repeated_text_counts_once(storage, batch_rows, distinct):
    texts = [f"{at % distinct:04d}" * 100 for at in range(200)]
    files = write(storage, pa.table({"text": texts}), Budget(group_bytes=3000), batch_rows)
    at = 0
    for rows in all_groups(storage, files):
        held = len(set(texts[at : at + rows])) * 400
        assert rows == 1 or held <= 3000, f"{rows} rows of {held} bytes in one group"
        at += rows
    if distinct > 5:
        assert len(all_groups(storage, files)) >= 200 * 400 / 3000
    else:
        assert len(all_groups(storage, files)) <= 2, "most of these rows take nothing but a place in the dictionary"
    assert read(storage, files)["text"].to_pylist() == texts


@pytest.mark.parametrize("batch_rows", [1, 3, 1000])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_texts_that_differ_count_in_full_for_the_encoded_budget(storage, sizes, batch_rows):
    texts = [f"{at:05d}{'x' * size}" for at, size in enumerate(sizes)]
    files = write(storage, pa.table({"text": texts}), Budget(group_bytes=1000), batch_rows)
    at = 0
    for rows in all_groups(storage, files):
        held = sum(map(len, texts[at : at + rows]))
        assert rows == 1 or held <= 1000, f"{rows} rows of {held} bytes in one group"
        at += rows
    assert read(storage, files)["text"].to_pylist() == texts


# --- cluster keys ------------------------------------------------------------------------------------------------


def greedy(rows, keys=None, budget=writer.DEFAULT):
    """The groups that the budgets allow, each as long as may be: `rows` are the raw bytes of each row."""
    found, held, raw, seen = [], 0, 0, set()
    for at, size in enumerate(rows):
        more = seen | ({keys[at]} if keys else set())
        is_full = len(more) > budget.group_keys or held + 1 > budget.group_rows or raw + size > budget.group_raw_bytes
        if held and is_full:
            found.append(held)
            held, raw, more = 0, 0, {keys[at]} if keys else set()
        held, raw, seen = held + 1, raw + size, more
    return [*found, held] if held else found


@pytest.mark.parametrize("batch_rows", [1, 5, 64, 1000])
def test_a_group_holds_sixteen_cluster_keys(storage, batch_rows):
    table = pa.table({"k": [at // 7 for at in range(700)], "x": range(700)})
    files = write(storage, table, batch_rows=batch_rows, cluster_by=["k"])
    assert all_groups(storage, files) == [16 * 7] * 6 + [4 * 7]
    assert read(storage, files).equals(table)


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_a_key_that_comes_back_is_not_counted_twice(storage, batch_rows):
    keys = list("ababababacacacacadd")
    table = pa.table({"k": keys, "x": range(len(keys))})
    files = write(storage, table, Budget(group_keys=2), batch_rows, ["k"])
    assert all_groups(storage, files) == [9, 8, 2]
    assert read(storage, files).equals(table)


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_null_is_a_cluster_key_like_another(storage, batch_rows):
    table = pa.table({"k": [None, None, "a", None, "b", "b", None], "j": pa.array([None, 1, 1, None, 1, 2, 2])})
    by_one = write(storage, table, Budget(group_keys=2), batch_rows, ["k"])
    assert all_groups(storage, by_one) == [4, 3]
    by_two = write(storage, table, Budget(group_keys=2), batch_rows, ["k", "j"])
    assert all_groups(storage, by_two) == [2, 2, 2, 1]
    assert read(storage, by_two).equals(table)


def test_a_budget_of_one_key_gives_each_key_a_group(storage):
    table = pa.table({"k": [1, 1, 2, 3, 3, 3]})
    for batch_rows in (1, 4, 6):
        assert all_groups(storage, write(storage, table, Budget(group_keys=1), batch_rows, ["k"])) == [2, 1, 3]


def test_without_cluster_columns_keys_are_not_counted(storage):
    assert all_groups(storage, write(storage, pa.table({"k": range(1000)}), Budget(group_keys=1))) == [1000]


FLOATS = [0.0, -0.0, 1.5, math.inf, -math.inf]
KEY_VALUES = {kind: st.sampled_from([None, 0, 1]) for kind in LEAVES if pa.types.is_integer(kind)} | {
    pa.bool_(): st.sampled_from([None, False, True]),
    pa.string(): st.sampled_from([None, "", "a", "\x00", "ä", "a\u0308"]),
    pa.binary(): st.sampled_from([None, b"", b"a", b"\x00", b"\xff"]),
    pa.date32(): st.sampled_from([None, dt.date(1969, 1, 1), dt.date(2026, 1, 1)]),
    pa.timestamp("us"): st.sampled_from([None, dt.datetime(1969, 1, 1), dt.datetime(2026, 1, 1)]),
    pa.timestamp("us", tz="UTC"): st.sampled_from([None, dt.datetime(1969, 1, 1, tzinfo=UTC)]),
    pa.decimal128(9, 2): st.sampled_from([None, Decimal("0.00"), Decimal("-1.50")]),
    pa.float64(): st.sampled_from([None, *FLOATS]),
    JSON: st.sampled_from([None, "{}", "{ }"]),
}


@settings(max_examples=60)
@given(data=st.data(), rows=st.integers(1, 40))
def test_groups_of_clustered_rows_are_as_long_as_their_budgets_allow(tmp_path_factory, data, rows):
    storage = LocalStorage(str(tmp_path_factory.mktemp("clustered")))
    kinds = data.draw(st.lists(st.sampled_from(list(KEY_VALUES)), min_size=1, max_size=2))
    made = {
        f"k{at}": array_of(data.draw(st.lists(KEY_VALUES[kind], min_size=rows, max_size=rows)), kind)
        for at, kind in enumerate(kinds)
    }
    table = pa.table({**made, "x": data.draw(columns(rows))})
    budget = Budget(
        group_keys=data.draw(st.sampled_from([1, 2, 3, 16])),
        group_rows=data.draw(st.sampled_from([1, 7, 50_000])),
        group_raw_bytes=data.draw(st.sampled_from([1, 60, 500, 1 << 28])),
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=5)))
    files = write(storage, table, budget, cuts, list(made))
    kept = table.to_pylist()
    sizes = [sum(model_bytes(row[field.name], field.type) for field in table.schema) for row in kept]
    keys = [tuple(row[name] for name in made) for row in kept]
    assert all_groups(storage, files) == greedy(sizes, keys, budget)
    assert exact_rows(read(storage, files), table.schema) == exact_rows(table, table.schema)


def test_nan_that_comes_back_is_not_counted_twice(storage):
    table = pa.table({"k": [math.nan] * 10})
    assert all_groups(storage, write(storage, table, Budget(group_keys=2), 1, ["k"])) == [10]


@pytest.mark.parametrize(
    "kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")], ids=["date", "local", "utc"]
)
def test_a_time_outside_pythons_years_is_a_cluster_key_like_another(storage, kind):
    width = pa.int32() if kind == pa.date32() else pa.int64()
    far = 2**30 if kind == pa.date32() else 2**61
    table = pa.table({"k": pa.array([far, far, -far, 0], width).cast(kind)})
    files = write(storage, table, Budget(group_keys=2), 1, ["k"])
    assert all_groups(storage, files) == [3, 1]
    assert read(storage, files).equals(table)


# --- files -------------------------------------------------------------------------------------------------------


def test_a_new_file_starts_after_the_file_budget(storage):
    table = pa.table({"x": range(10_000), "y": [str(at) * 5 for at in range(10_000)]})
    files = write(storage, table, Budget(group_rows=500, file_bytes=8_000))
    assert len(files) > 2
    assert all(file.size < 60_000 for file in files)
    assert read(storage, files).equals(table)
    assert sum(file.rows for file in files) == 10_000


def test_what_is_returned_describes_the_file(storage):
    (file,) = write(storage, pa.table({"x": [3, 1, None]}))
    assert file.size == len(storage.read(f"out/{file.path}"))
    assert file.rows == 3
    assert json.loads(file.stats_text) == {
        "numRecords": 3,
        "minValues": {"x": 1},
        "maxValues": {"x": 3},
        "nullCount": {"x": 1},
    }


def test_a_failure_on_the_way_leaves_no_file(storage):
    def batches():
        yield pa.record_batch({"x": [1]})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(writer.write_files(storage, "out", lambda: "x.parquet", batches(), pa.schema([("x", pa.int64())])))
    assert list(storage.list("")) == []
    assert list(storage.temporaries("")) == []


# --- how values lie in the file ------------------------------------------------------------------------------------

WIDE = [f"{number:03d}" * 6000 for number in range(5)]
WIDE_BYTES = sum(map(len, WIDE))
PAIRS = pa.map_(pa.string(), pa.string())
WIDE_COLUMNS = {
    "string": (lambda text: text, pa.string(), ["wide"]),
    "binary": (lambda text: text.encode(), pa.binary(), ["wide"]),
    "json": (lambda text: json.dumps({"tools": text}), JSON, ["wide"]),
    "in a list": (lambda text: [None, text], pa.list_(pa.string()), ["wide.list.element"]),
    "in a struct": (lambda text: {"text": text}, pa.struct([("text", pa.string())]), ["wide.text"]),
    "binary in lists": (
        lambda text: [[text.encode()]],
        pa.list_(pa.list_(pa.binary())),
        ["wide.list.element.list.element"],
    ),
    "values of a map": (lambda text: [("k", text)], PAIRS, ["wide.key_value.value"]),
    "keys of a map": (lambda text: [(text, "v")], PAIRS, ["wide.key_value.key"]),
    "in all of them": (
        lambda text: [{"m": [("k", [text])]}],
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.string())))])),
        ["wide.list.element.m.key_value.value.list.element"],
    ),
}


@pytest.mark.parametrize("batch_rows", [7, 1000])
@pytest.mark.parametrize("column", WIDE_COLUMNS)
def test_wide_values_that_repeat_stay_dictionary_encoded(storage, column, batch_rows):
    """A footer names the dictionary also after a fallback, so the size is the proof, and each page's own header."""
    make, kind, paths = WIDE_COLUMNS[column]
    wide = array_of([make(WIDE[at % 5]) if at % 11 else None for at in range(1000)], kind)
    table = pa.table({"id": range(1000), "wide": wide})
    files = write(storage, table, batch_rows=batch_rows)
    found = chunks(storage, files)
    for path in paths:
        assert uncompressed(found[path]) < 1.2 * WIDE_BYTES + 4000, "of 18 million bytes"
        for file in files:
            kinds = {page.encoding for page in pages_of(storage, file, path) if page.is_data}
            assert kinds == {"RLE_DICTIONARY"}
    assert exact_rows(read(storage, files), table.schema) == exact_rows(table, table.schema)


def test_what_repeats_has_a_dictionary_and_what_does_not_has_none(storage):
    rows = 20_000
    random.seed(1)
    table = pa.table(
        {
            "id": range(rows),
            "noise": [random.getrandbits(60) for _ in range(rows)],
            "name": [f"name {at} of many" for at in range(rows)],
            "raw": [random.randbytes(30) for _ in range(rows)],
            "ratio": [random.random() for _ in range(rows)],
            "tags": [[f"tag {at}"] for at in range(rows)],
            "kind": [f"kind {at % 9}" for at in range(rows)],
            "day": pa.array([dt.datetime(2026, 1, 1 + at % 20) for at in range(rows)], pa.timestamp("us")),
            "labels": [["red", "green"]] * rows,
            "point": [{"x": at, "unit": "millimetre"} for at in range(rows)],
        }
    )
    found = chunks(storage, write(storage, table))
    has_dictionary = {path for path, parts in found.items() if any(part.has_dictionary_page for part in parts)}
    assert has_dictionary == {"kind", "day", "labels.list.element", "point.unit"}
    for path in has_dictionary:
        assert uncompressed(found[path]) < rows * 2.2


def test_every_chunk_is_zstd_with_statistics_and_a_page_index(storage):
    table = pa.table(
        {
            "id": range(100),
            "text": ["a", None] * 50,
            "doc": array_of(["{}"] * 100, JSON),
            "tags": [["x"], []] * 50,
            "none": pa.nulls(100, pa.string()),
        }
    )
    files = write(storage, table, Budget(group_rows=30))
    for path, parts in chunks(storage, files).items():
        assert len(parts) == 4
        for part in parts:
            assert part.compression == "ZSTD"
            assert part.is_stats_set and part.statistics.has_null_count
            assert part.statistics.has_min_max == (path != "none")
            assert part.has_column_index and part.has_offset_index
    assert metadata_of(storage, files[0]).metadata is None, "no Arrow schema: how rows were held is nobody's concern"
    assert chunks(storage, files)["id"][1].statistics.min == 30


def test_a_flipped_bit_in_a_page_is_found(storage):
    (file,) = write(storage, pa.table({"n": [random.getrandbits(60) for _ in range(1000)]}))
    (part,) = chunks(storage, [file])["n"]
    path = storage.url(f"out/{file.path}")
    assert pq.read_table(path, page_checksum_verification=True).num_rows == 1000
    with open(path, "r+b") as stream:
        stream.seek(part.data_page_offset + part.total_compressed_size - 1)
        (last,) = stream.read(1)
        stream.seek(-1, 1)
        stream.write(bytes([last ^ 1]))
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(path, page_checksum_verification=True)


def test_json_keeps_its_text_and_its_logical_type(storage):
    texts = [
        '{"b" : 1,\n\t"a":  [ 1.0e5, 1E+2, -0, 0.10, 12345678901234567890123 ] }',
        '"\u00e9 \\u00e9 🎉 e\u0301"',
        ' {"a":1, "a":2} ',
        "null",
        None,
        "[]",
    ]
    table = pa.table({"doc": array_of(texts * 500, JSON), "other": texts * 500})
    for batch_rows in (1, 700, 5000):
        (file,) = write(storage, table, batch_rows=batch_rows)
        schema = metadata_of(storage, file).schema
        assert [str(schema.column(at).logical_type) for at in range(2)] == ["JSON", "String"]
        found = read(storage, [file])
        assert found.schema.field("doc").type == JSON
        assert conform(found, table.schema)["doc"].to_pylist() == texts * 500


@pytest.mark.parametrize("kind", ["plain", "shared"])
def test_types_are_parquets_own(storage, kind):
    schema = pa.schema(
        [
            ("s", pa.string()),
            ("b", pa.binary()),
            ("d", pa.date32()),
            ("z", pa.timestamp("us", tz="UTC")),
            ("n", pa.timestamp("us")),
            ("p", pa.decimal128(20, 3)),
            ("i", pa.int8()),
            pa.field("k", pa.int16(), nullable=False),
        ]
    )
    text = "x" * (5 if kind == "plain" else 5000)
    row = {"s": text, "b": b"x", "d": dt.date(2026, 1, 1), "z": dt.datetime(2026, 1, 1, tzinfo=UTC), "i": 1, "k": 2}
    table = pa.Table.from_pylist([row] * 100, schema=schema)
    (file,) = write(storage, table)
    assert pq.read_schema(storage.url(f"out/{file.path}")) == schema


@pytest.mark.parametrize("column", ["string", "binary", "json"])
def test_a_column_that_repeats_widely_only_later_starts_a_new_file(storage, column):
    make, kind, _ = WIDE_COLUMNS[column]
    early = [make(f"{at:06d}" * 300) for at in range(300)]
    table = pa.table({"id": range(1500), "wide": array_of(early + [make(WIDE[at % 5]) for at in range(1200)], kind)})
    files = write(storage, table, Budget(group_rows=300))
    assert len(files) == 2
    assert [file.rows for file in files] == [300, 1200]
    assert not any(part.has_dictionary_page for part in chunks(storage, files[:1])["wide"])
    later = chunks(storage, files[1:])["wide"]
    assert uncompressed(later) < len(later) * (1.2 * WIDE_BYTES + 2000), "of 22 million bytes"
    assert exact_rows(read(storage, files), table.schema) == exact_rows(table, table.schema)


@pytest.mark.parametrize("column", ["in a list", "in a struct", "values of a map"])
def test_nested_values_that_repeat_widely_only_later_are_not_written_out(storage, column):
    make, kind, (path,) = WIDE_COLUMNS[column]
    early = [make(f"{at:06d}" * 300) for at in range(300)]
    table = pa.table({"id": range(1500), "wide": array_of(early + [make(WIDE[at % 5]) for at in range(1200)], kind)})
    files = write(storage, table, Budget(group_rows=300))
    assert uncompressed(chunks(storage, files)[path]) < 600_000 + 5 * (1.2 * WIDE_BYTES + 2000), "of 22 million bytes"


def test_nested_values_that_repeat_at_first_only_keep_the_encoded_budget(storage):
    texts = ["same" * 500] * 512 + [f"{at:05d}" * 400 for at in range(1000)]
    files = write(storage, pa.table({"tags": [[text] for text in texts]}), Budget(group_bytes=500_000))
    at = 0
    for rows in all_groups(storage, files):
        assert sum(map(len, set(texts[at : at + rows]))) <= 600_000
        at += rows


def test_a_small_first_group_does_not_decide_for_a_wide_file(storage):
    """Cluster keys of a few rows make a first group too small to judge by."""
    rows = [(0, "small")] + [(at // 300, WIDE[at % 5]) for at in range(300, 1500)]
    table = pa.table({"k": [k for k, _ in rows], "wide": [text for _, text in rows]})
    files = write(storage, table, Budget(group_keys=1), cluster_by=["k"])
    assert uncompressed(chunks(storage, files)["wide"]) < 6 * (1.2 * WIDE_BYTES + 2000), "of 21 million bytes"
    assert read(storage, files).equals(table)


def test_files_are_about_as_large_as_their_budget(storage):
    random.seed(2)
    table = pa.table({"raw": [random.randbytes(1000) for _ in range(5000)]})
    files = write(storage, table, Budget(group_bytes=100_000, file_bytes=1_000_000), 137)
    assert len(files) == 5
    assert all(1_000_000 <= file.size < 1_150_000 for file in files[:-1])
    assert read(storage, files).equals(table)


# --- giants ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_rows", [1, 1000])
@pytest.mark.parametrize("cluster_by", [[], ["k"]], ids=["plain", "clustered"])
def test_giant_values_lie_in_groups_and_pages_within_the_budget_or_alone(storage, cluster_by, batch_rows):
    sizes = [100] * 30 + [12 * MIB, 12 * MIB] + [100] * 30 + [12 * MIB, 30 * MIB, 100, 30 * MIB, 40 * MIB] + [100] * 5
    cells = [(b"%07d " % at) * (size // 8) for at, size in enumerate(sizes)]
    table = pa.table({"k": [0] * len(sizes), "cell": cells})
    files = write(storage, table, batch_rows=batch_rows, cluster_by=cluster_by)
    at = 0
    for rows in all_groups(storage, files):
        held = sum(map(len, cells[at : at + rows]))
        assert rows == 1 or held <= 32 * MIB, f"{rows} rows of {held} bytes in one group"
        at += rows
    for file in files:
        largest = max(page.size for page in pages_of(storage, file, "cell"))
        assert largest <= 40 * MIB + 1000
    assert len(all_groups(storage, files)) <= 8
    assert read(storage, files).equals(table)


def test_pages_of_wide_values_stay_small(storage):
    random.seed(3)
    cells = [random.randbytes(50_000) for _ in range(300)]
    (file,) = write(storage, pa.table({"cell": cells, "n": range(300)}))
    assert max(page.size for page in pages_of(storage, file, "cell")) <= 2 * MIB
    assert len([page for page in pages_of(storage, file, "cell") if page.is_data]) >= 7


def test_giant_values_that_repeat_are_one_in_their_group(storage):
    giant = "g" * (12 * MIB)
    table = pa.table({"cell": [giant, "a", giant, "b", giant, giant]})
    (file,) = write(storage, table, batch_rows=2)
    assert groups(storage, file) == [6]
    assert uncompressed(chunks(storage, [file])["cell"]) < 13 * MIB
    assert read(storage, [file]).equals(table)


# --- whatever goes in comes out ------------------------------------------------------------------------------------


def test_no_rows_make_an_empty_file_where_one_is_asked_for(storage):
    schema = pa.schema([("id", pa.int64()), ("doc", JSON), ("tags", pa.list_(pa.string()))])
    file, staged = writer.stage_empty(storage, "empty.parquet", schema)
    assert list(storage.list("")) == []
    storage.publish([staged])
    assert (file.rows, file.size, file.raw_bytes) == (0, len(storage.read("empty.parquet")), 0)
    found = pq.read_table(storage.url("empty.parquet"))
    assert found.num_rows == 0
    assert found.schema.names == schema.names and found.schema.field("doc").type == JSON


def test_staged_files_are_the_same_and_invisible_until_published(storage):
    table = pa.table({"x": range(1000)})
    names = (f"{number}.parquet" for number in itertools.count())
    budget = Budget(group_rows=100, file_bytes=1)
    done = list(writer.stage_files(storage, lambda: next(names), table.to_batches(), table.schema, budget=budget))
    assert len(done) == 10
    assert list(storage.list("")) == []
    storage.publish([staged for _, staged in done])
    assert [file.size for file, _ in done] == [len(storage.read(file.path)) for file, _ in done]
    assert pa.concat_tables(pq.read_table(storage.url(file.path)) for file, _ in done).equals(table)


ODD = pa.table(
    {
        "none": pa.nulls(6, pa.string()),
        "no bytes": pa.array([b"", None, b"\x00", b"\xff\xfe", b"", b""]),
        "texts": ["", "\x00", "a\x00b", "e\u0301", "👩\u200d🚀", "\U0010ffff"],
        "floats": [math.nan, -0.0, 0.0, math.inf, -math.inf, 5e-324],
        "singles": pa.array([math.nan, -0.0, None, math.inf, -math.inf, 1.5], pa.float32()),
        "flags": [True, None, False, None, None, True],
        "price": [Decimal("1.50"), Decimal("-9999999.99"), None, Decimal("0.00"), None, Decimal("0.01")],
        "day": pa.array([None, -719162, 0, 2932896, -1, 1], pa.int32()).cast(pa.date32()),
        "utc": pa.array([None, -1, 0, 1, 2**50, -(2**50)], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        "local": pa.array([None, -1, 0, 1, 2**50, -(2**50)], pa.int64()).cast(pa.timestamp("us")),
        "lists": pa.array([None, [], [None], [[]], [[None]], [["", None], None]], pa.list_(pa.list_(pa.string()))),
        "structs": pa.array(
            [None, {"a": None, "b": None}, {"a": {"c": None}, "b": []}, {"a": {"c": 1}, "b": [None]}, None, None],
            pa.struct([("a", pa.struct([("c", pa.int8())])), ("b", pa.list_(pa.int8()))]),
        ),
        "maps": pa.array(
            [None, [], [("", None)], [("a", {"x": None})], [("a", None), ("b", {"x": ""})], None],
            pa.map_(pa.string(), pa.struct([("x", pa.string())])),
        ),
    }
)


@pytest.mark.parametrize("batch_rows", [1, 4, 6])
@pytest.mark.parametrize("copies", [1, 2000])
def test_odd_values_come_out_as_they_went_in(storage, batch_rows, copies):
    table = pa.concat_tables([ODD] * copies).combine_chunks() if copies > 1 else ODD
    for budget in (writer.DEFAULT, Budget(group_rows=5, group_raw_bytes=400)) if copies == 1 else (writer.DEFAULT,):
        files = write(storage, table, budget, batch_rows * copies)
        assert exact_rows(read(storage, files), table.schema) == exact_rows(table, table.schema)


def test_times_outside_pythons_years_come_out_as_they_went_in(storage):
    far = pa.array([2**62, -(2**62), 0, None], pa.int64())
    table = pa.table(
        {
            "utc": far.cast(pa.timestamp("us", tz="UTC")),
            "local": far.cast(pa.timestamp("us")),
            "day": pa.array([2**30, -(2**30), 0, None], pa.int32()).cast(pa.date32()),
        }
    )
    (file,) = write(storage, table, Budget(group_rows=3))
    assert read(storage, [file]).equals(table)
    assert file.rows == 4 and not file.stats["minValues"]


BUDGETS = st.builds(
    Budget,
    group_rows=st.sampled_from([1, 3, 50_000]),
    group_bytes=st.sampled_from([1, 100, 2000, 32 * MIB]),
    group_raw_bytes=st.sampled_from([1, 100, 2000, 256 * MIB]),
    file_bytes=st.sampled_from([1, 2000, 128 * MIB]),
)


@settings(max_examples=80)
@given(data=st.data(), rows=st.integers(1, 30), budget=BUDGETS)
def test_any_rows_in_any_batches_come_out_as_they_went_in(tmp_path_factory, data, rows, budget):
    storage = LocalStorage(str(tmp_path_factory.mktemp("any")))
    table = pa.table({f"c{at}": data.draw(columns(rows)) for at in range(data.draw(st.integers(1, 4)))})
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=5)))
    files = write(storage, table, budget, cuts)
    assert exact_rows(read(storage, files), table.schema) == exact_rows(table, table.schema)
    assert sum(file.rows for file in files) == rows
    kept, at = table.to_pylist(), 0
    for held in all_groups(storage, files):
        assert held <= budget.group_rows
        if held > 1:
            # However it is held, a truth takes a bit at least.
            raw = sum(model_bytes(row[f.name], f.type, 1 / 8) for row in kept[at : at + held] for f in table.schema)
            assert raw <= budget.group_raw_bytes
        at += held


@settings(max_examples=30)
@given(data=st.data(), rows=st.integers(1, 60), budget=BUDGETS)
def test_wide_texts_in_a_group_take_no_more_than_its_budget_when_each_counts_once(tmp_path_factory, data, rows, budget):
    storage = LocalStorage(str(tmp_path_factory.mktemp("wide")))
    pool = [f"{at:03d}" * 100 for at in range(data.draw(st.integers(1, 20)))]
    picks = st.lists(st.sampled_from(pool), min_size=rows, max_size=rows)
    texts, others = data.draw(picks), data.draw(picks)
    table = pa.table({"a": texts, "b": array_of([json.dumps(other) for other in others], JSON)})
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=5)))
    cluster_by = data.draw(st.sampled_from([[], ["a"]]))
    files = write(storage, table, budget, cuts, cluster_by)
    at = 0
    for held in all_groups(storage, files):
        if held > 1:
            once = sum(map(len, set(texts[at : at + held]))) + sum(len(o) + 2 for o in set(others[at : at + held]))
            assert once + 4 * held <= budget.group_bytes
        at += held
    assert exact_rows(read(storage, files), table.schema) == exact_rows(table, table.schema)


def test_narrow_columns_that_repeat_only_later_are_not_written_out(storage):
    """Each column is narrow, together they are not."""
    count, names = 12_000, [f"c{at}" for at in range(12)]
    unique = pa.table({name: [f"{name}{at:0190d}" for at in range(count)] for name in names})
    repeated = pa.table({name: [f"{name}{at % 7:0190d}" for at in range(4 * count)] for name in names})
    files = write(storage, pa.concat_tables([unique, repeated]))
    assert read(storage, files).num_rows == 5 * count
    for file in files:
        metadata = pq.ParquetFile(storage.url(f"out/{file.path}")).metadata
        for at in range(metadata.num_row_groups):
            assert metadata.row_group(at).total_byte_size < 40 * MIB
    assert files[-1].size < repeated.nbytes // 100


def test_a_dictionary_is_given_up_by_the_next_file_when_values_no_longer_repeat(storage):
    random.seed(5)
    wide = [random.randbytes(20_000).hex() for _ in range(400)]
    table = pa.table({"text": [wide[0]] * 400 + wide})
    files = write(storage, table, Budget(group_rows=100, file_bytes=1), 100)
    has = [
        pq.ParquetFile(storage.url(f"out/{file.path}")).metadata.row_group(0).column(0).has_dictionary_page
        for file in files
    ]
    assert has == [True] * 4 + [False] * 4


def test_rows_that_come_one_by_one_are_joined(storage):
    table = pa.table({f"c{at}": [str(row % 9) for row in range(3000)] for at in range(8)})
    (file,) = write(storage, table, batch_rows=1)
    assert groups(storage, file) == [3000]
    pieces = list(writer._resize_batches(table.to_batches(max_chunksize=1)))
    assert [piece.num_rows for piece in pieces] == [1024, 1024, 952]


def test_large_batches_are_looked_at_in_pieces():
    batch = pa.record_batch({"text": ["x" * 10_000] * 5000})
    pieces = list(writer._resize_batches([batch]))
    assert sum(piece.num_rows for piece in pieces) == 5000
    assert max(piece.nbytes for piece in pieces) <= 9 * MIB
