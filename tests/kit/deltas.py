"""A Delta table of one's own in a folder, and the smallest commits to it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from deltalake import DeltaTable

from strandline.model import types as schemas
from strandline.storage.delta import DeltaLog
from strandline.storage.local import LocalStorage
from strandline.storage.snapshot import DataFile, Draft, new_metadata, protocol
from support import ITEMS


def new_log(storage: LocalStorage) -> DeltaLog:
    """An empty Delta table in the folder `t`."""
    metadata = new_metadata("t", schemas.delta_json(ITEMS), [], {"delta.enableExpiredLogCleanup": "false"})
    return DeltaLog.create(storage, "t", Draft(metadata=metadata, protocol=protocol(with_ntz=False)))


def file(name: str) -> DataFile:
    """What a commit says of a file of one row."""
    known = {"path": name, "size": 10, "partition": {}, "stats_text": json.dumps({"numRecords": 1})}
    known |= {"pack": None, "within": None}
    return DataFile(**{field.name: known.get(field.name, 0) for field in dataclasses.fields(DataFile)})


def add(log: DeltaLog, *names: str, **txns: int) -> object:
    """Commit files of these names, and wait for the checkpoint if the commit began one."""
    landed = log.commit("WRITE", lambda snapshot, now: Draft(add=[file(name) for name in names], txns=txns))
    log.await_checkpoint()
    return landed


def table_at(place: str | Path, **options: object) -> DeltaTable:
    return DeltaTable(str(place), **options)
