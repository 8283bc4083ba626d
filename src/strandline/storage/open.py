"""Open a storage by its address: a local folder or a bucket."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from strandline.errors import Invalid
from strandline.storage.contract import FileInfo, StagedFile, Storage
from strandline.storage.local import LocalStorage
from strandline.storage.s3 import S3Storage

__all__ = ["FileInfo", "LocalStorage", "S3Storage", "StagedFile", "Storage", "is_inside", "open_storage"]

_PATTERN = set("*?[]{}\\")


def to_address(place: object) -> str:
    """A path or an address as text."""
    address = os.fspath(place) if isinstance(place, os.PathLike) else place
    if not isinstance(address, str) or not address:
        raise Invalid(f"address {place!r} names no place", hint="Expected a path or s3://bucket/prefix")
    return address


def open_storage(uri: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> Storage:
    """The storage at `uri`: a folder, `file://…` or `s3://bucket/prefix`.

    `options` are S3 settings (`endpoint`, `access_key_id`, `secret_access_key`, `region`, …); without them the
    usual `AWS_…` environment variables count."""
    uri = to_address(uri)
    if set(uri) & _PATTERN or not uri.isprintable():
        raise Invalid(
            f"address {uri!r} is not allowed",
            hint=f"It must not hold any of {' '.join(sorted(_PATTERN))}: readers take those as a pattern.",
        )
    parts = urlsplit(uri)
    if parts.scheme == "s3":
        if not parts.netloc:
            raise Invalid(f"address {uri!r} names no bucket", hint="Expected s3://bucket/prefix")
        if {".", ".."} & set(parts.path.split("/")):
            raise Invalid(f"address {uri!r} has '.' or '..' in it", hint="Name the prefix itself.")
        return S3Storage(parts.netloc, parts.path.strip("/"), dict(options or {}))
    if parts.scheme in ("", "file"):
        if options:
            raise Invalid(f"storage options were given for the local folder {uri!r}")
        if parts.scheme and parts.netloc:
            raise Invalid(f"address {uri!r} names another machine", hint=f"Expected file:///{parts.netloc}{parts.path}")
        storage = LocalStorage(unquote(parts.path) if parts.scheme else uri)
        if storage.is_file():
            raise Invalid(f"address {uri!r} is a file, or lies below one; expected a folder", path=storage.uri)
        return storage
    raise Invalid(
        f"address {uri!r} has the scheme {parts.scheme!r}",
        hint="Expected a folder or s3://bucket/prefix",
    )


def is_inside(place: str, storage: Storage) -> bool:
    """Whether an address, a path or a URI, lies below a storage's root; links are followed."""
    own = os.path.realpath(storage.uri) if storage.is_local else storage.uri
    where = os.path.realpath(place) if place.startswith("/") else place
    return f"{where.rstrip('/')}/".startswith(f"{own.rstrip('/')}/")
