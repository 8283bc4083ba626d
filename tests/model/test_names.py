"""Names of columns and fields: those that no engine reads, and those that an engine takes for one."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.parquet
import pytest

import strandline as sl
from strandline.model.names import caseless_name
from support import nothing_written

PAIRS = [
    ("a", "A"), ("s", "ſ"), ("k", "\u212a"), ("i", "İ"), ("i", "ı"), ("İ", "i\u0307"), ("å", "\u212b"), ("ß", "ẞ"),
    ("ß", "ss"), ("σ", "ς"), ("µ", "μ"), ("ﬀ", "ff"), ("ǆ", "ǅ"), ("θ", "ϴ"), ("Ꭰ", "ꭰ"), ("ა", "Ა"), ("a", "a"),
]  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS)
def test_names_that_an_engine_takes_for_one_are_refused_together(lake, pair):
    fields = [(pair[0], pa.int64()), (pair[1], pa.int64())]
    inside = pa.struct(fields)
    for schema in (
        pa.schema(fields),
        pa.schema([("c", inside)]),
        pa.schema([("c", pa.list_(pa.struct([("d", inside)])))]),
        pa.schema([("c", pa.map_(pa.string(), inside))]),
    ):
        with pytest.raises(sl.Invalid, match=r"same name|differ in case only"):
            lake.create_table("t", schema)
    table = lake.create_table("t", pa.schema([("c", pa.int64())]))
    with pytest.raises(sl.Invalid):
        table.evolve(pa.schema([("d", inside)]))


def test_a_new_column_that_an_engine_takes_for_one_of_before_is_refused(lake):
    table = lake.create_table("t", pa.schema([("id", pa.int64()), ("s", pa.int64())]), key=["id"])
    with pytest.raises(sl.Invalid):
        table.evolve(pa.schema([("ſ", pa.int64())]))
    table.drop_column("s")
    for name in ("s", "S", "ſ"):
        with pytest.raises(sl.Invalid, match="was dropped"):
            table.evolve(pa.schema([(name, pa.int64())]))


def test_the_form_of_a_name_does_not_hang_on_its_case():
    for point in range(0x110000):
        sign = chr(point)
        if "\ud800" <= sign <= "\udfff":
            continue
        forms = {sign, sign.lower(), sign.upper(), sign.casefold(), sign.title(), sign.lower().upper()}
        assert len({caseless_name(form) for form in forms}) == 1, hex(point)


@pytest.mark.parametrize("name", ["", "a\0b", "\0"])
def test_a_field_that_no_engine_reads_is_refused(lake, name):
    inside = pa.struct([(name, pa.int64()), ("b", pa.int64())])
    for kind in (inside, pa.list_(inside), pa.map_(pa.string(), inside), pa.struct([("d", inside)])):
        with pytest.raises(sl.Invalid) as caught:
            lake.create_table("t", pa.schema([("c", kind)]))
        assert caught.value.fields["column"].startswith("c")


SIGNS = [chr(point) for point in range(1, 128) if not chr(point).isalnum()] + list(
    "\x85\xa0é\u2028\u200b\ufeff\ue000😀\u0301"
)


def test_fields_with_any_other_sign_are_read_by_every_engine(lake, spark):
    names = [f"x{sign}y{at}" for at, sign in enumerate(SIGNS)]
    value = {name: at for at, name in enumerate(names)}
    schema = pa.schema([("id", pa.int64()), ("c", pa.struct([(name, pa.int64()) for name in names]))])
    table = lake.create_table("t", schema, key=["id"], vnodes=1)
    table.upsert([{"id": 1, "c": value}])
    assert table.to_arrow().to_pylist() == [{"id": 1, "c": value}]
    assert lake.sql("SELECT * FROM t").to_pylist() == [{"id": 1, "c": value}]
    assert table.to_spark().toArrow().to_pylist() == [{"id": 1, "c": value}]
    table.upsert(table.to_spark().selectExpr("id + 1 AS id", "c"))
    table.compact(full=True)
    assert [row["c"] for row in table.to_arrow().to_pylist()] == [value, value]
    files = [f"{table.baseline.folder}/{file.path}" for file in table.baseline.refresh().files()]
    assert files
    for path in files:
        with pa.parquet.ParquetFile(table.log.storage.input(path)) as file:
            assert file.read(columns=["c"]).to_pylist()[0]["c"] == value


def with_bytes(schema: pa.Schema) -> pa.Schema:
    """`schema` with a name that is no text where it has `abc`."""
    return pa.ipc.read_schema(pa.py_buffer(schema.serialize().to_pybytes().replace(b"abc", b"a\xffc")))


def test_names_that_are_not_text_are_refused_at_every_door(lake, tmp_path):
    table = lake.create_table("t", pa.schema([("id", pa.int64()), ("v", pa.struct([("x", pa.int64())]))]), key=["id"])
    top = with_bytes(pa.schema([("id", pa.int64()), ("abc", pa.int64())]))
    inner = with_bytes(pa.schema([("id", pa.int64()), ("v", pa.struct([("abc", pa.int64())]))]))
    number = pa.array([1])
    for schema, value in (
        (top, number),
        (inner, pa.Array.from_buffers(inner.field(1).type, 1, [None], children=[number])),
    ):
        rows = pa.Table.from_arrays([number, value], schema=schema)
        file = str(tmp_path / f"{len(lake.tables())}-{value.type.id}.parquet")
        pa.parquet.write_table(rows, file)
        for call in (
            partial(lake.create_table, "other", schema),
            partial(table.evolve, schema),
            partial(table.upsert, rows),
            partial(lake.ingest, "t", [file]),
            partial(lake.ingest, "other", [file], key=["id"]),
            partial(lake.import_table, "other", file, key=["id"]),
        ):
            with nothing_written(table), pytest.raises(sl.Invalid, match="not UTF-8 text"):
                call()
    assert lake.tables() == ["t"]
