"""A read gives the rows of `to_arrow`, whatever a table is made of and whatever is written meanwhile."""

import json
import math
from decimal import Decimal

import pytest
from pyspark.sql import datasource as ds

import strandline as sl
from shapes import OPTIONS, build, plain
from sourcing import make_source, read_all, spark_struct
from strandline.spark_source import slices
from strandline.spark_source.filters import take_filters
from strandline.spark_source.source import StrandlineSource
from support import refused


def rows(table, filters=(), **options):
    reader = make_source(table, **options).reader(spark_struct(table, columns=options.get("columns")))
    left = list(reader.pushFilters(list(filters)))
    return read_all(reader, reader.partitions()), left


@pytest.mark.parametrize("shape", OPTIONS)
@pytest.mark.parametrize("task_bytes", [1, 1 << 30])
def test_a_read_equals_the_drivers(tmp_path, monkeypatch, shape, task_bytes):
    monkeypatch.setattr(slices, "TASK_BYTES", task_bytes)
    table = build(tmp_path / "lake", shape)
    for _ in range(2):
        for at in (None, 0, 2, table.head):
            options = {} if at is None else {"at": str(at)}
            assert plain(rows(table, **options)[0]) == plain(table.to_arrow(at=at)), at
        table.compact(full=True)


def test_a_read_stays_at_the_seq_of_its_load(tmp_path):
    table = build(tmp_path / "lake", "keyed")
    before = plain(table.to_arrow())
    source = make_source(table)
    table.delete([{"part": "p1", "id": 5}])
    reader = source.reader(spark_struct(table))
    partitions = reader.partitions()
    table.compact(full=True)
    assert plain(read_all(reader, partitions)) == before


def test_a_read_may_name_its_columns(items):
    items.upsert([{"id": n, "name": f"n{n}"} for n in range(9)])
    found, _ = rows(items, columns="name")
    assert found.column_names == ["name"] and found.num_rows == 9
    with refused(sl.Invalid, column="nope"):
        make_source(items, columns="name,nope").schema()


COLUMNS = {
    "n": (1, -20, 8), "part": ("p1", "it's \\ $", ""), "f": (-0.5, 0.0, math.inf, math.nan, 1e300),
    "p": (Decimal("2.25"), Decimal("1E+3")), "flag": (True, False), "raw": (b"\x05",),
    "id": (3, 10**12), "doc": ("{}",),
}  # fmt: skip


def filters():
    for name, values in COLUMNS.items():
        path = (name,)
        yield from (ds.IsNull(path), ds.IsNotNull(path), ds.In(path, list(values)), ds.In(path, [values[0], None]))
        for value in values:
            kinds = [ds.EqualTo, ds.EqualNullSafe, ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan]
            yield from (kind(path, value) for kind in [*kinds, ds.LessThanOrEqual])
    for text in ("p1", "1", "%", "_", ""):
        yield from (kind(("part",), text) for kind in (ds.StringStartsWith, ds.StringEndsWith, ds.StringContains))


def holds(each, row):
    """What Spark's own filter says of a row."""
    if isinstance(each, ds.Not):
        inner = holds(each.child, row)
        return None if inner is None else not inner
    value = row[each.attribute[0]]
    if isinstance(each, ds.IsNull | ds.IsNotNull):
        return (value is None) == isinstance(each, ds.IsNull)
    if isinstance(each, ds.EqualNullSafe):
        return value is not None and order(value) == order(each.value)
    if value is None:
        return None
    if isinstance(each, ds.In):
        found = any(order(value) == order(one) for one in each.value if one is not None)
        return True if found else None if None in each.value else False
    if isinstance(each, ds.StringStartsWith | ds.StringEndsWith | ds.StringContains):
        text = {ds.StringStartsWith: value.startswith, ds.StringEndsWith: value.endswith}.get(type(each))
        return each.value in value if text is None else text(each.value)
    left, right = order(value), order(each.value)
    name = type(each).__name__
    return {
        "EqualTo": left == right, "GreaterThan": left > right, "GreaterThanOrEqual": left >= right,
        "LessThan": left < right, "LessThanOrEqual": left <= right,
    }[name]  # fmt: skip


def order(value):
    """NaN is the largest number and equal to itself."""
    return (value != value, 0 if value != value else value) if isinstance(value, float) else value


@pytest.mark.parametrize("shape", ["keyed", "versioned"])
def test_a_filter_that_the_table_takes_is_exact(tmp_path, shape):
    table = build(tmp_path / "lake", shape)
    every = [*filters(), *map(ds.Not, filters())]
    known = table.to_arrow().to_pylist()
    key = set(table.definition.key)
    taken = 0
    for each in every:
        found, left = rows(table, [each]) if taken < 12 else (None, take_filters([each], table.schema)[1])
        if found is None and not left:
            _, names, _ = table.plan_read()
            predicate, _ = take_filters([each], table.schema)
            with table.reading(table.merge(), names, predicate) as relation:
                found = relation.to_arrow_table()
        if left:
            assert left == [each]
            continue
        taken += 1
        wanted = [row for row in known if holds(each, row)]
        assert sorted(map(str, found.select(sorted(key)).to_pylist())) == sorted(
            str({name: row[name] for name in sorted(key)}) for row in wanted
        ), each
    assert taken > 100


def test_a_key_is_looked_up_in_its_vnode(items):
    items.upsert([{"id": n, "name": f"n{n}"} for n in range(500)])
    items.compact(full=True)
    items.upsert([{"id": n, "name": "new"} for n in range(0, 500, 5)])
    for n in (0, 7):
        reader = make_source(items).reader(spark_struct(items))
        assert not reader.pushFilters([ds.EqualTo(("id",), n), ds.IsNotNull(("id",))])
        (partition,) = reader.partitions()
        assert partition.part.end - partition.part.first == 1
        assert read_all(reader, [partition]).to_pylist() == items.to_arrow(where=f"id = {n}").to_pylist()


def test_what_cannot_be_read_is_said(items, lake):
    with refused(sl.Invalid):
        make_source(items, foo="1").reader(spark_struct(items))
    with refused(sl.NotFound, table="nope"):
        StrandlineSource({"lake": items.log.storage.uri, "table": "nope"})
    with refused(sl.Invalid):
        StrandlineSource({"lake": items.log.storage.uri})
    items.upsert([{"id": 1, "name": "a"}])
    reader = make_source(items).reader(spark_struct(items))
    items.rename_column("name", "title")
    with refused(sl.Conflict, column="name"):
        reader.partitions()
    reader = make_source(items).reader(spark_struct(items))
    lake.drop("items")
    lake.create_table("items", items.schema, key=["id"])
    with refused(sl.NotFound):
        reader.partitions()


def test_a_schema_is_sparks_own_text(items):
    from pyspark.sql.types import StructType

    assert make_source(items).schema().startswith("`id` bigint NOT NULL, `name` string")
    assert "`_op` string NOT NULL" in make_source(items, start="head").schema()
    assert StructType.fromJson(json.loads(spark_struct(items).json())) == spark_struct(items)


def test_an_empty_table_has_no_partition_to_read(items):
    reader = make_source(items).reader(spark_struct(items))
    (partition,) = reader.partitions()
    assert list(reader.read(partition)) == []
