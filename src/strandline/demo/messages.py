"""Recorded AI-agent conversations, made up: one row per message part, as many rows as asked for.

A row is a function of the seed and its ordinal alone, so any range of rows can be made again, in batches of
any size, by any process. Memory holds one batch and the small columns of one block of conversations."""

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
    """Messages that got their final ids: rows to write under those, and the keys (`part_id`) to delete."""

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

    `tools_bytes` is the size of `tools` (one definition at least, about 140 bytes); `tail_bytes` is what the
    longest texts come near. `share` of the messages bear a provisional id, which `revisions` with the same
    arguments replaces. Batches have fewer than `batch_rows` rows where so many would take more than about
    64 MiB."""
    settings = TextSettings(seed=seed, share=share, tools_bytes=tools_bytes, tail_bytes=tail_bytes)
    for pieces in _pieces(settings, rows, batch_rows, start):
        yield pa.concat_batches([_batch(block.select(at)) for block, at in pieces])


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
    """Replace each provisional id among the rows that `messages` makes of the same arguments.

    A revision covers the provisional rows of one batch; nothing but `message_id` and `part_id` differs."""
    settings = TextSettings(seed=seed, share=share, tools_bytes=tools_bytes, tail_bytes=tail_bytes)
    for pieces in _pieces(settings, rows, batch_rows, start):
        provisional = [(block, at[block.is_provisional[at]]) for block, at in pieces]
        upserts = pa.concat_batches([_batch(block.select(at, final=True)) for block, at in provisional])
        part_ids = pa.concat_arrays([block.part_ids(at) for block, at in provisional])
        if upserts.num_rows:
            yield Revision(upserts=upserts, deletes=pa.record_batch([part_ids], _KEYS))


def _pieces(settings: TextSettings, rows: int, batch_rows: int, start: int) -> Iterator[list[tuple[TextBlock, Array]]]:
    """Cut the ordinals into batches, and a batch where one block ends and the next begins."""
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


def _batch(columns: Columns) -> pa.RecordBatch:
    arrays = [
        pa.ExtensionArray.from_storage(_JSON, columns[field.name]) if field.type == _JSON else columns[field.name]
        for field in SCHEMA
    ]
    return pa.record_batch(arrays, SCHEMA)
