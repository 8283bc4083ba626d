"""Names of columns inside files, and a definition whose columns were renamed."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

import strandline as sl
from strandline.model import definition as definitions
from strandline.model.definition import TableDef
from strandline.model.name_map import NameMap
from strandline.model.stored_names import name_stats, stored_name, stored_schema
from support import ITEMS

DEFINITION = TableDef.declare(ITEMS, key=["id"])


def test_a_renamed_column_keeps_its_name_inside_files():
    renamed = DEFINITION.rename_column("name", "title").rename_column("title", "label")
    assert renamed.schema.names == ["id", "label", "qty"]
    assert renamed.stored == {"label": "name"}
    for inside in (renamed.log_schema(0), renamed.baseline_schema(renamed.schema_id)):
        kept = pickle.loads(pickle.dumps(inside))
        assert "label" in kept.names and stored_name(kept.field("label")) == "name"
        assert "name" in stored_schema(kept).names and "label" not in stored_schema(kept).names
    assert "name" in renamed.log_delta_schema().names
    assert renamed.stored_names(["id", "label"]) == ["id", "name"]


def test_a_definition_without_renames_is_written_as_before():
    facts = DEFINITION.to_configuration()
    assert facts["strandline.format"] == "2" and "renames" not in facts["strandline.table"]
    inside = DEFINITION.log_schema(0)
    assert stored_schema(inside) is inside


def test_a_definition_with_renames_is_read_again_and_an_earlier_program_refuses_it(monkeypatch):
    renamed = DEFINITION.rename_column("name", "title")
    facts = renamed.to_configuration()
    assert TableDef.from_configuration(facts, "here") == renamed
    monkeypatch.setattr(definitions, "PACKED_FORMAT", definitions.FORMAT)
    with pytest.raises(sl.Invalid) as refused:
        TableDef.from_configuration(facts, "here")
    assert refused.value.fields["format"] == 3


def test_a_column_gets_its_name_back():
    back = DEFINITION.rename_column("name", "title").rename_column("title", "name")
    assert back.stored == {} and back.schema == ITEMS.set(0, ITEMS.field(0).with_nullable(False))
    assert back.rename_column("name", "title").schema.names == ["id", "title", "qty"]


def test_a_former_name_is_never_given_to_another_column():
    renamed = DEFINITION.rename_column("name", "title").rename_column("title", "label")
    for name in ("name", "title", "NAME"):
        with pytest.raises(sl.Invalid) as refused:
            renamed.add_column(name, pa.string())
        assert "'label'" in refused.value.message
        with pytest.raises(sl.Invalid):
            renamed.rename_column("qty", name)


def test_a_dropped_name_is_not_the_new_name():
    dropped = DEFINITION.drop_column("name")
    with pytest.raises(sl.Invalid):
        dropped.rename_column("qty", "name")
    gone = DEFINITION.rename_column("name", "title").drop_column("title")
    for name in ("name", "title"):
        with pytest.raises(sl.Invalid):
            gone.add_column(name, pa.string())


@pytest.mark.parametrize("new", ["qty", "QTY", "_seq", "", "name"])
def test_a_name_that_is_taken_or_not_allowed_is_refused(new):
    with pytest.raises(sl.Invalid):
        DEFINITION.rename_column("name", new)


def test_a_name_may_change_in_case_only():
    assert DEFINITION.rename_column("name", "Name").stored == {"Name": "name"}


@pytest.mark.parametrize("old", ["id", "day", "rev", "at"])
def test_columns_that_the_table_needs_keep_their_names(old):
    columns = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("rev", pa.int64()), ("at", pa.timestamp("us"))])
    declared = TableDef.declare(columns, key=["id"], cluster_by=["day"], version="rev", time="at")
    with pytest.raises(sl.Invalid) as refused:
        declared.rename_column(old, "other")
    assert refused.value.fields["column"] == old
    with pytest.raises(sl.NotFound):
        declared.rename_column("nothing", "other")


def test_an_earlier_schema_has_the_names_of_its_time():
    added = DEFINITION.rename_column("name", "title").add_column("more", pa.string()).rename_column("title", "label")
    assert added.at_schema(0).schema.names == ["id", "name", "qty"] and not added.at_schema(0).stored
    assert added.at_schema(1).schema.names == ["id", "title", "qty"] and added.at_schema(1).stored == {"title": "name"}
    assert added.at_schema(2).schema.names == ["id", "title", "qty", "more"]


def test_statistics_are_told_under_the_names_of_the_table():
    stats = {"numRecords": 3, "minValues": {"name": "a", "id": 1}}
    assert name_stats(stats, {"title": "name"}) == {"numRecords": 3, "minValues": {"title": "a", "id": 1}}
    assert name_stats(stats, {}) is stats


def test_names_in_files_mean_the_renamed_column():
    names = NameMap("snake").add(["Full Name", "qty"], ["name", "qty"])
    after = names.rename("name", "title").rename("qty", "count").rename("count", "qty")
    assert after.columns == {"Full Name": ("title",), "name": ("title",), "count": ("qty",)}
