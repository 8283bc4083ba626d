"""The tables of a lake, as a query sees them."""

import strandline as sl
from strandline.query.listing import COLUMNS, NAMES, TABLES, listing_sql


def test_show_tables_lists_the_names(filled):
    assert filled.sql("SHOW TABLES").to_pylist() == [{"name": "items"}, {"name": "owners"}]
    assert filled.sql("SELECT count(*) AS n FROM (SHOW TABLES) WHERE name = 'items'").to_pylist() == [{"n": 1}]


def test_the_information_schema_has_tables_and_columns(filled):
    found = filled.sql("SELECT table_schema, table_name, table_type FROM information_schema.tables ORDER BY ALL")
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        ("main", "items", "BASE TABLE"),
        ("main", "owners", "BASE TABLE"),
    ]
    found = filled.sql(
        "SELECT column_name, data_type, is_nullable FROM Information_Schema.Columns AS c"
        " WHERE c.table_name = 'items' ORDER BY ordinal_position"
    )
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        ("id", "BIGINT", "NO"),
        ("name", "VARCHAR", "YES"),
        ("qty", "INTEGER", "YES"),
    ]


def test_a_with_of_the_same_name_is_another_thing(filled):
    both = "WITH tables AS (SELECT 7 AS seven) SELECT seven, table_name FROM tables, information_schema.tables AS i"
    assert sorted(row["table_name"] for row in filled.sql(both).to_pylist()) == ["items", "owners"]


def test_an_empty_lake_has_empty_lists(lake):
    lake.create_table("gone", "id:int64")
    lake.drop("gone")
    for statement in ("SHOW TABLES", "FROM information_schema.tables", "FROM information_schema.columns"):
        assert lake.sql(statement).num_rows == 0


def test_names_and_types_are_quoted_and_a_broken_table_is_only_named(lake):
    lake.create_table("odd", "it's:list<string>")
    assert "it''s" in listing_sql(lake, COLUMNS) and "VARCHAR[]" in listing_sql(lake, COLUMNS)
    bad = lake.create_table("bad", "id:int64")
    lake.storage.delete([info.path for info in lake.storage.list(f"{bad.entry.folder}/log")])
    again = sl.Lake(lake.storage.uri)
    assert "'bad'" in listing_sql(again, NAMES) and "'bad'" in listing_sql(again, TABLES)
    assert "'bad'" not in listing_sql(again, COLUMNS)
