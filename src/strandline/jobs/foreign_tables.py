"""Folders that are tables of other systems, and files in a folder that are not data."""

from __future__ import annotations

DELTA_LOG = "_delta_log/"
FOREIGN_TABLES = {
    DELTA_LOG: "a Delta table",
    ".hoodie/": "a Hudi table",
    "metadata/": "an Iceberg table",
    "catalog/": "a Strandline lake; open it with --lake",
}
"""The tables that a folder in them reveals."""


def is_hidden(name: str) -> bool:
    """Whether a file, or a folder on the way to it, is not data: `_SUCCESS`, `.part.crc`, `_temporary/…`. The folder of
    a partition column is data, whatever its name."""
    *folders, file = name.split("/")
    is_marked = any(part.startswith((".", "_")) and "=" not in part for part in folders)
    return is_marked or file.startswith((".", "_"))
