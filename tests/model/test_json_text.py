"""Whether a text is JSON: walking through it and reading it say the same."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.model import json_text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


def is_json(check, text):
    try:
        check(text)
    except (ValueError, RecursionError):
        return False
    return True


@given(
    VALUES, st.booleans(), st.lists(st.tuples(st.integers(0, 200), st.sampled_from('{}[]",:0e-.\\u \nx')), max_size=2)
)
def test_a_text_that_is_walked_through_is_judged_as_one_that_is_read(value, is_ascii, changes):
    text = json.dumps(value, ensure_ascii=is_ascii)
    for place, sign in changes:
        text = text[:place] + sign + text[place + 1 :]
    assert is_json(json_text._walk_tokens, text) == is_json(json_text.check, text)


@pytest.mark.parametrize(
    ("text", "is_good"),
    [
        ("", False), ("[", False), ("[1,]", False), ('{"a":1,}', False), ("{,}", False), ("[1 2]", False),
        ("01", False), ("NaN", False), ('"\\ud800"', False), ('"\\ud83d\\ude00"', True), ('"\\\\ud800"', True),
        ('{"a":[{}]}', True),
        ("1 2", False), ("[]]", False), ("[}", False), (" null ", True), ("1.", False), ("-", False), ('{1:2}', False),
    ],
)  # fmt: skip
def test_what_json_is(text, is_good):
    assert is_json(json_text._walk_tokens, text) is is_good
    assert is_json(json_text.check, text) is is_good


def test_a_long_text_is_walked_through_and_may_not_be_nested_too_deeply():
    assert is_json(json_text.check, "[" + "[]," * 400_000 + "[]]")
    assert not is_json(json_text.check, "[" + "[]," * 400_000 + "[]")
    assert not is_json(json_text.check, "[" * 600_000 + "]" * 600_000)
