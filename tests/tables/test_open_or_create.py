"""`create_table(if_exists="open")`: a script can run twice; a table that differs is refused by name."""

import threading

import pyarrow as pa
import pytest

import strandline as sl

SCHEMA = "id:int64, name:string, qty:int32"


def make(lake: sl.Lake, schema: str = SCHEMA, **options: object) -> sl.Table:
    return lake.create_table("items", schema, **{"key": ["id"], "if_exists": "open", **options})


def test_the_second_call_opens_the_table_and_writes_nothing(lake):
    make(lake, keep="3d").upsert([{"id": 1, "name": "a", "qty": 5}])
    again = make(lake, keep="3d")
    assert (again.head, again.count(), lake.tables()) == (1, 1, ["items"])
    with pytest.raises(sl.Invalid):
        lake.create_table("items", SCHEMA, key=["id"])


def test_a_table_gets_the_columns_that_it_lacks_and_keeps_the_others(lake):
    make(lake)
    make(lake, "id:int64, more:date")
    assert make(lake, "id:int64, qty:int64").schema.names == ["id", "name", "qty", "more"]
    # The table is wide enough for the narrow declaration, too.
    assert make(lake).schema.field("qty").type == pa.int64()


@pytest.mark.parametrize(
    ("schema", "options", "named"),
    [
        (SCHEMA, {"key": []}, "key"),
        (SCHEMA, {"key": ["name"]}, "key"),
        (SCHEMA, {"version": "qty"}, "version"),
        (SCHEMA, {"cluster_by": ["name"]}, "cluster_by"),
        (SCHEMA, {"keep": "9d"}, "keep"),
        ("id:int64, name:int64", {}, "name"),
        ("id:int64, name:string!", {}, "name"),
        ("id:int64, new:string!", {}, "new"),
    ],
)
def test_a_difference_is_refused_by_its_name_and_changes_nothing(lake, schema, options, named):
    table = make(lake, keep="3d")
    with pytest.raises(sl.Invalid, match=named) as failed:
        make(lake, schema, **options)
    assert failed.value.fields["table"] == "items"
    assert table.head == 0 and table.schema.names == ["id", "name", "qty"]


def test_a_required_column_is_not_optional_here(lake):
    make(lake, "id:int64, name:string!")
    with pytest.raises(sl.Invalid, match="name"):
        make(lake, "id:int64, name:string")


def test_settings_that_are_not_named_may_differ(lake):
    make(lake).configure(keep="9d")
    assert make(lake).definition.settings.keep == 9 * 86400


def test_another_word_and_a_name_that_differs_only_in_case_are_refused(lake):
    make(lake)
    with pytest.raises(sl.Invalid):
        make(lake, if_exists="replace")
    with pytest.raises(sl.Invalid):
        lake.create_table("Items", SCHEMA, key=["id"], if_exists="open")


def test_of_many_processes_at_once_all_get_the_one_table(tmp_path):
    lakes = [sl.Lake(tmp_path / "lake") for _ in range(6)]
    found: list[str] = []
    threads = [threading.Thread(target=lambda lake=lake: found.append(make(lake).entry.generation)) for lake in lakes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and len(set(found)) == 1
