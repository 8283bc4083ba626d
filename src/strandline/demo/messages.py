"""Recorded AI-agent conversations, made up: one row per message part, as many rows as asked for.

A row depends only on the seed and its ordinal, so any process can make any range of rows again, in batches of
any size. Memory holds one batch and the small columns of one block of conversations."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from strandline.demo.blocks import Columns, TextBlock, TextSettings, plan
from strandline.demo.graph import EDGES, edges
from strandline.demo.jsonl import write_jsonl
from strandline.demo.turns import BLOCK_ROWS, Array

__all__ = [
    "CLUSTER_BY",
    "EDGES",
    "KEY",
    "SCHEMA",
    "Revision",
    "edges",
    "messages",
    "revisions",
    "write_jsonl",
]

_JSON: Final = pa.json_(pa.string())
_TIME: Final = pa.timestamp("us", tz="UTC")

SCHEMA: Final = pa.schema(
    [
        pa.field("session_id", pa.string(), nullable=False),
        pa.field("conversation_id", pa.string()),
        pa.field("gateway_id", pa.string(), nullable=False),
        pa.field("user_id", pa.string()),
        pa.field("provider", pa.string(), nullable=False),
        pa.field("model", pa.string()),
        pa.field("client_name", pa.string()),
        pa.field("client_version", pa.string()),
        pa.field("cwd", pa.string()),
        pa.field("git_branch", pa.string()),
        pa.field("git_remote", pa.string()),
        pa.field("repo_root", pa.string()),
        pa.field("head_sha", pa.string()),
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("part_id", pa.string(), nullable=False),
        pa.field("parent_uuid", pa.string()),
        pa.field("request_id", pa.string()),
        pa.field("role", pa.string(), nullable=False),
        pa.field("part_type", pa.string(), nullable=False),
        pa.field("system_text", pa.string()),
        pa.field("content_text", pa.string()),
        pa.field("tool_name", pa.string()),
        pa.field("tool_call_id", pa.string()),
        pa.field("tools", _JSON),
        pa.field("tool_args", _JSON),
        pa.field("status", _JSON),
        pa.field("attributes", _JSON),
        pa.field("message_index", pa.int32(), nullable=False),
        pa.field("part_index", pa.int32(), nullable=False),
        pa.field("is_sidechain", pa.bool_()),
        pa.field("is_error", pa.bool_()),
        pa.field("conversation_started_at", _TIME, nullable=False),
        pa.field("message_created_at", _TIME, nullable=False),
        pa.field("date", pa.date32(), nullable=False),
    ]
)
KEY: Final = ["part_id"]
CLUSTER_BY: Final = ["session_id", "date"]

_KEYS: Final = pa.schema([SCHEMA.field(name) for name in KEY])

_BATCH_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Revision:
    """Messages that got their final ids: rows to write with these ids, and the old keys (`part_id`) to delete."""

    upserts: pa.RecordBatch
    deletes: pa.RecordBatch


def messages(
    *,
    rows: int,
    seed: int = 0,
    tools_bytes: int = 2_000,
    tail_bytes: int = 20_000,
    batch_rows: int = 5_000,
    start: int = 0,
    share: float = 0.05,
) -> Iterator[pa.RecordBatch]:
    """Make the rows with ordinals from `start`, conversation by conversation, about 136 rows each.

    `tools_bytes` is the size of `tools` (at least one definition, about 140 bytes); the longest texts have nearly
    `tail_bytes`. `share` of the messages have a provisional id, which `revisions` with the same arguments replaces.
    Batches of `batch_rows` rows that would take more than about 64 MiB are made smaller."""
    settings = TextSettings(seed=seed, share=share, tools_bytes=tools_bytes, tail_bytes=tail_bytes)
    for pieces in _cut_batches(settings, rows, batch_rows, start):
        yield pa.concat_batches([_make_batch(block.select(at)) for block, at in pieces])


def revisions(
    *,
    rows: int,
    seed: int = 0,
    share: float = 0.05,
    tools_bytes: int = 2_000,
    tail_bytes: int = 20_000,
    batch_rows: int = 5_000,
    start: int = 0,
) -> Iterator[Revision]:
    """Replace each provisional id in the rows that `messages` makes from the same arguments.

    A revision covers the provisional rows of one batch; nothing but `message_id` and `part_id` differs."""
    settings = TextSettings(seed=seed, share=share, tools_bytes=tools_bytes, tail_bytes=tail_bytes)
    for pieces in _cut_batches(settings, rows, batch_rows, start):
        provisional = [(block, at[block.is_provisional[at]]) for block, at in pieces]
        upserts = pa.concat_batches([_make_batch(block.select(at, final=True)) for block, at in provisional])
        part_ids = pa.concat_arrays([block.part_ids(at) for block, at in provisional])
        if upserts.num_rows:
            yield Revision(upserts=upserts, deletes=pa.record_batch([part_ids], _KEYS))


def _cut_batches(
    settings: TextSettings, rows: int, batch_rows: int, start: int
) -> Iterator[list[tuple[TextBlock, Array]]]:
    """Cut the ordinals into batches, and each batch at the ends of blocks."""
    row_bytes = 1_000 + settings.tools_bytes + settings.tail_bytes // 100
    batch_rows = max(1, min(batch_rows, _BATCH_BYTES // row_bytes))
    planned, block = -1, None
    for ordinal in range(start, start + rows, batch_rows):
        ordinals = np.arange(ordinal, min(ordinal + batch_rows, start + rows))
        pieces = []
        for number in range(ordinals[0] // BLOCK_ROWS, ordinals[-1] // BLOCK_ROWS + 1):
            if block is None or number != planned:
                planned, block = number, plan(settings, number)
            pieces.append((block, ordinals[ordinals // BLOCK_ROWS == number] - number * BLOCK_ROWS))
        yield pieces


def _make_batch(columns: Columns) -> pa.RecordBatch:
    arrays = [
        pa.ExtensionArray.from_storage(_JSON, columns[field.name]) if field.type == _JSON else columns[field.name]
        for field in SCHEMA
    ]
    return pa.record_batch(arrays, SCHEMA)
