"""How a receiver refuses: the status says what the sender does next, the error says why."""

import pytest

import strandline as sl
from strandline.sinks.forward import refusal
from strandline.sinks.forward.protocol import CONFLICT, GONE, REFUSED, TOO_LARGE
from strandline.sinks.forward.refusal import Refusal

FOR_GOOD, FEWER_ROWS, LATER, FOR_A_PERSON = REFUSED, {TOO_LARGE}, {408, 429}, {401, 403, CONFLICT, GONE, 412, 415}


@pytest.mark.parametrize(
    ("made", "statuses", "kind"),
    [
        (refusal.malformed("x"), FOR_GOOD, sl.Invalid),
        (refusal.too_large("x"), FEWER_ROWS, sl.Invalid),
        (refusal.too_slow("x"), LATER, sl.Unavailable),
        (refusal.busy("x"), LATER, sl.Unavailable),
        (refusal.unauthorized("x", "y"), FOR_A_PERSON, sl.Invalid),
        (refusal.forbidden("x", "y"), FOR_A_PERSON, sl.Invalid),
        (refusal.outlived("x"), FOR_A_PERSON, sl.Conflict),
        (refusal.other_version("x"), FOR_A_PERSON, sl.Conflict),
        (refusal.too_wide("x", "y"), FOR_A_PERSON, sl.Conflict),
        (refusal.unsupported("x", "y"), FOR_A_PERSON, sl.Invalid),
    ],
    ids=lambda each: each.status if isinstance(each, Refusal) else "",
)
def test_a_refusal_has_the_status_that_says_what_the_sender_does(made, statuses, kind):
    assert made.status in statuses
    assert type(made.error) is kind and made.error.message == "x"


def test_fields_say_where_it_is_wrong():
    assert refusal.malformed("x", row=3, column="a").error.fields == {"row": 3, "column": "a"}


def test_a_table_that_is_not_ready_refuses_no_single_row():
    made = refusal.unprepared(sl.Invalid("no column", row=3, column="a"), "Add it.")
    assert (made.status, made.error.hint, made.error.fields) == (412, "Add it.", {"column": "a"})
