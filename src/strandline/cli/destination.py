"""A sink's destination and start, as people type them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

import strandline as sl
from strandline.cli.options import parse_pairs
from strandline.errors import Invalid

if TYPE_CHECKING:
    from strandline.sinks.contract import Sink
    from strandline.sinks.definition import Start

BACKFILL, HEAD = "backfill", "head"
# Such as htp://host/path or localhost:8701/path. A folder of that name can be written with ./ before it.
_ADDRESS = re.compile(r"(?!s3:|file:)[a-z0-9.+-]+:(//|\d+(/|\Z))", re.IGNORECASE)


def make_sink(
    to: str,
    *,
    kind: str | None = None,
    mode: str | None = None,
    token: str | None = None,
    receiver: str | None = None,
    catalog: Sequence[str] | None = None,
) -> Sink:
    """The sink for a text such as `https://…`, a folder or `s3://bucket/prefix`, or with a kind the name of an Iceberg
    table. Options of other kinds are refused."""
    kind = kind or _guess_kind(to)
    for option, value, own in (
        ("token", token, "http"),
        ("receiver", receiver, "http"),
        ("catalog", catalog, "iceberg"),
    ):
        if value and kind != own:
            raise typer.BadParameter(f"--{option} is for a sink of the kind {own}, and this one is of the kind {kind}")
    if mode == "mirror" and kind not in ("delta", "iceberg"):
        raise typer.BadParameter(f"a mirror is of the kind delta or iceberg, and this sink is of the kind {kind}")
    if kind == "iceberg" and not catalog:
        raise typer.BadParameter("a sink of the kind iceberg needs its --catalog, such as --catalog type=rest")
    if kind == "http":
        return sl.HttpSink(to, token=token, receiver=receiver or "strandline")
    if kind == "iceberg":
        return sl.IcebergSink(parse_pairs(catalog or (), "--catalog", "uri=https://…"), to, mode=mode)
    return sl.DeltaSink(to, mode=mode) if kind == "delta" else sl.ParquetSink(to)


def _guess_kind(to: str) -> str:
    if to.lower().startswith(("http://", "https://")):
        return "http"
    if _ADDRESS.match(to):
        raise Invalid(
            "--to is neither a server's address, which begins with http:// or https://, nor a folder",
            hint="Expected http(s)://host/ingest/TABLE, a folder (as ./NAME if it looks so), or s3://bucket/prefix",
        )
    return "parquet"


def parse_start(text: str) -> Start:
    if text in (BACKFILL, HEAD):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    raise typer.BadParameter(f"--start is {text!r}; expected {BACKFILL}, {HEAD} or a seq")
