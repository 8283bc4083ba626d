"""Options name a table, and what is wrong with them is said at once."""

import os

import pytest

import strandline as sl
from strandline.spark_source.options import READ, WRITE_STREAM, Place, check_names, whole_number
from support import refused


def test_a_place_is_absolute_and_hides_its_secrets(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    place = Place.of({"lake": "lake", "table": "t", "storage.secret_access_key": "hush"})
    assert place.lake == os.path.join(os.getcwd(), "lake")
    assert "hush" not in repr(place) and place.storage_options == (("secret_access_key", "hush"),)
    assert Place.of({"lake": "s3://bucket/lake", "table": "t"}).lake == "s3://bucket/lake"
    for options in ({"lake": "lake"}, {"table": "t"}, {"lake": "", "table": "t"}):
        with refused(sl.Invalid):
            Place.of(options)


def test_a_process_opens_a_lake_once_and_a_table_of_another_generation_is_not_found(lake, items):
    place = Place.of({"lake": lake.storage.uri, "table": "items"})
    assert place.open(items.entry.generation).duck is Place(place.lake, "items").open().duck
    lake.drop("items")
    lake.create_table("items", items.schema, key=["id"])
    with refused(sl.NotFound, table="items"):
        place.open(items.entry.generation)
    assert place.open().entry.generation == lake.table("items").entry.generation


def test_unknown_names_are_refused_whatever_their_case():
    check_names({"LAKE": "l", "Table": "t", "AT": "3", "storage.region": "x"}, READ, "a read of")
    check_names({"orderby": "x", "checkpointLocation": "/c", "queryName": "q"}, WRITE_STREAM, "a stream into")
    with refused(sl.Invalid):
        check_names({"token": "x"}, READ, "a read of")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", ""])
def test_a_whole_number_is_one_or_more(text):
    assert whole_number({}, "maxRowsPerTrigger") is None
    assert whole_number({"maxRowsPerTrigger": "12"}, "maxRowsPerTrigger") == 12
    with refused(sl.Invalid):
        whole_number({"maxRowsPerTrigger": text}, "maxRowsPerTrigger")
