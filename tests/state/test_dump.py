"""A state as a document, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import strandline as sl
from strandline.state.database import Database
from strandline.state.dump import FORMAT, TAKEN, check_free, dump_state, load_state
from strandline.state.tokens import Tokens


@pytest.fixture
def filled(tmp_path: Path) -> Database:
    database = Database(tmp_path / "a.db")
    database.bind("lake")
    Tokens(database).add("reader", "reader")
    return database


def test_a_dump_is_json_and_loads_into_an_empty_state(filled, tmp_path):
    facts = json.loads(json.dumps(dump_state(filled)))
    assert (facts["format"], facts["lake_id"]) == (FORMAT, "lake")
    other = Database(tmp_path / "b.db")
    check_free(other)
    load_state(other, facts, may_replace=False)
    assert dump_state(other)["tables"]["strandline_tokens"] == facts["tables"]["strandline_tokens"]
    assert other.has(*TAKEN) and other.lake_id() == "lake"


def test_a_state_in_use_is_not_filled_unless_it_is_of_the_same_lake_and_may_be_replaced(filled, tmp_path):
    facts = dump_state(filled)
    with pytest.raises(sl.Conflict):
        check_free(filled)
    with pytest.raises(sl.Conflict):
        load_state(filled, facts, may_replace=False)
    load_state(filled, facts, may_replace=True)
    other = Database(tmp_path / "b.db")
    other.bind("another")
    with pytest.raises(sl.Conflict):
        load_state(other, facts, may_replace=True)


def test_a_later_format_and_a_missing_part_are_refused_and_leave_nothing(filled, tmp_path):
    facts = dump_state(filled)
    other = Database(tmp_path / "b.db")
    with pytest.raises(sl.Invalid):
        load_state(other, {**facts, "format": FORMAT + 1}, may_replace=False)
    broken = {**facts, "tables": {"strandline_tokens": [{"name": "x"}]}}
    with pytest.raises(sl.Corrupt):
        load_state(other, broken, may_replace=False)
    check_free(other)
