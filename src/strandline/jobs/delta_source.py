"""A Delta table that exists elsewhere, read by the `deltalake` library: deletion vectors, column mapping and the types
of Delta are its work. What the library cannot read is `Invalid`, with the name of the feature or of the file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from strandline.errors import Invalid, StrandlineError
from strandline.jobs.foreign_types import convert_rows, leave_out, skip_hint, stored_schema
from strandline.storage.open import Storage

if TYPE_CHECKING:
    from deltalake import DeltaTable

_FEATURE = re.compile(r"Feature '([^']+)' is not supported|[Uu]nsupported table features required: \[([^\]]+)\]")
_CAUSES = re.compile(r"^(?:[A-Z][A-Za-z ]* error: )+")


@dataclass(frozen=True)
class DeltaSource:
    uri: str
    table: DeltaTable
    schema: pa.Schema
    rows: int = 0

    @staticmethod
    def open(uri: str, storage: Storage, files: Collection[str], skip: Collection[str] = ()) -> DeltaSource:
        """The table at `uri`; `files` are the paths in its folder."""
        # The library loads late: only an import of a Delta table needs it.
        from deltalake import DeltaTable

        with _explain_errors(uri):
            table = DeltaTable(uri, storage_options=dict(storage.delta_options) or None)
            declared = json.loads(table.schema().to_json())["fields"]
            kept = leave_out([field["name"] for field in declared], skip, uri)
            _check_files(uri, _list_paths(table), files)
            _refuse_variants(uri, [field for field in declared if field["name"] in kept])
            # The scan is not read here. It finds features that the library cannot read.
            found = pa.RecordBatchReader.from_stream(table.scan(columns=kept)).schema
            return DeltaSource(uri, table, stored_schema(pa.schema([found.field(name) for name in kept])))

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        row = 0
        with _explain_errors(self.uri):
            for batch in pa.RecordBatchReader.from_stream(self.table.scan(columns=schema.names)):
                yield convert_rows(batch, schema, row)
                row += batch.num_rows


@contextmanager
def _explain_errors(uri: str) -> Iterator[None]:
    """`Invalid` for whatever the library raises: its own errors, those of Arrow and the system, and Rust's panics."""
    try:
        yield
    except (StrandlineError, GeneratorExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        text = (str(error).splitlines() or [type(error).__name__])[0]
        feature = _FEATURE.search(text)
        if feature is None:
            cause = _CAUSES.sub("", text)
            raise Invalid(f"{uri} is not a readable Delta table: {cause}", path=uri) from error
        name = feature[1] or feature[2]
        raise Invalid(
            f"the Delta table {uri} uses the feature {name}, which cannot be read; nothing was imported",
            hint="Write a copy without it (in Spark: df.write.parquet), and import the copy.",
            path=uri,
            feature=name,
        ) from error


def _list_paths(table: DeltaTable) -> list[str]:
    actions = pa.table(table.get_add_actions())
    # A table without files may come without columns.
    return actions.column("path").to_pylist() if "path" in actions.column_names else []


def _check_files(uri: str, paths: Sequence[str], files: Collection[str]) -> None:
    """Refuse a file outside of the table's folder, since a Delta log could name any file that this process may read,
    and a file that is gone."""
    there = set(files)
    for path in paths:
        inside = _path_inside(uri, path)
        if inside is None:
            raise Invalid(
                f"the Delta table {uri} has a file outside of its folder: {path!r}; nothing was imported",
                hint="If the table is a shallow copy of another one, import that one.",
                path=uri,
            )
        if inside not in there:
            raise Invalid(
                f"the Delta table {uri} lacks its file {inside}; nothing was imported",
                hint="Was it deleted by a vacuum, or is the table a partial copy?",
                path=uri,
                file=inside,
            )


def _path_inside(uri: str, path: str) -> str | None:
    """The path below the table's folder; None when it lies outside."""
    plain = unquote(path)
    root = uri.rstrip("/") + "/"
    for start in (root, f"file://{root}", f"file:{root}"):
        if plain.startswith(start):
            plain = plain.removeprefix(start)
            break
    if plain.startswith("/") or "://" in plain or plain.startswith("file:") or ".." in plain.split("/"):
        return None
    return os.path.normpath(plain)


def _refuse_variants(uri: str, fields: Sequence[dict[str, Any]]) -> None:
    """The library gives the bytes of variants without their meaning."""
    found = [field["name"] for field in fields if _has_variant(field["type"])]
    if found:
        raise Invalid(
            f"the Delta table {uri} holds values of type variant, which a table cannot hold: {', '.join(found)}",
            hint=skip_hint(found),
            path=uri,
            column=found[0],
            columns=found,
        )


def _has_variant(kind: Any) -> bool:
    if isinstance(kind, dict):
        return any(_has_variant(value) for word, value in kind.items() if word not in ("name", "metadata"))
    return any(map(_has_variant, kind)) if isinstance(kind, list) else kind == "variant"
