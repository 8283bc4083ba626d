"""The address of a state: which databases it may name, and how it is shown to people."""

from __future__ import annotations

import os

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from strandline.errors import Invalid
from strandline.model.secret import is_secret_name
from strandline.model.text import check_text

_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "sqlite+pysqlite": "sqlite+pysqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
EXPECTED = "Expected postgresql://user@host/database, sqlite:////folder/state.db, or in Python a Path"


def parse_url(url: object) -> URL:
    """The URL of a database that can hold a state; a path is that of a SQLite file. `Invalid` for anything else."""
    if isinstance(url, os.PathLike):
        url = URL.create("sqlite", database=os.fspath(url))
    try:
        parsed = make_url(url) if isinstance(url, (str, URL)) else None
        if isinstance(url, str):
            check_text("state", url)
    except (ArgumentError, ValueError, Invalid):
        # The address may hold a password, so it is not shown.
        parsed = None
    if parsed is None:
        is_name = isinstance(url, str) and url.isprintable() and url and not set(url) & set("@:?")
        file = f"For a file: --state sqlite:///{os.path.abspath(str(url))}" if is_name else EXPECTED
        raise Invalid("state is not the URL of a database", hint=file)
    if parsed.drivername not in _DRIVERS:
        raise Invalid(f"state has the scheme {parsed.drivername!r}", hint=EXPECTED)
    parsed = parsed.set(drivername=_DRIVERS[parsed.drivername])
    if parsed.get_backend_name() == "sqlite":
        is_uri = "uri" in parsed.query
        database = parsed.database or ""
        if not database or ":memory:" in database or parsed.query.get("mode") == "memory":
            raise Invalid("state in memory would be lost with the process", hint=EXPECTED)
        parsed = parsed if is_uri else parsed.set(database=os.path.abspath(database))
    return parsed


def file_of(url: URL) -> str | None:
    """The file of a SQLite database."""
    if url.get_backend_name() != "sqlite":
        return None
    assert url.database is not None
    return url.database.removeprefix("file:") if "uri" in url.query else url.database


def public_url(url: URL) -> str:
    """The URL as people see it: it names the database and holds no secret."""
    if url.get_backend_name() == "sqlite":
        return f"sqlite:///{url.database}"
    host = url.host or url.query.get("host", "")
    address = ",".join(host) if isinstance(host, tuple) else host
    user = f"{url.username}@" if url.username else ""
    port = f":{url.port}" if url.port else ""
    return f"postgresql://{user}{address}{port}/{url.database or ''}"


def secrets_of(url: URL) -> list[str]:
    """The secrets in an address, which no message may repeat."""
    found = [url.password, *(value for name, value in url.query.items() if is_secret_name(name))]
    return [secret for each in found for secret in ([each] if isinstance(each, str) else each or []) if secret]
