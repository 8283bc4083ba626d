"""Secrets by reference: `env:NAME` and `file:PATH` say where one is, so that a definition can be kept without it.

A secret that was given as it is works in the process that declared it and is never written down."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from strandline.errors import Invalid

GIVEN = "given"
"""What is kept of a secret that was given as it is: that there was one."""
_NAMES = ("secret", "token", "password", "encryption_key", "customer_key")


def is_reference(text: str) -> bool:
    return text.startswith(("env:", "file:"))


def is_secret_name(name: str) -> bool:
    """Whether a store's setting of that name holds a secret; a file that holds one is named, and read by its client."""
    return not name.lower().endswith("_file") and any(word in name.lower() for word in _NAMES)


def of_store(options: Mapping[str, Any]) -> list[str]:
    """The secrets with which a store is reached: those in its settings, and those that its client finds by itself."""
    found = [str(value) for name, value in options.items() if is_secret_name(name)]
    return [*found, *filter(None, map(os.environ.get, ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")))]


def reference(text: str | None) -> str | None:
    """What may be written down of a secret."""
    return text if text is None or is_reference(text) else GIVEN


def resolved(text: str, role: str) -> str:
    """The secret itself, read anew at each call; `Invalid` when it is not there."""
    if text.startswith("env:"):
        value = os.environ.get(text.removeprefix("env:"))
        if not value:
            raise Invalid(f"the {role} is {text}, and that environment variable is not set", hint="Set it.")
        return value
    if text.startswith("file:"):
        try:
            with open(text.removeprefix("file:"), encoding="utf-8") as stream:
                return stream.read().strip()
        except (OSError, ValueError) as error:
            raise Invalid(f"the {role} is {text}, which cannot be read: {error}") from error
    if text == GIVEN:
        raise Invalid(
            f"the {role} was given in the program that declared the sink, and is not written down",
            hint="Run that program, name it with --app module:lake, or declare the secret as 'env:NAME'.",
        )
    return text
