"""What others say, kept and shown: without secrets and without what a terminal obeys."""

import base64
import html
import json
import unicodedata
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.model.scrub import HIDDEN, MOST_CHARACTERS, scrub_text

TOKEN = "sl_Y0c-abc/DEF+123=ghi&%\"'<äö>~JKL_mno"
PLAIN_TOKEN = "sl_Yq3ZkX9vTn7LwP2rB8sD4fGhJ6mN1cVx"


def escaped(text, form):
    return "".join(form(byte) for byte in text.encode())


ENCODINGS = {
    "as it is": lambda s: s,
    "upper case": str.upper,
    "URL": lambda s: quote(s, safe=""),
    "form": quote_plus,
    "URL of a URL": lambda s: quote(quote(s, safe=""), safe=""),
    "every byte in a URL": lambda s: escaped(s, lambda b: f"%{b:02x}"),
    "JSON": lambda s: json.dumps(s)[1:-1],
    "JSON in JSON": lambda s: json.dumps(json.dumps(s))[1:-1],
    "every character in JSON": lambda s: "".join(f"\\u{ord(c):04X}" for c in s),
    "every byte in a literal": lambda s: escaped(s, lambda b: f"\\x{b:02x}"),
    "HTML": html.escape,
    "every character in HTML": lambda s: "".join(f"&#{ord(c)};" for c in s),
    "hex in HTML": lambda s: "".join(f"&#x{ord(c):x};" for c in s),
    "hex": lambda s: s.encode().hex(),
    "base64": lambda s: base64.b64encode(s.encode()).decode(),
    "base64, one behind": lambda s: base64.b64encode(b"x" + s.encode()).decode(),
    "base64, two behind": lambda s: base64.b64encode(b"xy" + s.encode() + b"z").decode(),
    "URL-safe base64": lambda s: base64.urlsafe_b64encode(b"user:" + s.encode()).decode(),
    "spaced out": " ".join,
    "hex, spaced out": lambda s: s.encode().hex(" "),
    "words of four": lambda s: " ".join(s[at : at + 4] for at in range(0, len(s), 4)),
    "repr": lambda s: repr(s.encode())[2:-1],
}


def left(secret, text):
    """The longest run of the secret that a text still has, in either case, as it is or encoded."""
    runs = [
        size
        for form in (secret, ENCODINGS["base64"](secret), secret.encode().hex())
        for size in range(1, len(form) + 1)
        for at in range(len(form) - size + 1)
        if form[at : at + size].lower() in text.lower()
    ]
    return max(runs, default=0)


@pytest.mark.parametrize("secret", [TOKEN, PLAIN_TOKEN])
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_secret_is_hidden_however_it_is_written(name, secret):
    written = ENCODINGS[name](secret)
    said = scrub_text(f"the header was >>{written}<< and is not welcome", [f"Bearer {secret}"], most=10_000)
    assert said.startswith("the header was >>")
    assert said.endswith("<< and is not welcome")
    assert HIDDEN in said
    assert left(secret, said.removeprefix("the header was").removesuffix("and is not welcome")) < 8


@pytest.mark.parametrize("cut", [10, 20, 30])
def test_a_part_of_a_secret_is_hidden_as_well(cut):
    assert left(PLAIN_TOKEN, scrub_text(f"bad token {PLAIN_TOKEN[:cut]}…", [PLAIN_TOKEN])) < 8
    assert left(PLAIN_TOKEN, scrub_text(f"bad token …{PLAIN_TOKEN[-cut:]}", [PLAIN_TOKEN])) < 8


def test_a_secret_that_the_end_of_a_long_answer_cuts_is_hidden():
    secret = "K" + PLAIN_TOKEN * 200
    for size in range(len(secret) - 40, len(secret), 7):
        assert "KsL" not in scrub_text(secret[:size] * 9, [secret]).replace(HIDDEN, "")
        assert len(scrub_text(secret[:size] * 9, [secret]).replace(HIDDEN, "")) < 8


def test_what_is_inside_a_header_is_hidden_by_itself():
    basic = base64.b64encode(b"admin:opensesame!").decode()
    said = scrub_text("user admin with password opensesame! is not known", [f"Basic {basic}"])
    assert "opensesame" not in said
    said = scrub_text("no session 7f3a9c, no id u-1234", ["session=7f3a9c; id=u-1234"])
    assert "7f3a9c" not in said
    assert "u-1234" not in said


def test_words_that_are_no_secret_stay():
    said = "Bearer tokens are needed here: 401, row 12, column 'price'"
    assert scrub_text(said, [f"Bearer {PLAIN_TOKEN}", "a", "12"]) == said


@pytest.mark.parametrize(
    "text",
    [
        "\x1b]0;owned\x07\x1b[2J", "a\rb", "x\x9b31mred", "\u202eevil\u2069", "\u2028line", "tab\there", "\x00", "\x7f",
        "\u200b\ufeff\u061c", "\ud800", "\U000e0041",
    ],
)  # fmt: skip
def test_nothing_that_a_terminal_obeys_is_left(text):
    said = scrub_text(f"before {text} after\nnext line")
    assert said.startswith("before ")
    assert said.endswith("after next line")
    assert said.isprintable()
    said.encode()


@given(st.text(max_size=400), st.lists(st.text(max_size=40), max_size=4))
def test_any_words_become_one_line_without_the_secrets(text, secrets):
    said = scrub_text(text, secrets)
    assert len(said) <= MOST_CHARACTERS
    assert not any(unicodedata.category(each)[0] == "C" for each in said)
    assert len(said.splitlines()) <= 1


@given(st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=12, max_size=60), st.data())
def test_a_secret_in_any_mix_of_escapes_is_hidden(secret, data):
    forms = [str, lambda c: f"%{ord(c):02X}", lambda c: f"\\u{ord(c):04x}", lambda c: f"&#{ord(c)};"]
    written = "".join(data.draw(st.sampled_from(forms))(each) for each in secret)
    assert scrub_text(f"<{written}>", [secret]) == f"<{HIDDEN}>"


def test_a_long_answer_with_many_secrets_takes_no_time_squared():
    scrub_text("a%61" * 20_000, [f"{number:040d}" for number in range(50)])
