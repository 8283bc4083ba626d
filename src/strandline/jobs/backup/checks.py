"""The two sides of a copy: which place can be the source, and which its target.

All checks run before anything is written. After a crash the target of a first copy has no catalog. It is recognised
because all its files belong to tables of the source.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from strandline.errors import Invalid, NotFound
from strandline.jobs.backup.refusal import not_a_copy
from strandline.jobs.backup.run import CopyRun
from strandline.jobs.backup.saved_state import PARTS, RESTORING
from strandline.storage.commits import CommitLog
from strandline.storage.open import Storage, open_storage, to_address
from strandline.tables.catalog import COPYING, FOLDER, Catalog, CatalogState

_ENTRY = re.compile(rf"{FOLDER}/\d{{20}}\.json\Z")
# Files that may be there for a moment: checks of the store, pins, and the mark of a copy.
_PASSING = ("_check/", "pins/", COPYING)


def open_side(uri: str | os.PathLike[str], options: Mapping[str, str] | None) -> Storage:
    """Open one side of the copy; `options` are for a side on S3."""
    address = to_address(uri)
    return open_storage(address, options if address.startswith("s3://") else None)


def check_exists(state: CatalogState, storage: Storage) -> CatalogState:
    if not state.exists:
        raise NotFound(f"no lake at {storage.uri}", path=storage.uri)
    return state


def refuse_overlap(source: Storage, target: Storage) -> None:
    (store, origin), (other, copy) = _place(source), _place(target)
    if store == other and (copy.startswith(origin) or origin.startswith(copy)):
        raise Invalid(
            f"{target.uri} and {source.uri} are the same place, or one is inside the other; nothing was copied",
            hint="Choose a target outside the lake.",
            path=target.uri,
        )


def _place(storage: Storage) -> tuple[str, str]:
    """The store, and the place in it as a text that begins with the text of every place around it."""
    root = os.path.realpath(storage.uri) if storage.is_local else storage.uri
    return storage.delta_options.get("aws_endpoint", ""), f"{root.rstrip('/')}/"


def visible_generations(run: CopyRun, state: CatalogState) -> set[str]:
    """The generations in the target's catalog; refuses a target that is no copy of this lake."""
    theirs = Catalog(run.target).refresh()
    if not theirs.exists:
        _refuse_strangers(run, state)
    elif theirs.lake_id != state.lake_id:
        raise not_a_copy(run.target, f"another lake, {theirs.lake_id}", run.target.uri)
    run.each(run.read_same, [info.path for info in run.target.list(FOLDER) if _ENTRY.match(info.path)])
    return {entry.generation for entry in theirs.tables.values()}


def _refuse_strangers(run: CopyRun, state: CatalogState) -> None:
    """A target without a catalog may only have files of an unfinished copy: of tables that this lake has or had."""
    catalog = CommitLog(run.source, FOLDER)
    entries = run.each(catalog.read, range(state.version + 1))
    created = [entry.actions[0] for entry in entries if entry is not None and "create" in entry.actions[0]]
    folders = tuple(f"{action['folder']}/" for action in created)
    passing = (*_PASSING, *(PARTS if run.target.exists(RESTORING) else ()))
    for info in run.target.list(""):
        if not (info.path.startswith((*folders, *passing)) or _ENTRY.match(info.path)):
            raise not_a_copy(run.target, f"files that are no copy of this lake, such as {info.path}", info.path)
