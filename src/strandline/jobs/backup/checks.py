"""The two sides of a copy: which place can be a source, and which a target of it.

Looked at before anything is written. After a crash the target of a first copy has no catalog; it is known as such by
holding only files of tables that the source has had.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from strandline.errors import Invalid, NotFound
from strandline.jobs.backup.refusal import not_a_copy
from strandline.jobs.backup.run import Run
from strandline.storage.commits import CommitLog
from strandline.storage.open import Storage, open_storage
from strandline.tables.catalog import COPYING, FOLDER, Catalog, CatalogState

_ENTRY = re.compile(rf"{FOLDER}/\d{{20}}\.json\Z")
# The store's own: what opening a lake proves itself with, the claims of processes at work, and of this copy.
_PASSING = ("_check/", "pins/", COPYING)


def opened(uri: str | os.PathLike[str], options: Mapping[str, str] | None) -> Storage:
    """A side of the copy; S3 settings are for the side that is on S3."""
    address = os.fspath(uri)
    return open_storage(address, options if address.startswith("s3://") else None)


def existing(state: CatalogState, storage: Storage) -> CatalogState:
    if not state.exists:
        raise NotFound(f"no lake at {storage.uri}", path=storage.uri)
    return state


def refuse_overlap(source: Storage, target: Storage) -> None:
    (store, origin), (other, copy) = _place(source), _place(target)
    if store == other and (copy.startswith(origin) or origin.startswith(copy)):
        raise Invalid(
            f"{target.uri} and {source.uri} lie in each other; nothing was copied",
            hint="Choose a target outside the lake.",
            path=target.uri,
        )


def _place(storage: Storage) -> tuple[str, str]:
    """The store and the place in it, in a form that tells whether one place is inside another."""
    root = os.path.realpath(storage.uri) if storage.is_local else storage.uri
    return storage.delta_options.get("aws_endpoint", ""), f"{root.rstrip('/')}/"


def visible_generations(run: Run, state: CatalogState) -> set[str]:
    """The generations that the target shows as tables; refuses a target that is no copy of this lake."""
    theirs = Catalog(run.target).refresh()
    if not theirs.exists:
        _refuse_strangers(run, state)
    elif theirs.lake_id != state.lake_id:
        raise not_a_copy(run.target, f"another lake, {theirs.lake_id}", run.target.uri)
    run.each(run.read_same, [info.path for info in run.target.list(FOLDER) if _ENTRY.match(info.path)])
    return {entry.generation for entry in theirs.tables.values()}


def _refuse_strangers(run: Run, state: CatalogState) -> None:
    """Without a catalog the target holds only what an unfinished copy left: files of tables that this lake has had."""
    catalog = CommitLog(run.source, FOLDER)
    entries = run.each(catalog.read, range(state.version + 1))
    created = [entry.actions[0] for entry in entries if entry is not None and "create" in entry.actions[0]]
    folders = tuple(f"{action['folder']}/" for action in created)
    for info in run.target.list(""):
        if not (info.path.startswith((*folders, *_PASSING)) or _ENTRY.match(info.path)):
            raise not_a_copy(run.target, f"files and no copy of this lake, such as {info.path}", info.path)
