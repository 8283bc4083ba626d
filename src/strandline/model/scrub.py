"""Clean foreign text before it is kept or shown: a receiver's answer, an error of a store, catalog or database.

Foreign text may repeat a request with its secrets, and may hold control characters for a terminal. Every module that
keeps or shows it calls `scrub_text` first, with the secrets that were sent."""

from __future__ import annotations

import base64
import html
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote, unquote

MOST_CHARACTERS = 500
HIDDEN = "***"

_SHORTEST = 3  # a shorter secret is part of many words
_PART = 8  # this many characters in a row of a longer secret are hidden anywhere
_ENCODED = 6  # the encoded form of a shorter secret is part of many words
_MOST_READ = 1 << 16
_ROUNDS = 3  # text may be escaped more than once on its way
_BETWEEN = re.compile(r"""[\s/:@?&=;#,"'()\[\]{}<>]+""")
_SCHEMES = frozenset({"bearer", "basic", "digest", "token", "negotiate", "apikey", "aws4-hmac-sha256", "true", "false"})
_ESCAPED = re.compile(
    r"%[0-9a-f]{2}|\\u[0-9a-f]{4}|\\x[0-9a-f]{2}|\\[\"'\\/]|&#x[0-9a-f]{1,6};|&#[0-9]{1,7};|&(?:amp|lt|gt|quot|apos);",
    re.IGNORECASE,
)
_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def scrub_text(text: str, secrets: Iterable[str] = (), *, most: int = MOST_CHARACTERS) -> str:
    """One line of at most `most` characters, without control characters and without the secrets. A secret is also found
    in part (eight characters or more), spaced out, in another case, and as URLs, JSON, HTML, hex and base64 write
    it."""
    line = "".join(map(_replace_control, " ".join(text[:_MOST_READ].split())))
    hidden = _hide_forms(line, {form for each in secrets for form in _forms(each)})
    return hidden if len(hidden) <= most else hidden[: most - 1] + "…"


def holds_secret(error: BaseException, secrets: Iterable[str]) -> bool:
    """Whether the text of an error holds a secret: then its trace must not be shown."""
    return HIDDEN in scrub_text(str(error), secrets, most=_MOST_READ)


def first_line(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """The first line of another library's error, scrubbed."""
    return scrub_text((str(error).strip() or repr(error)).splitlines()[0], secrets)


def _replace_control(character: str) -> str:
    """The character, or U+FFFD for a control character, a change of writing direction or half a surrogate pair."""
    kind = unicodedata.category(character)
    return "\ufffd" if kind[0] == "C" or kind in ("Zl", "Zp") else character


def _forms(secret: str) -> Iterator[str]:
    """The spellings of a secret and of its pieces."""
    for text in {secret, unquote(secret), quote(secret, safe="")}:
        for piece in {text, *_BETWEEN.split(text)}:
            if len(piece) < _SHORTEST or piece.lower() in _SCHEMES:
                continue
            yield from _spellings(piece)
            if len(piece) >= _PART:
                yield from _decode_base64(piece)


def _spellings(piece: str) -> Iterator[str]:
    data = piece.encode("utf-8", "replace")
    # The second form results when each byte was escaped by itself.
    yield from (piece, data.decode("latin-1"))
    if len(data) < _ENCODED:
        return
    yield data.hex()
    for shift in range(3):
        # A text has three forms in base64, by the length of what precedes it; its ends mix with its neighbours.
        inner = base64.b64encode(bytes(shift) + data).decode().rstrip("=")
        inner = inner[(0, 2, 3)[shift] : len(inner) - bool((len(data) + shift) % 3)]
        yield from (inner, inner.replace("+", "-").replace("/", "_"))


def _decode_base64(piece: str) -> Iterator[str]:
    """The content of a piece that is base64 itself, such as user and password in a header."""
    try:
        text = base64.b64decode(piece + "=" * (-len(piece) % 4), altchars=b"-_", validate=True).decode("ascii")
    except ValueError:
        return
    if text.isprintable():
        yield from (each for each in {text, *text.split(":", 1)} if len(each) >= _SHORTEST)


def _hide_forms(text: str, forms: set[str]) -> str:
    """The text with every form hidden, also where it is written with escapes."""
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
            # Spaces do not count: a secret may be spaced out.
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
    """The text with its escapes resolved once, and the original place of each character."""
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
