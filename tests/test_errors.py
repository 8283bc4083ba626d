"""Errors are kinds with fields, and travel between processes."""

import pickle

import pytest

import strandline as sl

KINDS = [sl.Unavailable, sl.Conflict, sl.Invalid, sl.NotFound, sl.NotRetained, sl.Corrupt, sl.Internal]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_pickling_with_kind_message_hint_and_fields(kind):
    error = kind("what happened", hint="what to type", table="items", row=3, column=None)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.kind, copy.message, copy.hint) == (kind.__name__, "what happened", "what to type")
    assert copy.fields == {"table": "items", "row": 3}


def test_a_hint_is_part_of_what_is_shown():
    assert str(sl.Invalid("no", hint="do this")).splitlines() == ["no", "do this"]
    assert str(sl.Invalid("no")) == "no"


def test_what_the_caller_can_fix_is_one_family():
    assert issubclass(sl.NotFound, sl.Invalid)
    assert issubclass(sl.NotRetained, sl.Invalid)
    assert all(issubclass(kind, sl.StrandlineError) for kind in KINDS)
    assert not issubclass(sl.Conflict, sl.Invalid)
