"""Which vnodes are due, and why."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from folding import due, keys_in, put
from support import data_files


def test_a_vnode_is_due_when_its_changes_are_many_against_its_rows(folded):
    put(folded, keys_in(1, 8))
    version = folded.baseline.refresh().version
    assert due(folded) == []
    assert (folded.compact().vnodes, folded.baseline.refresh().version) == (0, version)
    put(folded, keys_in(1, 1))
    assert due(folded) == [1]
    before = {file.path: file.partition["_vnode"] for file in folded.baseline.refresh().files()}
    report = folded.compact()
    assert (report.vnodes, report.rows, report.files, report.removed_files) == (1, 40, 1, 1)
    after = folded.baseline.refresh()
    assert [before[path] for path in before.keys() - after.snapshot.files.keys()] == ["1"]
    assert after.marks == (3,) * 4, "the marks of vnodes without changes move for free"
    assert folded.compact().vnodes == 0
    assert folded.baseline.refresh().version == version + 1


def test_the_ratio_can_be_set(folded):
    folded.configure(compact_ratio=0.05)
    put(folded, keys_in(2, 3))
    assert due(folded) == [2]
    folded.configure(compact_ratio=2)
    put(folded, keys_in(2, 40))
    assert due(folded) == []
    assert due(folded, full=True) == [2]


def test_a_vnode_is_due_when_its_changes_are_old(folded):
    put(folded, keys_in(0, 1))
    now = dt.datetime.now(dt.UTC)
    assert due(folded, now=now + dt.timedelta(days=6.9)) == []
    assert due(folded, now=now + dt.timedelta(days=7.1)) == [0]
    folded.configure(compact_age="1h")
    assert due(folded, now=now + dt.timedelta(minutes=59)) == []
    assert due(folded, now=now + dt.timedelta(minutes=61)) == [0]


def test_the_neediest_vnode_comes_first(folded):
    for vnode, count in ((0, 12), (1, 30), (2, 1), (3, 20)):
        put(folded, keys_in(vnode, count))
    assert due(folded) == [1, 3, 0]
    plan = folded.plan_compaction()
    assert [need.rows for need in plan.due] == [30, 20, 12]
    assert plan.waiting_rows == 63
    assert [need.vnode for need in folded.plan_compaction(full=True).due] == [1, 3, 0, 2]


def test_a_plan_reads_no_data_file(folded, lake):
    put(folded, keys_in(1, 20))
    for path in data_files(folded):
        (Path(lake.storage.uri) / folded.entry.folder / path).unlink()
    assert due(folded) == [1]
