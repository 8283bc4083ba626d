"""Access to an Iceberg catalog: settings that can be stored without their secrets, and errors translated to ours.

`pyiceberg` is loaded when a catalog is opened: Spark tasks and programs without an Iceberg sink do not need it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from strandline.errors import Invalid, StrandlineError, Unavailable
from strandline.model import secret
from strandline.model.scrub import holds_secret, scrub_text
from strandline.storage.open import Storage, open_storage

_opening = threading.Lock()
# A REST catalog names the class of its own error first.
_CLASSES = re.compile(r"^(?:[\w.]+(?:Exception|Error): )+")
TIMEOUT_S = 60.0
"""The time limit for an answer of a REST catalog."""

_S3 = {
    "endpoint": ("s3.endpoint",),
    "region": ("s3.region", "client.region"),
    "access_key_id": ("s3.access-key-id", "client.access-key-id"),
    "secret_access_key": ("s3.secret-access-key", "client.secret-access-key"),
    "session_token": ("s3.session-token", "client.session-token"),
}


class SecretChange(Protocol):
    def __call__(self, text: str, role: str) -> str: ...


class CatalogSettings(Mapping[str, Any]):
    """Immutable settings, so that a sink is a value; they are shown without their secrets."""

    def __init__(self, values: Mapping[str, Any], role: str) -> None:
        if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
            raise Invalid(f"the {role} is a {type(values).__name__}; expected a mapping of names to values")
        self._role = role
        self._values = {
            name: CatalogSettings(value, f"{role}, {name}") if isinstance(value, Mapping) else value
            for name, value in sorted(values.items())
            if value is not None
        }
        for name, value in self._values.items():
            if not isinstance(value, CatalogSettings | str | int | float):
                raise Invalid(f"{name!r} of the {role} is a {type(value).__name__}; expected a text or a number")

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        return repr(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The settings to store: secrets only as references."""
        return self._change_secrets(lambda text, role: secret.reference(text) or "")

    def resolve(self) -> dict[str, Any]:
        """The settings with their secrets, which are read again at each call."""
        return self._change_secrets(secret.resolve)

    def secrets(self) -> list[str]:
        """The secrets themselves; unresolvable ones are left out."""
        found: list[str] = []

        def note(text: str, role: str) -> str:
            with suppress(Invalid):
                found.append(secret.resolve(text, role))
            return text

        self._change_secrets(note)
        return found

    def _change_secrets(self, change: SecretChange, within: str = "") -> dict[str, Any]:
        changed: dict[str, Any] = {}
        for name, value in self._values.items():
            role, path = f"{name!r} of the {self._role}", f"{within}{name}".lower()
            if isinstance(value, CatalogSettings):
                changed[name] = value._change_secrets(change, f"{path}.")
            elif secret.is_plain(path, value):
                changed[name] = value
            elif secret.is_address_name(path) and not str(value).startswith("env:"):
                changed[name] = secret.change_address(str(value), partial(change, role=f"password in {role}"))
            else:
                now = change(str(value), role)
                changed[name] = value if now == str(value) else now
        return changed


def describe_catalog(settings: CatalogSettings) -> str:
    """The identity of a catalog as text, without secrets, users and queries."""
    parts = [str(settings[name]) for name in ("type", "name") if name in settings]
    places = {name: secret.place_of(str(settings[name])) for name in ("uri", "warehouse") if name in settings}
    return " ".join([*parts, *(f"warehouse {at}" if name == "warehouse" else at for name, at in places.items())])


def open_catalog(settings: CatalogSettings, destination: str, *, timeout_s: float = TIMEOUT_S) -> Any:
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise Unavailable(
            f"{destination}: an Iceberg sink needs pyiceberg, which cannot be loaded: {error}",
            hint="pip install 'pyiceberg>=0.12'",
        ) from error
    known = settings.resolve()
    name = known.pop("name", None)
    hint = "Check the sink's catalog: type, uri and warehouse are those of pyiceberg's load_catalog."
    _check_type(known.get("type"), destination)
    with translate_errors(destination, settings, hint=hint), _opening:
        # One at a time: two threads that open a new SQL catalog would both create its tables.
        return _rest_catalog(name, known, timeout_s) or load_catalog(name, **known)


def _check_type(kind: object, destination: str) -> None:
    from pyiceberg.catalog import CatalogType

    kinds = [each.value for each in CatalogType]
    if kind is not None and str(kind).lower() not in kinds:
        raise Invalid(f"{destination}: there is no catalog of type {kind!r}", hint=f"Types: {', '.join(kinds)}")


def _rest_catalog(name: str | None, known: Mapping[str, Any], timeout_s: float) -> Any | None:
    """If `load_catalog` would make a REST catalog: the same with a time limit for silent or slow servers. pyiceberg has
    no setting for it, and asks the server before one could be set on its session."""
    from pyiceberg.catalog import _ENV_CONFIG
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.utils.config import merge_config

    from strandline.sinks.iceberg_wire import BoundedAdapter

    class TimedCatalog(RestCatalog):  # type: ignore[misc]
        def _config_headers(self, session: Any) -> None:
            # pyiceberg calls this first for a new session, before it fetches a token.
            super()._config_headers(session)
            session.request = partial(session.request, timeout=timeout_s)
            for scheme in ("http://", "https://"):
                session.mount(scheme, BoundedAdapter(timeout_s))

    name = name or _ENV_CONFIG.get_default_catalog_name()
    facts: dict[str, Any] = dict(merge_config(_ENV_CONFIG.get_catalog_config(name) or {}, dict(known)))
    uri = facts.get("uri")
    if not isinstance(uri, str) or "py-catalog-impl" in known:
        return None
    kind = str(facts.get("type") or ("rest" if uri.startswith("http") else ""))
    return TimedCatalog(name, **facts) if kind.lower() == "rest" else None


@contextmanager
def translate_errors(
    destination: str, settings: CatalogSettings, *, hint: str = "Send to another Iceberg table."
) -> Iterator[None]:
    """Turn errors of pyiceberg and its clients into ours; `hint` is for a table or setting that does not fit.

    After `Unavailable`, a commit may or may not have landed."""
    from pyiceberg import exceptions as their
    from sqlalchemy import exc as sql

    def describe(error: Exception) -> str:
        return scrub_text(_describe_error(error), settings.secrets())

    def cause(error: Exception) -> Exception | None:
        # A cause that repeats a secret is left out.
        return None if holds_secret(error, settings.secrets()) else error

    try:
        yield
    except StrandlineError:
        raise
    except (their.UnauthorizedError, their.ForbiddenError, their.AuthorizationExpiredError, their.OAuthError) as error:
        raise Invalid(
            f"{destination}: the catalog refused us: {describe(error)}",
            hint="Check the sink's credential or token, and what it may do there.",
        ) from cause(error)
    except (their.NotInstalledError, ModuleNotFoundError) as error:
        raise Unavailable(
            f"{destination}: a library for this catalog is missing: {describe(error)}",
            hint=f"Install it: pip install 'pyiceberg[{settings.get('type', 'TYPE')}]'",
        ) from cause(error)
    except (
        their.BadRequestError,
        their.NoSuchPropertyException,
        their.NoSuchIdentifierError,
        their.ValidationException,
        sql.ArgumentError,
        ValueError,
        TypeError,
        NotImplementedError,
    ) as error:
        raise Invalid(f"{destination}: {describe(error)}", hint=hint) from cause(error)
    except Exception as error:
        # Each catalog has its own client with its own errors: requests, SQLAlchemy, thrift, boto.
        raise Unavailable(
            f"{destination}: {describe(error)}",
            hint="Nothing is lost: the next tick checks what arrived, and continues.",
        ) from cause(error)


def _describe_error(error: Exception) -> str:
    """What went wrong in the words of the system or the library, without the names of classes."""
    found: BaseException | None = getattr(error, "orig", None) or error
    inner: BaseException | None = found
    while isinstance(found, OSError) and inner is not None:
        # A client wraps the system's error several times, and repeats its words.
        if isinstance(inner, OSError) and inner.strerror and inner.strerror in str(found):
            return f"no connection to the catalog: {inner.strerror}"
        inner = inner.__cause__ or inner.__context__
    said = _CLASSES.sub("", (str(found).splitlines() or [""])[0])
    return said or f"an error without words ({type(found).__name__})"


def data_place(table: Any, options: Mapping[str, str]) -> tuple[Storage, str, str]:
    """Where a table's data files go: a storage, the folder in it, and the prefix of Iceberg's paths into that storage.

    `options` are settings of the object store; they take precedence over those of the catalog."""
    location = str(table.location_provider().data_path)
    root, _, folder = location.rpartition("/")
    parts = urlsplit(root)
    if parts.scheme in ("", "file"):
        # pyiceberg takes the path literally, without decoding such as %20.
        return open_storage(parts.netloc + parts.path), folder, root
    if parts.scheme not in ("s3", "s3a", "s3n"):
        raise Invalid(
            f"the Iceberg table's files are at {location}, and a sink writes to folders and s3:// only",
            hint="Use a table whose location is one of these.",
            path=location,
        )
    known = {
        option: str(value)
        for option, names in _S3.items()
        if (value := next((table.io.properties[name] for name in names if table.io.properties.get(name)), None))
    }
    return open_storage(f"s3://{parts.netloc}{parts.path}", {**known, **options}), folder, root
