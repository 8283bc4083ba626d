"""A lake with checkpoints in the middle of log and baseline, whole or cleaned.

A test module takes the fixtures that it needs by assignment, as in `whole = gaps.whole`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import strandline as sl
from strandline.jobs.doctor import Finding, examine
from strandline.storage import delta as deltas
from strandline.storage.open import LocalStorage
from support import ITEMS

NOW = {"keep": 0, "grace": 0}


def _lake(root: Path, *, is_cleaned: bool) -> Path:
    """A lake with checkpoints in the middle of log and baseline: log 4 and 7 of 8, baseline 2 and 5."""
    table = sl.Lake(root).create_table("items", ITEMS, key=["id"], vnodes=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deltas, "RESTED_S", -1.0)
        for at in range(8):
            table.upsert([{"id": at, "name": f"n{at}"}])
            if at in (1, 3, 5, 6):
                table.compact(full=True)
            if at in (3, 6):
                table.log.delta.checkpoint()
                table.baseline.delta.checkpoint()
            if at == 3 and is_cleaned:
                table.vacuum(**NOW)
                table.vacuum(**NOW)
    assert table.log.delta.chain.commits.exists(0) is not is_cleaned
    return root


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _lake(tmp_path_factory.mktemp("gaps"), is_cleaned=False)


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _lake(tmp_path_factory.mktemp("cleaned"), is_cleaned=True)


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "lake"))


def delta_log(root: Path, part: str) -> Path:
    return next((root / "tables" / "items").iterdir()) / part / "_delta_log"


def wrong(root: Path, *, repair: bool = False) -> list[Finding]:
    found = examine(LocalStorage(str(root)), repair=repair).findings
    return [finding for finding in found if finding.severity == "wrong" and not finding.is_repaired]
