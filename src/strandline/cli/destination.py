"""Where a sink goes, as people type it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import typer

from strandline.errors import Invalid
from strandline.sinks.contract import Sink
from strandline.sinks.definition import BACKFILL, HEAD, Start

# Such as htp://host/path or localhost:8701/path. A folder of that name can be written with ./ before it.
_ADDRESS = re.compile(r"(?!s3:|file:)[a-z0-9.+-]+:(//|\d+(/|\Z))", re.IGNORECASE)


def destination(
    to: str,
    *,
    kind: str | None = None,
    token: str | None = None,
    receiver: str | None = None,
    catalog: Sequence[str] | None = None,
) -> Sink:
    """The sink for a text such as `https://…`, a folder or `s3://bucket/prefix`, or with a kind the name of an Iceberg
    table. Options of other kinds are refused."""
    kind = kind or _guessed(to)
    for option, value, own in (
        ("token", token, "http"),
        ("receiver", receiver, "http"),
        ("catalog", catalog, "iceberg"),
    ):
        if value and kind != own:
            raise typer.BadParameter(f"--{option} is for a sink of the kind {own}, and this one is of the kind {kind}")
    if kind == "iceberg" and not catalog:
        raise typer.BadParameter("a sink of the kind iceberg needs its --catalog, such as --catalog type=rest")
    # Each kind brings libraries of its own; few calls need them.
    if kind == "http":
        from strandline.sinks.http import STRANDLINE, HttpSink

        return HttpSink(to, token=token, receiver=receiver or STRANDLINE)
    if kind == "iceberg":
        from strandline.sinks.iceberg import IcebergSink

        return IcebergSink(pairs(catalog or (), "--catalog", "uri=https://…"), to)
    if kind == "delta":
        from strandline.sinks.delta import DeltaSink

        return DeltaSink(to)
    from strandline.sinks.parquet import ParquetSink

    return ParquetSink(to)


def _guessed(to: str) -> str:
    if to.lower().startswith(("http://", "https://")):
        return "http"
    if _ADDRESS.match(to):
        raise Invalid(
            "--to is neither a server's address, which begins with http:// or https://, nor a folder",
            hint="Expected http(s)://host/ingest/TABLE, a folder (as ./NAME if it looks so), or s3://bucket/prefix",
        )
    return "parquet"


def pairs(texts: Sequence[str], option: str, example: str) -> Mapping[str, str]:
    """What texts such as `name=value` say."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = (part.strip() for part in text.partition("="))
        if not (name and sign and value):
            raise typer.BadParameter(f"{option} is {text!r}; expected NAME=VALUE, such as {example}")
        if name in found:
            raise typer.BadParameter(f"{option} gives {name} twice")
        found[name] = value
    return found


def start_of(text: str) -> Start:
    if text in (BACKFILL, HEAD):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    raise typer.BadParameter(f"--start is {text!r}; expected {BACKFILL}, {HEAD} or a seq")
