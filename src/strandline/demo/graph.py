"""The activity graph of recorded conversations: what each session touched, used and ran."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

EDGES: Final = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("src", "dst", "kind")])

_COLUMNS: Final = [("git_remote", "repo", "in"), ("tool_name", "tool", "used"), ("model", "model", "ran")]


def edges(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """List each edge once, with the first batch that has it.

    Edges go from a session to a repository (`in`), tool (`used`), model (`ran`) or file (`touched`). A file
    is one that a tool call names as `file_path`. Memory grows with the number of distinct edges."""
    seen: set[tuple[str, str, str]] = set()
    for batch in batches:
        new = dict.fromkeys(edge for edge in _find_edges(batch) if edge not in seen)
        seen.update(new)
        if new:
            yield pa.record_batch([pa.array(column, pa.string()) for column in zip(*new, strict=True)], EDGES)


def _find_edges(batch: pa.RecordBatch) -> Iterator[tuple[str, str, str]]:
    for name, node, kind in _COLUMNS:
        for session, value in _distinct_pairs(batch, name):
            yield f"session:{session}", f"{node}:{value}", kind
    for session, args in _distinct_pairs(batch, "tool_args"):
        path = _file_path(args)
        if path is not None:
            yield f"session:{session}", f"file:{path}", "touched"


def _distinct_pairs(batch: pa.RecordBatch, name: str) -> list[tuple[str, str]]:
    column = batch.column(name)
    values = column.storage if isinstance(column, pa.ExtensionArray) else column
    pairs = pa.table({"session_id": batch.column("session_id"), "value": values}).filter(pc.is_valid(values))
    found = pairs.group_by(["session_id", "value"], use_threads=False).aggregate([])
    return list(zip(found["session_id"].to_pylist(), found["value"].to_pylist(), strict=True))


def _file_path(args: str) -> str | None:
    decoded: Any = json.loads(args)
    path = decoded.get("file_path") if isinstance(decoded, dict) else None
    return path if isinstance(path, str) else None
