"""Why a copy is refused or fails: the errors that more than one step of it raises.

Each is raised before the file that it names counts in the target. Files that were copied before stay, as after a crash.
"""

from __future__ import annotations

from strandline.errors import Conflict, Corrupt, Invalid
from strandline.storage.open import Storage


def not_a_copy(target: Storage, what: str, path: str) -> Invalid:
    return Invalid(
        f"{target.uri} holds {what}; nothing was copied",
        hint="Choose a target that is empty, or that holds a copy of this lake.",
        path=path,
    )


def diverged(target: Storage, path: str) -> Conflict:
    return Conflict(
        f"{target.url(path)} differs from the source: one of the two lakes was written to separately",
        hint="Choose a target that is empty, or that holds an unchanged copy of this lake.",
        path=path,
    )


def cleaned(source: Storage, path: str) -> Conflict:
    return Conflict(
        f"{source.url(path)} was deleted while the lake was copied",
        hint="Run the copy again: it keeps the files that the target already has.",
        path=path,
    )


def corrupt(storage: Storage, path: str, table: str, what: str) -> Corrupt:
    return Corrupt(
        f"{storage.url(path)} {what}; this state of the table was not copied",
        hint=f"Examine the lake: strandline --lake {storage.uri} doctor --deep",
        table=table,
        path=path,
    )
