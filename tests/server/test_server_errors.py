"""Errors become answers: each kind has its status."""

import json

import pytest

import strandline as sl
from strandline.server.errors import answer
from strandline.sinks.forward.refusal import Refusal


@pytest.mark.parametrize(
    ("error", "status", "kind", "waits"),
    [
        (sl.Unavailable("x"), 503, "Unavailable", True),
        (OSError(28, "No space left"), 503, "Unavailable", True),
        (sl.Conflict("x"), 409, "Conflict", False),
        (sl.Invalid("x"), 422, "Invalid", False),
        (sl.NotFound("x"), 404, "NotFound", False),
        (sl.NotRetained("x"), 410, "NotRetained", False),
        (sl.Corrupt("x"), 500, "Corrupt", False),
        (sl.Internal("x"), 500, "Internal", False),
        (ValueError("a secret"), 500, "Internal", False),
    ],
)
def test_each_kind_of_error_has_its_status(error, status, kind, waits):
    told = answer(error)
    assert (told.status_code, json.loads(told.body)["error"]["kind"]) == (status, kind)
    assert ("Retry-After" in told.headers) is waits
    assert b"a secret" not in told.body


def test_an_answer_says_kind_message_hint_and_fields():
    told = answer(Refusal(413, sl.Invalid("too much", hint="Send less.", row=3)))
    assert told.status_code == 413
    assert json.loads(told.body)["error"] == {"kind": "Invalid", "message": "too much", "hint": "Send less.", "row": 3}


def test_who_lacks_a_token_is_told_how_to_bring_one_and_who_comes_too_often_when_to_come_again():
    assert answer(Refusal(401, sl.Invalid("no token"))).headers["WWW-Authenticate"] == "Bearer"
    assert "Retry-After" in answer(Refusal(429, sl.Unavailable("busy"))).headers


def test_half_a_character_in_a_name_is_no_fault_of_the_server():
    told = answer(sl.Invalid("column '\ud800' is unknown", column="\ud800"))
    assert json.loads(told.body)["error"]["column"] == "?"
