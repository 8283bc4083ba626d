"""A sink as a user declares it: checked when it is declared, kept without secrets, and rebuilt from what is kept."""

import json
from dataclasses import replace

import pytest

import strandline as sl
from strandline.model.definition import TableDef
from strandline.sinks.definition import KINDS, SinkDef, check_start
from strandline.sinks.http import HttpSink
from strandline.sinks.iceberg import IcebergSink
from strandline.sinks.parquet import ParquetSink
from support import ITEMS, refused

TO = HttpSink("http://host/ingest/items", token="hush")
CENTRAL = SinkDef.declare(
    "central", "items", TO, where="qty > 1", columns=["id", "name"], mask={"name": "hash"}, salt="env:SALT", start=5
)


def test_a_sink_is_rebuilt_from_what_is_kept_of_it():
    sink = SinkDef.declare("archive", "items", ParquetSink("s3://bucket/archive"), columns=["id"], deletes=False)
    kept = json.loads(json.dumps(sink.to_dict()))
    assert SinkDef.from_dict("archive", "items", kept) == sink


def test_secrets_are_not_kept_and_come_from_the_sink_that_is_given():
    kept = CENTRAL.to_dict()
    assert "hush" not in json.dumps(kept) + repr(CENTRAL)
    assert CENTRAL.lost_secrets() == ["token"]
    again = SinkDef.from_dict("central", "items", kept, CENTRAL)
    assert (again.to.token, again.where, again.start) == ("hush", "qty > 1", 5)
    # Another place gets no secret of this one.
    elsewhere = replace(CENTRAL, to=HttpSink("http://other/ingest/items", token="hush"))
    assert SinkDef.from_dict("central", "items", kept, elsewhere).to.token != "hush"
    salted = replace(CENTRAL, to=ParquetSink("s3://bucket/x"), salt="as it is")
    assert salted.lost_secrets() == ["salt"]
    assert SinkDef.from_dict("central", "items", salted.to_dict(), salted).salt == "as it is"


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "no name"},
        {"to": "s3://bucket"},
        {"to": None},
        {"columns": "id"},
        {"where": "a\0b"},
        {"salt": "a\0b"},
        {"start": "tomorrow"},
    ],
    ids=str,
)
def test_a_declaration_that_makes_no_sense_is_refused(wrong):
    facts = {"name": "central", "table": "items", "to": TO, **wrong}
    with refused(sl.Invalid):
        SinkDef.declare(**facts)


@pytest.mark.parametrize("start", [-1, True, 1.0, None, "Head"])
def test_a_start_is_backfill_head_or_a_seq(start):
    assert [check_start(each, "x") for each in ("backfill", "head", 0, 7)] == ["backfill", "head", 0, 7]
    with refused(sl.Invalid, consumer="x"):
        check_start(start, "x")


def test_a_kind_of_a_later_version_is_refused_with_the_way_to_go():
    assert set(KINDS) == {"http", "parquet", "delta", "iceberg"}
    with refused(sl.Invalid, consumer="x") as caught:
        SinkDef.from_dict("x", "items", {**CENTRAL.to_dict(), "to": {"kind": "pigeon"}})
    assert "pip install" in caught.value.hint


def test_a_mirror_takes_no_table_with_versions_no_other_start_and_no_sink_without_deletes(tmp_path):
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    sink = SinkDef.declare("ice", "items", IcebergSink(catalog, "a.items", mode="upsert"))
    keyed = TableDef.declare(ITEMS, key=["id"])
    assert sink.to.mode == "mirror"
    sink.outgoing(keyed)
    sink.outgoing(TableDef.declare(ITEMS))
    with refused(sl.Invalid, consumer="ice", table="items"):
        sink.outgoing(TableDef.declare(ITEMS, key=["id"], version="qty"))
    for wrong in ({"start": "head"}, {"start": 3}, {"deletes": False}):
        with refused(sl.Invalid, consumer="ice", table="items"):
            replace(sink, **wrong).outgoing(keyed)


def test_a_new_sink_mirrors_its_table_if_it_can_and_a_sink_on_record_keeps_its_mode(tmp_path):
    sink = SinkDef.declare("copy", "items", sl.DeltaSink(tmp_path / "there"))
    keyed = TableDef.declare(ITEMS, key=["id"])
    assert sink.settle(keyed, None, None).to.mode == "mirror"
    assert sink.settle(TableDef.declare(ITEMS), None, None).to.mode == "mirror"
    assert sink.settle(TableDef.declare(ITEMS, key=["id"], version="qty"), None, None).to.mode == "changes"
    assert replace(sink, start="head").settle(keyed, None, None).to.mode == "changes"
    before = {"to": {"kind": "delta", "uri": sink.to.uri, "options": None}}
    assert sink.settle(keyed, "delta", before).to.mode == "changes"
    elsewhere = {"to": {"kind": "delta", "uri": str(tmp_path / "elsewhere"), "options": None}}
    assert sink.settle(keyed, "delta", elsewhere).to.mode == "mirror"
    asked = replace(sink, to=sl.DeltaSink(tmp_path / "there", mode="mirror"))
    assert asked.settle(keyed, "delta", before).to.mode == "mirror"
    with refused(sl.Invalid):
        sl.DeltaSink(tmp_path, mode="merge")
