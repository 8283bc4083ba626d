"""What may be declared, and how a declaration is kept."""

import pyarrow as pa
import pytest

import strandline as sl
from strandline.model.definition import FORMAT, PACKED_FORMAT, TableDef
from support import ITEMS, refused

BAD_NAMES = [
    "",
    "..",
    "../up",
    "a/b",
    "a\\b",
    "/abs",
    "a.b",
    "a b",
    "1st",
    "_hidden",
    "a" * 129,
    "a\n",
    "ä",
    "a-b",
    5,
    None,
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_no_plain_word_is_refused_everywhere(lake, name):
    for call in (
        lambda: lake.create_table(name, ITEMS),
        lambda: lake.table(name),
        lambda: lake.drop(name),
    ):
        with refused(sl.Invalid, table=str(name)):
            call()
    lake.create_table("items", ITEMS)
    with refused(sl.Invalid, table=str(name)):
        lake.rename("items", name)
    assert lake.tables() == ["items"]


@pytest.mark.parametrize(
    ("options", "column"),
    [
        ({"key": ["nope"]}, "nope"),
        ({"key": "id"}, "id"),
        ({"key": [1]}, "1"),
        ({"key": 7}, "7"),
        ({"key": ["price"]}, "price"),
        ({"key": ["doc"]}, "doc"),
        ({"key": ["tags"]}, "tags"),
        ({"key": ["id"], "cluster_by": ["nope"]}, "nope"),
        ({"key": ["id"], "version": "nope"}, "nope"),
        ({"key": ["id"], "version": "id"}, "id"),
        ({"key": ["id"], "version": "price"}, "price"),
        ({"version": "rev"}, "rev"),
    ],
)
def test_a_wrong_declaration_names_the_column(lake, options, column):
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("rev", pa.int32()),
            ("price", pa.float64()),
            ("doc", pa.json_()),
            ("tags", pa.list_(pa.string())),
        ]
    )
    with refused(sl.Invalid, column=column):
        lake.create_table("t", schema, **options)
    assert not lake.exists


@pytest.mark.parametrize("vnodes", [0, -1, 3, 8192, 1.0, "16", True, None])
def test_vnodes_are_a_power_of_two(lake, vnodes):
    with refused(sl.Invalid):
        lake.create_table("t", ITEMS, key=["id"], vnodes=vnodes)


def test_a_key_names_no_column_twice(lake):
    with refused(sl.Invalid):
        lake.create_table("t", ITEMS, key=["id", "id"])


def test_a_schema_is_an_arrow_schema(lake):
    with refused(sl.Invalid):
        lake.create_table("t", {"id": "int64"})


def test_key_and_version_columns_become_required():
    schema = pa.schema([("id", pa.int64()), ("rev", pa.int32()), ("x", pa.string())])
    declared = TableDef.declare(schema, key=["id"], version="rev")
    assert [field.nullable for field in declared.schema] == [False, False, True]


def test_a_declaration_survives_being_kept_in_a_table():
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("rev", pa.int32()), ("doc", pa.json_())])
    declared = TableDef.declare(schema, key=["id", "day"], cluster_by=["day"], vnodes=32, version="rev")
    declared = declared.evolve(pa.schema([("more", pa.float32())]))
    assert TableDef.from_configuration(declared.to_configuration(), "here") == declared


def test_a_newer_table_format_is_refused_with_its_number():
    configuration = TableDef.declare(ITEMS).to_configuration() | {"strandline.format": str(PACKED_FORMAT + 1)}
    with refused(sl.Invalid, format=PACKED_FORMAT + 1):
        TableDef.from_configuration(configuration, "here")


@pytest.mark.parametrize(
    "configuration", [{}, {"strandline.format": "x"}, {"strandline.format": str(FORMAT), "strandline.table": "{}"}]
)
def test_a_delta_table_that_is_not_ours_is_corrupt(configuration):
    with refused(sl.Corrupt, path="here"):
        TableDef.from_configuration(configuration, "here")


PLACES = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("doc", pa.json_()), ("tags", pa.list_(pa.string()))])


@pytest.mark.parametrize(
    ("cluster_by", "columns", "expected"),
    [
        ([], ["id", "day"], ()),
        (["day"], ["id", "day"], ("day",)),
        (["day", "id"], ["id", "day"], ("day", "id")),
        (["day", "id"], ["day", "doc"], ()),
        (["day"], [], ()),
        (["doc", "day"], ["id", "day", "doc", "tags"], ("doc", "day")),
        (["day", "tags"], ["id", "day", "doc", "tags"], ()),
    ],
    ids=str,
)
def test_rows_are_laid_by_all_cluster_columns_or_by_none(cluster_by, columns, expected):
    declared = TableDef.declare(PLACES, key=["id"], cluster_by=cluster_by)
    assert declared.clustering(columns) == expected
    assert TableDef.from_configuration(declared.to_configuration(), "here").clustering(columns) == expected


def test_a_later_column_does_not_change_how_rows_are_laid():
    declared = TableDef.declare(PLACES, key=["id"], cluster_by=["day"]).evolve(pa.schema([("more", pa.string())]))
    assert declared.clustering(declared.schema.names) == ("day",)
    assert declared.drop_column("more").clustering(PLACES.names) == ("day",)
