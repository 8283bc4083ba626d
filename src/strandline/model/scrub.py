"""What others say, made fit to be kept and shown: a receiver's answer, an error of a store, a catalog or a database.

Such words may repeat the request with its secrets, and may hold characters that a terminal obeys. Whatever keeps or
shows them passes them through `scrub_text` first, with the secrets that the other one was sent."""

from __future__ import annotations

import base64
import html
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote, unquote

MOST_CHARACTERS = 500
HIDDEN = "***"

_SHORTEST = 3  # shorter secrets are in many words
_PART = 8  # of a long secret so many characters in a row are hidden, wherever they stand
_ENCODED = 6  # a shorter one, encoded, is in many words
_MOST_READ = 1 << 16
_ROUNDS = 3  # a text that was escaped is escaped again on its way, seldom more often
_BETWEEN = re.compile(r"""[\s/:@?&=;#,"'()\[\]{}<>]+""")
_SCHEMES = frozenset({"bearer", "basic", "digest", "token", "negotiate", "apikey", "aws4-hmac-sha256", "true", "false"})
_ESCAPED = re.compile(
    r"%[0-9a-f]{2}|\\u[0-9a-f]{4}|\\x[0-9a-f]{2}|\\[\"'\\/]|&#x[0-9a-f]{1,6};|&#[0-9]{1,7};|&(?:amp|lt|gt|quot|apos);",
    re.IGNORECASE,
)
_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def scrub_text(text: str, secrets: Iterable[str] = (), *, most: int = MOST_CHARACTERS) -> str:
    """One line of at most so many characters, without anything that a terminal obeys, and without the secrets: as they
    are, eight characters or more of them, spaced out, in another case, or as URLs, JSON, HTML, hex and base64 have
    them."""
    line = "".join(map(_replace_control, " ".join(text[:_MOST_READ].split())))
    hidden = _hide_forms(line, {form for each in secrets for form in _forms(each)})
    return hidden if len(hidden) <= most else hidden[: most - 1] + "…"


def holds_secret(error: BaseException, secrets: Iterable[str]) -> bool:
    """Whether an error holds a secret; its trace would show it."""
    return HIDDEN in scrub_text(str(error), secrets, most=_MOST_READ)


def first_line(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """What an error of another library says, in short."""
    return scrub_text((str(error).strip() or repr(error)).splitlines()[0], secrets)


def _replace_control(character: str) -> str:
    """A control character, one that turns the direction of writing, half a pair: none of them is a word's."""
    kind = unicodedata.category(character)
    return "\ufffd" if kind[0] == "C" or kind in ("Zl", "Zp") else character


def _forms(secret: str) -> Iterator[str]:
    """The ways in which a secret, or a piece of it, may be written."""
    for text in {secret, unquote(secret), quote(secret, safe="")}:
        for piece in {text, *_BETWEEN.split(text)}:
            if len(piece) < _SHORTEST or piece.lower() in _SCHEMES:
                continue
            yield from _spellings(piece)
            if len(piece) >= _PART:
                yield from _decode_base64(piece)


def _spellings(piece: str) -> Iterator[str]:
    data = piece.encode("utf-8", "replace")
    # The second is what is left of it when each byte was escaped by itself.
    yield from (piece, data.decode("latin-1"))
    if len(data) < _ENCODED:
        return
    yield data.hex()
    for shift in range(3):
        # In base64 a text looks in three ways, by what stands before it; its ends are mixed with its neighbours.
        inner = base64.b64encode(bytes(shift) + data).decode().rstrip("=")
        inner = inner[(0, 2, 3)[shift] : len(inner) - bool((len(data) + shift) % 3)]
        yield from (inner, inner.replace("+", "-").replace("/", "_"))


def _decode_base64(piece: str) -> Iterator[str]:
    """What a piece says that is base64 itself, as a user and a password in a header are."""
    try:
        text = base64.b64decode(piece + "=" * (-len(piece) % 4), altchars=b"-_", validate=True).decode("ascii")
    except ValueError:
        return
    if text.isprintable():
        yield from (each for each in {text, *text.split(":", 1)} if len(each) >= _SHORTEST)


def _hide_forms(text: str, forms: set[str]) -> str:
    """The text with every form hidden, also where some of its characters are escaped."""
    lowered = {form.translate(_LOWER) for form in forms}
    long = {dense for form in lowered if len(dense := form.replace(" ", "")) > _PART}
    whole = [form for form in lowered if form.replace(" ", "") not in long]
    parts = {form[at : at + _PART] for form in long for at in range(len(form) - _PART + 1)}
    is_hidden = bytearray(len(text))
    read: str = text
    places: Sequence[int] = range(len(text) + 1)
    for _ in range(_ROUNDS):
        lower = read.translate(_LOWER)
        for form in whole:
            at = lower.find(form)
            while at >= 0:
                _hide(is_hidden, places[at], places[at + len(form)])
                at = lower.find(form, at + 1)
        if parts:
            # Also when each character stands for itself: spaces do not count.
            kept = [at for at, character in enumerate(lower) if character != " "]
            dense = lower.replace(" ", "")
            for at in range(len(dense) - _PART + 1):
                if dense[at : at + _PART] in parts:
                    _hide(is_hidden, places[kept[at]], places[kept[at + _PART - 1] + 1])
        again, places = _unescape(read, places)
        if again == read:
            break
        read = again
    return "".join(_mask_hidden(text, is_hidden))


def _hide(is_hidden: bytearray, start: int, end: int) -> None:
    is_hidden[start:end] = b"\x01" * (end - start)


def _mask_hidden(text: str, is_hidden: bytearray) -> Iterator[str]:
    was_hidden = 0
    for character, hidden in zip(text, is_hidden, strict=True):
        if not hidden:
            yield character
        elif not was_hidden:
            yield HIDDEN
        was_hidden = hidden


def _unescape(text: str, places: Sequence[int]) -> tuple[str, list[int]]:
    """The text with its escapes read once, and where each of its characters stood at first."""
    read: list[str] = []
    now: list[int] = []
    at = 0
    for found in _ESCAPED.finditer(text):
        read += text[at : found.start()]
        now += places[at : found.start()]
        read.append(_unescape_character(found[0]))
        now.append(places[found.start()])
        at = found.end()
    return "".join([*read, *text[at:]]), [*now, *places[at:]]


def _unescape_character(escape: str) -> str:
    if escape.startswith("&"):
        return (html.unescape(escape) or "\ufffd")[0]
    if escape[1] in "\"'\\/":
        return escape[1]
    return chr(int(escape.lstrip("%\\uUxX"), 16))
