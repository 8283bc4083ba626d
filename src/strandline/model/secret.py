"""Which settings and which parts of an address are secret, and references to secrets.

`env:NAME` and `file:PATH` name the place of a secret, so a definition can be stored without it. A secret given
literally works in the process that declared it and is never stored. `scrub` takes secrets out of messages."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from strandline.errors import Invalid

GIVEN = "given"
"""Stored in place of a secret that was given literally."""
_NAMES = ("secret", "token", "password", "encryption_key", "customer_key")
# Endings of the names of settings without a secret, and of addresses. Any other setting may be secret as a whole.
_PLAIN = re.compile(
    r"(?:^|[._-])(?:type|name|username|prefix|scope|audience|resource|version|impl|region|separator|path|timeout|retries"
    r"|mode|signer|key[_-]id|client[_-]id|glue\.id|role-arn|cabundle|client\.cert|ssl\.client\.key|access-delegation)$"
)
_ADDRESS = re.compile(r"(?:^|[._-])(?:uri|url|endpoint|warehouse)$")
_SWITCHES = ("true", "false", "0", "1")
_STORES = ("s3", "s3a", "s3n", "gs")
_WEB = ("http", "https", "thrift", "abfs", "abfss", *_STORES)
_HOST = re.compile(r"(?:\[[^][/]*\]|[^][:/]*)(?::[0-9]+)?(?:/|$)")
_PLAIN_QUERY = re.compile(r"sslmode|sslrootcert|host|port|user|connect_timeout|timeout|charset|mode|uri")


def is_reference(text: str) -> bool:
    return text.startswith(("env:", "file:"))


def is_secret_name(name: str) -> bool:
    """Whether a store's setting of that name holds a secret. A `_file` setting only names the file of one."""
    return not name.lower().endswith("_file") and any(word in name.lower() for word in _NAMES)


def is_plain(name: str, value: object) -> bool:
    """Whether a catalog's setting may be stored as it is: a switch, or a harmless one by its name."""
    if str(value).lower() in _SWITCHES:
        return True
    return bool(_PLAIN.search(name.lower())) and not is_secret_name(name) and not str(value).startswith("env:")


def is_address_name(name: str) -> bool:
    return bool(_ADDRESS.search(name.lower()))


def change_address(text: str, change: Callable[[str], str]) -> str:
    """An address with `change` applied to its password and to the values of its query, or to the whole text when they
    cannot be told apart. The same text when nothing changes."""
    scheme, mark, rest = text.partition("://")
    if not mark or scheme == "file" or not set(text) & set("@?#;"):
        # A path, a name, or an address without password and query.
        is_plain = mark or text.startswith("/") or not (text == GIVEN or set(text) & set("@?#;="))
        return text if is_plain else change(text)
    is_web = scheme in _WEB
    before, _, query = rest.partition("?")
    authority = before.partition("/")[0]
    # Both a path and a password may hold an @.
    is_path = (scheme in _STORES and ":" not in authority) or not (authority or is_web)
    place = authority if is_path else before
    who, at, host = place.rpartition("@")
    user, colon, password = who.partition(":")
    # A user without a password, before a web server, may be a token.
    known = unquote(password if colon or not is_web else user)
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        return change(text)
    is_clear = "@" not in (who if is_web else who + query) and "/" not in (who if is_web else user)
    is_whole = _HOST.match(host) and all(value for _, value in pairs)
    if not is_clear or not is_whole or set("#;") & set(text if is_web else "" if is_path else user + host):
        return change(text)
    now = change(known) if known else known
    changed = [(key, value if not is_web and _PLAIN_QUERY.fullmatch(key) else change(value)) for key, value in pairs]
    if now == known and changed == pairs:
        return text
    who = f"{user}:{quote(now, safe=':')}" if colon else quote(now, safe=":") if is_web else user
    asked = f"?{urlencode(changed, safe=':/')}" if changed else ""
    return f"{scheme}://{who}{at}{host}{before[len(place) :]}{asked}"


def place_of(text: str) -> str:
    """An address without password, user and query: the place alone."""
    known = change_address(text, lambda _: GIVEN)
    scheme, mark, rest = known.partition("://")
    if known == GIVEN or not mark or scheme in ("file", "sqlite") or text.startswith("env:"):
        return known.partition("?")[0] if scheme == "sqlite" else known
    before, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{before.rpartition('@')[2]}{slash}{path}"


def store_secrets(options: Mapping[str, Any]) -> list[str]:
    """The secrets of a store: those in its settings, and those that its client reads from the environment."""
    found = [str(value) for name, value in options.items() if is_secret_name(name)]
    return [*found, *filter(None, map(os.environ.get, ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")))]


def reference(text: str | None) -> str | None:
    """The form of a secret that may be stored."""
    return text if text is None or is_reference(text) else GIVEN


def resolve(text: str, role: str) -> str:
    """The secret itself, read anew at each call; `Invalid` when it cannot be read."""
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
            f"the {role} was given literally by the program that declared the sink, and is not stored",
            hint="Run that program, name it with --app module:lake, or declare the secret as 'env:NAME'.",
        )
    return text
