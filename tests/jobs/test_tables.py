"""The examination of a table: its parts, and that they fit together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import examined
import strandline as sl
from examined import live_file, wrong
from strandline.jobs.doctor import Report
from strandline.storage.snapshot import Draft
from support import rewrite_commits

folder = examined.folder
check = examined.check


def test_a_row_count_that_is_not_the_commits_is_found(folder: Path, check: Callable[..., Report]) -> None:
    file = live_file(folder, "baseline")

    def one_more(action: dict[str, Any]) -> None:
        if action.get("add", {}).get("path") == file.name:
            stats = json.loads(action["add"]["stats"])
            action["add"]["stats"] = json.dumps({**stats, "numRecords": stats["numRecords"] + 1})

    rewrite_commits(file.parent / "_delta_log", one_more)
    assert any("rows; its commit says" in what for _, what in wrong(check()))


def test_marks_past_the_head_are_found(folder: Path, lake: sl.Lake, check: Callable[..., Report]) -> None:
    lake.table("items").baseline.delta.commit("TEST", lambda s, now: Draft(txns={"fold/0": 99}))
    assert any("compacted up to 99" in what for _, what in wrong(check()))


def test_a_seq_that_is_not_its_commits_version_is_found(folder: Path, check: Callable[..., Report]) -> None:
    def move(action: dict[str, Any]) -> None:
        if action.get("add", {}).get("partitionValues") == {"_seq": "1"}:
            action["add"]["partitionValues"] = {"_seq": "7"}

    rewrite_commits(folder / "log/_delta_log", move)
    assert any("with seq 7" in what for _, what in wrong(check()))
