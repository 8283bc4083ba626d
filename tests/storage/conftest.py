"""A folder, and a Delta table in it."""

from pathlib import Path

import pytest

from deltas import new_log
from strandline.storage.delta import DeltaLog
from strandline.storage.local import LocalStorage


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path))


@pytest.fixture
def log(storage: LocalStorage) -> DeltaLog:
    return new_log(storage)
