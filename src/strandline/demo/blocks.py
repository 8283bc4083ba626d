"""The columns of a block of made-up conversations, each drawn for all its rows at once.

Texts and tool definitions have their own random numbers, so their sizes change no other column."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.demo import turns
from strandline.demo.texts import hex_ids, join, prose, short_prose, tool_definitions, uuids
from strandline.demo.turns import BLOCK_ROWS, CONVERSATIONS, Array, Turns
from strandline.demo.vocabulary import CLIENTS, FILES, GATEWAYS, TOOLS, WORDS, repository

FIRST_DAY: Final = datetime(2025, 9, 1, tzinfo=UTC)
DAYS: Final = 58

_TIME: Final = pa.timestamp("us", tz="UTC")
_DAY_US: Final = 86_400_000_000
_BUSY: Final = np.array([0.2 if day % 7 >= 5 else 1 + day * 5 % 7 / 3 for day in range(DAYS)])

Columns = dict[str, pa.Array]


@dataclass(frozen=True)
class TextSettings:
    seed: int
    share: float
    tools_bytes: int
    tail_bytes: int


@dataclass(frozen=True, eq=False)
class TextBlock:
    """A block's rows without their large values: tools are kept once per conversation, long texts as size and seed."""

    columns: Columns
    final_message_id: pa.Array
    is_provisional: Array
    conversation: Array
    tools: pa.Array
    long_bytes: Array
    long_seed: Array

    def part_ids(self, rows: Array) -> pa.Array:
        """The `part_id` of these rows as they were first recorded."""
        return join(_take_rows(self.columns["message_id"], rows), "#", _take_rows(self.columns["part_index"], rows))

    def select(self, rows: Array, *, final: bool = False) -> Columns:
        """The columns of these rows, with their final ids or those recorded first."""
        columns = {name: _take_rows(column, rows) for name, column in self.columns.items()}
        if final:
            columns["message_id"] = _take_rows(self.final_message_id, rows)
        columns["part_id"] = join(columns["message_id"], "#", columns["part_index"])
        columns["tools"] = _take_rows(self.tools, self.conversation[rows])
        sizes, seeds = self.long_bytes[rows], self.long_seed[rows]
        long = [prose(np.random.default_rng(seeds[at]), int(sizes[at])) for at in np.flatnonzero(sizes)]
        columns["content_text"] = pc.replace_with_mask(
            columns["content_text"], pa.array(sizes > 0), pa.array(long, pa.string())
        )
        return columns


def plan(settings: TextSettings, number: int) -> TextBlock:
    """Plan block `number`. It depends only on the settings and the number."""
    rng, words, tools = (np.random.default_rng([settings.seed, number, stream]) for stream in range(3))
    rows = turns.draw(rng)
    is_sidechain = (rng.random(rows.turns) < 0.08)[rows.turn]
    has_failed = (rows.kind == turns.TOOL_RESULT) & (rng.random(BLOCK_ROWS) < 0.04)
    is_error = (rows.kind == turns.ERROR) | has_failed
    is_provisional = (rng.random(rows.messages) < settings.share)[rows.message]
    final_message_id = uuids(rng, rows.messages)

    conversations, roots, sibling_roots = _draw_conversations(rng, number)
    columns = {name: _take_rows(column, rows.conversation) for name, column in conversations.items()}
    columns["model"] = pc.if_else(pa.array(is_sidechain), columns.pop("small_model"), columns["model"])
    columns |= _draw_times(rng, rows)
    columns |= _draw_tool_columns(rng, rows, roots, sibling_roots)
    columns |= _draw_json_columns(rng, rows, is_error)
    columns |= {
        "message_id": pc.if_else(
            pa.array(is_provisional),
            _take_rows(hex_ids(rng, rows.messages, 16), rows.message),
            _take_rows(final_message_id, rows.message),
        ),
        "parent_uuid": _null_unless(
            rows.message_index > 0, _take_rows(final_message_id, np.maximum(rows.message - 1, 0))
        ),
        "request_id": _take_rows(hex_ids(rng, rows.turns + 1, 24, "req_"), rows.request),
        "role": _take_rows(turns.ROLES, rows.role),
        "part_type": _take_rows(turns.KINDS, rows.kind),
        "message_index": pa.array(rows.message_index.astype(np.int32)),
        "part_index": pa.array(rows.part_index.astype(np.int32)),
        "is_sidechain": pa.array(is_sidechain),
        "is_error": pa.array(is_error),
    }

    has_text = (rows.kind != turns.TOOL_CALL) & (rows.kind != turns.IMAGE)
    is_long = has_text & (words.random(BLOCK_ROWS) < np.where(rows.kind == turns.TOOL_RESULT, 0.1, 0.01))
    long_bytes = (settings.tail_bytes * words.random(BLOCK_ROWS) ** 3).astype(np.int64)
    long_seed = words.integers(0, 2**63, BLOCK_ROWS)
    columns["content_text"] = _null_unless(has_text, short_prose(words, BLOCK_ROWS, settings.tail_bytes))
    return TextBlock(
        columns=columns,
        final_message_id=_take_rows(final_message_id, rows.message),
        is_provisional=is_provisional,
        conversation=rows.conversation,
        tools=pa.array([tool_definitions(tools, settings.tools_bytes) for _ in range(CONVERSATIONS)]),
        long_bytes=np.where(is_long, long_bytes, 0),
        long_seed=long_seed,
    )


def _draw_conversations(rng: np.random.Generator, number: int) -> tuple[Columns, pa.Array, pa.Array]:
    """Draw the columns that are constant in a conversation, and the folders of the files that it touches.

    Later blocks have more repositories. A repository shares work with only one sibling, so that work stays
    separate."""
    clients = [CLIENTS[at] for at in rng.integers(0, len(CLIENTS), CONVERSATIONS)]
    users = rng.integers(0, 40, CONVERSATIONS)
    repos = [int(at) for at in rng.random(CONVERSATIONS) ** 2 * (24 + 2 * number)]
    in_repo = rng.random(CONVERSATIONS) < 0.85
    names = [repository(repo) for repo in repos]
    scratch = hex_ids(rng, CONVERSATIONS, 12, "/scratch/")
    roots = pc.if_else(pa.array(in_repo), pa.array([f"/workspace/{name}" for name in names]), scratch)
    siblings = pa.array([f"/workspace/{repository(repo ^ 1)}" for repo in repos])
    issues = rng.integers(0, 3_000, CONVERSATIONS).tolist()
    branches = ["main" if issue < 600 else f"{WORDS[issue % 90]}/issue-{issue}" for issue in issues]
    is_known = np.array([client.is_conversation_known for client in clients])
    remotes = [f"https://git.example.com/acme/{name}.git" for name in names]
    prompts = join("You are a coding agent. Work in ", roots, ", and run the tests before you say that you are done.")
    columns = {
        "session_id": uuids(rng, CONVERSATIONS),
        "conversation_id": _null_unless(is_known, hex_ids(rng, CONVERSATIONS, 24, "conv_")),
        "gateway_id": _take_rows(GATEWAYS, users % len(GATEWAYS)),
        "user_id": pa.array([f"user-{user:03}" for user in users]),
        "provider": pa.array([client.provider for client in clients]),
        "model": pa.array([client.model for client in clients]),
        "small_model": pa.array([client.small_model for client in clients]),
        "client_name": pa.array([client.name for client in clients]),
        "client_version": pa.array([f"1.{issue % 3}.{issue % 70}" for issue in issues]),
        "cwd": roots,
        "git_branch": _null_unless(in_repo, pa.array(branches)),
        "git_remote": _null_unless(in_repo, pa.array(remotes)),
        "repo_root": _null_unless(in_repo, roots),
        "head_sha": _null_unless(in_repo, hex_ids(rng, CONVERSATIONS, 40)),
        "system_text": _null_unless(rng.random(CONVERSATIONS) < 0.9, prompts),
    }
    return columns, roots, pc.if_else(pa.array(in_repo), siblings, scratch)


def _draw_times(rng: np.random.Generator, rows: Turns) -> Columns:
    """Each conversation starts in the working hours of a day; a few pause for a night."""
    days = rng.choice(DAYS, CONVERSATIONS, p=_BUSY / _BUSY.sum())
    begin = ((days + rng.uniform(0.3, 0.8, CONVERSATIONS)) * _DAY_US).astype(np.int64)
    pauses = rng.lognormal(2, 1.4, rows.messages) * 1e6 + (rng.random(rows.messages) < 0.004) * 0.6 * _DAY_US
    clock = np.cumsum(pauses)
    first = np.searchsorted(rows.conversation, np.arange(CONVERSATIONS))
    last = np.append(first[1:], BLOCK_ROWS) - 1
    opened = clock[rows.message[first]]
    # Conversations of the last days run faster, so that none goes on after the last day.
    pace = np.minimum(1, (DAYS * _DAY_US - begin - 1) / (clock[rows.message[last]] - opened + 1))
    elapsed = (clock[rows.message] - opened[rows.conversation]) * pace[rows.conversation]
    started = (int(FIRST_DAY.timestamp()) * 1_000_000 + begin)[rows.conversation]
    created = pa.array(started + elapsed.astype(np.int64)).cast(_TIME)
    return {
        "conversation_started_at": pa.array(started).cast(_TIME),
        "message_created_at": created,
        "date": created.cast(pa.date32()),
    }


def _draw_tool_columns(rng: np.random.Generator, rows: Turns, roots: pa.Array, sibling_roots: pa.Array) -> Columns:
    """Draw the calls: a conversation uses neighbouring files, rarely of the sibling repository."""
    calls = 2 * rows.turns
    is_call = rows.kind == turns.TOOL_CALL
    is_tool = is_call | (rows.kind == turns.TOOL_RESULT)
    tool = np.minimum(rng.geometric(0.35, calls) - 1, len(TOOLS) - 1)[rows.call]
    focus = rng.integers(0, len(FILES), CONVERSATIONS)[rows.conversation]
    file = (focus + rng.geometric(0.15, calls)[rows.call]) % len(FILES)
    is_elsewhere = pa.array((rng.random(calls) < 0.02)[rows.call])
    root = pc.if_else(is_elsewhere, _take_rows(sibling_roots, rows.conversation), _take_rows(roots, rows.conversation))
    before, after = (_take_rows([getattr(each, name) for each in TOOLS], tool) for name in ("before", "after"))
    return {
        "tool_name": _null_unless(is_tool, _take_rows([each.name for each in TOOLS], tool)),
        "tool_call_id": _null_unless(is_tool, _take_rows(hex_ids(rng, calls, 24, "call_"), rows.call)),
        "tool_args": _null_unless(is_call, join(before, root, "/", _take_rows(FILES, file), after)),
    }


def _draw_json_columns(rng: np.random.Generator, rows: Turns, is_error: Array) -> Columns:
    states = _take_rows(["ok", "error"], is_error.astype(np.int64))
    took_ms = rng.lognormal(6, 1.5, BLOCK_ROWS).astype(np.int64)
    trace_ids = _take_rows(hex_ids(rng, rows.turns + 1, 32), rows.request)
    reasons = _take_rows(["end_turn", "tool_use"], (rows.kind == turns.TOOL_CALL).astype(np.int64))
    usage = join(
        ',"stop_reason":"',
        reasons,
        '","usage":{"input_tokens":',
        rng.integers(5, 900, BLOCK_ROWS),
        ',"cache_read_input_tokens":',
        9_000 + 420 * rows.message_index,
        ',"output_tokens":',
        rng.lognormal(5, 1.2, BLOCK_ROWS).astype(np.int64) + 1,
        "}}",
    )
    ends_response = pa.array((rows.role == turns.ASSISTANT) & rows.is_last_part)
    ending = pc.if_else(ends_response, usage, "}")
    return {
        "status": _null_unless(
            is_error | (rows.kind == turns.TOOL_RESULT),
            join('{"state":"', states, '","duration_ms":', took_ms, "}"),
        ),
        "attributes": join('{"trace_id":"', trace_ids, '","attempt":1', ending),
    }


def _take_rows(values: Any, rows: Array) -> pa.Array:
    return pa.array(values).take(pa.array(rows))


def _null_unless(mask: Array, values: pa.Array) -> pa.Array:
    return pc.if_else(pa.array(mask), values, pa.scalar(None, values.type))
