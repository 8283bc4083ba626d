"""The made-up conversations: repeatable row by row, shaped like recorded ones, and made in bounded memory."""

import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.demo.blocks import DAYS, FIRST_DAY
from strandline.demo.messages import CLUSTER_BY, EDGES, KEY, SCHEMA, edges, messages, revisions, write_jsonl
from strandline.demo.turns import BLOCK_ROWS

SOURCE = Path(__file__).parents[1] / "src"
JSON_COLUMNS = ["tools", "tool_args", "status", "attributes"]


def table(**options: int) -> pa.Table:
    return pa.Table.from_batches(messages(**options), SCHEMA).combine_chunks()


@pytest.fixture(scope="module")
def many() -> pa.Table:
    """Rows of six blocks, the last one cut short, perhaps within a message."""
    return table(rows=5 * BLOCK_ROWS + 1_000, tools_bytes=600)


def by_session(rows: pa.Table, name: str) -> dict[str, set[str]]:
    found = defaultdict(set)
    for session, value in zip(rows["session_id"].to_pylist(), rows[name].to_pylist(), strict=True):
        found[session].add(value)
    return found


def in_process(code: str, *arguments: object) -> str:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def test_schema_names_the_key_and_the_cluster_columns() -> None:
    assert len(SCHEMA.names) == len(set(SCHEMA.names)) == 34
    assert all(not SCHEMA.field(name).nullable for name in KEY + CLUSTER_BY)


def test_the_same_seed_makes_the_same_rows_and_another_seed_others() -> None:
    assert table(rows=700, seed=3).equals(table(rows=700, seed=3))
    assert not set(table(rows=700, seed=3)["part_id"].to_pylist()) & set(table(rows=700, seed=4)["part_id"].to_pylist())


def test_another_process_makes_the_same_rows(tmp_path: Path) -> None:
    code = (
        "import sys; from strandline.demo.messages import messages, write_jsonl;"
        "write_jsonl(messages(rows=400, seed=9, start=8600), sys.argv[1])"
    )
    in_process(code, tmp_path / "theirs.jsonl")
    write_jsonl(messages(rows=400, seed=9, start=8600), tmp_path / "ours.jsonl")
    assert (tmp_path / "theirs.jsonl").read_bytes() == (tmp_path / "ours.jsonl").read_bytes()


@settings(max_examples=15, deadline=None)
@given(
    start=st.integers(0, 3 * BLOCK_ROWS),
    rows=st.integers(0, 2 * BLOCK_ROWS),
    batch_rows=st.integers(50, 2 * BLOCK_ROWS),
)
def test_any_range_in_any_batches_is_a_slice_of_the_whole(
    many: pa.Table, start: int, rows: int, batch_rows: int
) -> None:
    rows = min(rows, many.num_rows - start)
    batches = list(messages(rows=rows, start=start, batch_rows=batch_rows, tools_bytes=600))
    assert [batch.num_rows for batch in batches[:-1]] == [batch_rows] * len(batches[:-1])
    assert pa.Table.from_batches(batches, SCHEMA).equals(many.slice(start, rows))


def test_one_row_batches_make_the_same_rows() -> None:
    assert table(rows=30, start=BLOCK_ROWS - 15, batch_rows=1).equals(table(rows=30, start=BLOCK_ROWS - 15))


def test_a_far_ordinal_needs_no_rows_before_it() -> None:
    assert table(rows=10, start=10**12).num_rows == 10


def test_sizes_of_texts_and_tools_alter_no_other_column() -> None:
    small, large = table(rows=2_000, tools_bytes=0, tail_bytes=0), table(rows=2_000)
    assert small.drop(["tools", "content_text"]).equals(large.drop(["tools", "content_text"]))
    assert set(small["content_text"].to_pylist()) == {None, ""}


def test_batches_of_large_rows_are_cut_short() -> None:
    batches = list(messages(rows=1_200, tools_bytes=128_000))
    assert sum(batch.num_rows for batch in batches) == 1_200
    assert max(batch.nbytes for batch in batches) < 100 << 20


def test_rows_fit_the_schema_and_lack_nothing_that_is_required(many: pa.Table) -> None:
    many.validate(full=True)
    assert many.schema == SCHEMA
    assert {
        field.name: many[field.name].null_count
        for field in SCHEMA
        if not field.nullable and many[field.name].null_count
    } == {}


def test_keys_are_unique_and_made_of_message_and_part(many: pa.Table) -> None:
    assert pc.count_distinct(many["part_id"]).as_py() == many.num_rows
    expected = pc.binary_join_element_wise(many["message_id"], many["part_index"].cast(pa.string()), "#")
    assert many["part_id"].equals(expected)


def test_json_columns_hold_json(many: pa.Table) -> None:
    for name in JSON_COLUMNS:
        for text in set(many[name].to_pylist()) - {None}:
            json.loads(text)


def test_tools_are_constant_in_a_conversation_and_of_the_size_asked_for() -> None:
    for tools_bytes in (200, 2_000, 30_000):
        tools = by_session(table(rows=3_000, tools_bytes=tools_bytes), "tools")
        assert all(len(distinct) == 1 for distinct in tools.values())
        texts = [text for (text,) in tools.values()]
        assert len(set(texts)) == len(texts)
        for text in texts:
            assert abs(len(text.encode()) - tools_bytes) < 0.05 * tools_bytes
            assert all({"name", "description", "input_schema"} == set(tool) for tool in json.loads(text))


def test_conversations_differ_in_length_and_average_136_rows(many: pa.Table) -> None:
    sizes = sorted(Counter(many.slice(0, 5 * BLOCK_ROWS)["session_id"].to_pylist()).values())
    assert sum(sizes) / len(sizes) == 136
    assert sizes[0] < 30 and sizes[-1] > 500


def test_conversations_keep_to_the_days_and_sources(many: pa.Table) -> None:
    days = {(day - FIRST_DAY.date()).days for day in many["date"].to_pylist()}
    assert min(days) >= 0 and max(days) < DAYS and len(days) > 50
    assert pc.count_distinct(many["gateway_id"]).as_py() == 3
    assert many["date"].equals(many["message_created_at"].cast(pa.date32()))
    assert any(len(dates) > 1 for dates in by_session(many, "date").values())
    assert pc.all(pc.greater_equal(many["message_created_at"], many["conversation_started_at"])).as_py()


def test_messages_of_a_conversation_follow_each_other(many: pa.Table) -> None:
    names = ["session_id", "message_index", "part_index", "message_created_at"]
    previous: dict[str, Any] | None = None
    for row in many.select(names).to_pylist():
        if previous is None or row["session_id"] != previous["session_id"]:
            assert (row["message_index"], row["part_index"]) == (0, 0)
        elif row["part_index"]:
            assert row == {**previous, "part_index": previous["part_index"] + 1}
        else:
            assert row["message_index"] == previous["message_index"] + 1
            assert row["message_created_at"] >= previous["message_created_at"]
        previous = row


def test_each_tool_result_answers_one_call_of_its_conversation(many: pa.Table) -> None:
    rows = many.select(["session_id", "part_type", "tool_name", "tool_call_id", "tool_args"]).to_pylist()
    calls, results = (
        {(row["session_id"], row["tool_call_id"], row["tool_name"]) for row in rows if row["part_type"] == kind}
        for kind in ("tool_call", "tool_result")
    )
    kinds = Counter(row["part_type"] for row in rows)
    assert set(kinds) == {"text", "reasoning", "tool_call", "tool_result", "image", "error"}
    assert (len(calls), len(results)) == (kinds["tool_call"], kinds["tool_result"])
    assert results <= calls and len(results) > 0.95 * len(calls)
    assert all((row["tool_args"] is not None) == (row["part_type"] == "tool_call") for row in rows)


def test_token_usage_stands_on_the_last_part_of_each_response(many: pa.Table) -> None:
    last: dict[str, tuple[str | None, dict[str, int] | None]] = {}
    whole = many.slice(0, 5 * BLOCK_ROWS)
    for row in whole.select(["message_id", "role", "attributes"]).to_pylist():
        usage = json.loads(row["attributes"]).get("usage")
        assert last.get(row["message_id"], (None, None))[1] is None
        last[row["message_id"]] = row["role"], usage
    assert all((usage is not None) == (role == "assistant") for role, usage in last.values())


@pytest.mark.parametrize(("tail_bytes", "held"), [(20_000, 0.85), (500_000, 0.98)])
def test_a_few_rows_hold_nearly_all_text(tail_bytes: int, held: float) -> None:
    rows = table(rows=5_000, tools_bytes=0, tail_bytes=tail_bytes)
    sizes = sorted(pc.fill_null(pc.binary_length(rows["content_text"]), 0).to_pylist(), reverse=True)
    assert sum(sizes[: len(sizes) // 25]) > held * sum(sizes)
    assert 0.8 * tail_bytes < sizes[0] <= tail_bytes


def test_revisions_replace_exactly_the_provisional_rows() -> None:
    rows = table(rows=20_000, start=500)
    found = list(revisions(rows=20_000, start=500, batch_rows=3_000))
    deletes = pa.Table.from_batches(revision.deletes for revision in found)
    upserts = pa.Table.from_batches((revision.upserts for revision in found), SCHEMA)
    provisional = rows.filter(pc.equal(pc.binary_length(rows["message_id"]), 16))

    assert deletes.schema.names == KEY
    assert deletes["part_id"].to_pylist() == provisional["part_id"].to_pylist()
    assert upserts.drop(["message_id", "part_id"]).equals(provisional.drop(["message_id", "part_id"]))
    assert upserts["part_id"].equals(
        pc.binary_join_element_wise(upserts["message_id"], upserts["part_index"].cast(pa.string()), "#")
    )
    assert not set(upserts["part_id"].to_pylist()) & set(rows["part_id"].to_pylist())
    assert all(re.fullmatch("[0-9a-f]{16}", value) for value in provisional["message_id"].to_pylist())
    assert set(pc.binary_length(upserts["message_id"]).to_pylist()) == {36}
    assert 0.03 < len(provisional) / len(rows) < 0.07


def test_parents_are_the_final_ids_of_the_message_before() -> None:
    rows = table(rows=3_000, share=0)
    previous: dict[str, str] = {}
    for session, message, parent in zip(
        *(rows[name].to_pylist() for name in ("session_id", "message_id", "parent_uuid")), strict=True
    ):
        if previous.get(session) != message:
            assert parent == previous.get(session)
        previous[session] = message
    assert rows["parent_uuid"].equals(table(rows=3_000, share=1)["parent_uuid"])


def test_no_share_leaves_nothing_to_revise_and_a_full_share_everything() -> None:
    assert list(revisions(rows=2_000, share=0)) == []
    assert sum(revision.deletes.num_rows for revision in revisions(rows=2_000, share=1)) == 2_000


def test_edges_are_distinct_and_name_what_sessions_touched() -> None:
    rows = table(rows=12_000)
    found = pa.Table.from_batches(edges(messages(rows=12_000, batch_rows=700)), EDGES)
    listed = [tuple(row.values()) for row in found.to_pylist()]
    expected = set()
    for row in rows.to_pylist():
        session = f"session:{row['session_id']}"
        expected.add((session, f"model:{row['model']}", "ran"))
        if row["git_remote"]:
            expected.add((session, f"repo:{row['git_remote']}", "in"))
        if row["tool_name"]:
            expected.add((session, f"tool:{row['tool_name']}", "used"))
        if path := json.loads(row["tool_args"] or "{}").get("file_path"):
            expected.add((session, f"file:{path}", "touched"))
    assert found.schema == EDGES
    assert len(listed) == len(set(listed))
    assert set(listed) == expected
    assert {kind for _, _, kind in listed} == {"touched", "in", "used", "ran"}


def test_json_lines_hold_every_row(tmp_path: Path) -> None:
    path = tmp_path / "messages.jsonl"
    rows = table(rows=300)
    assert write_jsonl(rows.to_batches(max_chunksize=70), path) == 300
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 300
    for line, row in zip(lines, rows.to_pylist(), strict=True):
        read = json.loads(line)
        assert read["message_created_at"].endswith("Z")
        for name in ("message_created_at", "conversation_started_at"):
            read[name] = datetime.fromisoformat(read[name])
        read["date"] = date.fromisoformat(read["date"])
        for name in ("tools", "tool_args", "status", "attributes"):
            row[name] = None if row[name] is None else json.loads(row[name])
        assert read == row


def test_memory_does_not_grow_with_the_number_of_rows() -> None:
    code = """
import resource, sys
from strandline.demo.messages import messages
peaks = []
for at, batch in enumerate(messages(rows=200_000)):
    if at in (9, 39):
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(*peaks)
"""
    unit = 1 if sys.platform == "darwin" else 1_024
    early, late = (int(peak) * unit for peak in in_process(code).split())
    assert late - early < 100 << 20
