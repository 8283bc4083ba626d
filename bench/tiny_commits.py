"""Part of the benchmark `compact`: a large table that gets many tiny commits, with ticks in between.

`tiny_commits_amp` is what was written in all, of data files, commit files and checkpoints, against what the commits
themselves wrote. `files_per_read` is how many files a read of the whole table opens at the end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import common
import peers
from common import Samples, ratio, say, significant

TINY_ROWS = 10
TICK_EVERY = 100
NEW_SHARE = 0.5


def measure_tiny_commits(rows: int, commits: int, folder: Path) -> dict[str, Any]:
    import strandline

    base = common.base_rows(rows)
    expected = common.Expected(base)
    lake = strandline.Lake(str(folder))
    table = lake.create_table("t", base.schema, key=["id"], vnodes=16)
    table.upsert(base)
    table.compact(full=True)
    before, first = common.file_sizes(folder), table.head
    batches = common.Batches(rows, new_share=NEW_SHARE)
    commit_s, tick_s, most_files = Samples(), Samples(), 0
    for at in range(commits):
        batch = batches.make(TINY_ROWS)
        expected.apply(batch)
        begin = time.perf_counter()
        table.upsert(batch)
        commit_s.add(time.perf_counter() - begin)
        if (at + 1) % TICK_EVERY == 0:
            most_files = max(most_files, files_of(table))
            begin = time.perf_counter()
            lake.tick()
            tick_s.add(time.perf_counter() - begin)
            if (at + 1) % (10 * TICK_EVERY) == 0:
                say(f"{at + 1:,} of {commits:,} tiny commits: {files_of(table)} files")
    table.log.delta.await_checkpoint()
    expected.check("strandline", *peers.count_and_sum(table.to_arrow()))
    written = common.bytes_written(before, common.file_sizes(folder))
    own = commit_bytes(table, first)
    ordered = sorted(commit_s.seconds)
    return {
        "commits": commits,
        "written_mb": significant(written / 1e6),
        "commits_mb": significant(own / 1e6),
        "amp": ratio(written, own),
        "files_per_read": files_of(table),
        "most_files": most_files,
        "log_files": len(table.log.refresh().by_seq),
        "commit_p50_ms": significant(commit_s.median * 1000),
        "commit_p99_ms": significant(ordered[int(len(ordered) * 0.99)] * 1000),
        "commit_max_ms": significant(ordered[-1] * 1000),
        "tick_ms": significant(tick_s.median * 1000),
    }


def files_of(table: Any) -> int:
    """How many files a read of the whole table opens."""
    merge = table.merge()
    return len(merge.base_files()) + len(merge.log_files())


def commit_bytes(table: Any, first: int) -> int:
    """The commit files of the upserts after `first`, and the data files that they added."""
    folder = Path(table.log.storage.uri) / table.log.folder / "_delta_log"
    total = 0
    for path in sorted(folder.glob("*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        if int(path.stem) > first and actions[0]["commitInfo"]["operation"] == "UPSERT":
            total += path.stat().st_size + sum(action["add"]["size"] for action in actions if "add" in action)
    return total
