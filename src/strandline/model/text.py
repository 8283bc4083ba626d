"""Refuse a caller's text that some reader of commits, state or queries could not hold.

A Python text may hold half a surrogate pair, which is not Unicode: JSON libraries refuse a whole file for it, and
Parquet and SQL cannot hold it. A NUL ends a text for many readers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.errors import Invalid


def check_text(role: str, value: object) -> str:
    """`value` itself; `Invalid`, with its `role`, unless it is a text that every reader can hold."""
    if value == "":
        raise Invalid(f"{role} is empty")
    if not isinstance(value, str):
        raise Invalid(f"{role} is {value!r:.80}; expected a text")
    if "\0" in value:
        raise Invalid(f"{role} is {value!r:.80}; a NUL character at {value.index(chr(0))} cannot be kept")
    if not value.isascii():
        at = next((at for at, sign in enumerate(value) if "\ud800" <= sign <= "\udfff"), None)
        if at is not None:
            raise Invalid(f"{role} is {value!r:.80}; half a surrogate pair at {at} is not Unicode text")
    return value


def check_texts(role: str, value: object) -> None:
    """Check every text in nested mappings and sequences, keys included; an empty text is fine."""
    if isinstance(value, str):
        if value:
            check_text(role, value)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            check_texts(f"{role}, a name", name)
            check_texts(f"{role}, {name!r:.80}", each)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for each in value:
            check_texts(role, each)
