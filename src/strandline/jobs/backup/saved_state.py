"""The state beside a backup: one file, `state-backup.json`, which a restore makes a state of again.

It is no state by itself: a tick of the backup has no sinks, so the copy sends nothing. A restored state is fenced when
it has sinks: the original may still run, and destinations may have newer rows than the backup. Nothing is sent until
`doctor --adopt-state` has asked every destination how far it has come.

The state is read before the tables are. So no mark in the file is ahead of the tables of the copy.

After a crash: a restore writes the state before the catalog makes the target a lake. The file `restoring` says that an
unfinished state there may be replaced.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strandline.consumers.context import Context
from strandline.errors import Corrupt, StrandlineError
from strandline.model.secret import GIVEN
from strandline.state.dump import check_free, dump_state, load_state
from strandline.state.epoch import Epoch
from strandline.state.state import open_database
from strandline.storage.open import Storage

FILE = "state-backup.json"
RESTORING = "restoring"
"""The mark of an unfinished restore, and the files that a state puts beside it."""
PARTS = (RESTORING, "state.db", "state.json")
_SECRETS = "the secrets of sinks: only their places (env:NAME, file:PATH) are kept"
_PAST = "the receipts of earlier ticks"


@dataclass(frozen=True)
class SavedState:
    """What a copy took of the state, in numbers; `left_out` says in words what it did not take, and why. A restored
    state with sinks `is_fenced`."""

    sinks: int = 0
    marks: int = 0
    letters: int = 0
    tokens: int = 0
    left_out: tuple[str, ...] = ()
    is_fenced: bool = False


def read_state(lake: Context) -> tuple[SavedState, dict[str, Any] | None]:
    """The state of a lake for a backup; None when there is none, or it cannot be read."""
    if not lake.has_state:
        return SavedState(), None
    try:
        lake.state.epoch.check()
        facts = dump_state(lake.state.database)
    except StrandlineError as error:
        return SavedState(left_out=(f"sinks, marks and tokens: {error.message}",)), None
    return _count(facts), facts


def write_state(target: Storage, facts: Mapping[str, Any]) -> None:
    """Put the state beside a backup. On a local disk only its owner can read it, like a state."""
    data = json.dumps(facts, ensure_ascii=False).encode()
    if not target.is_local:
        with target.output(FILE) as stream:
            stream.write(data)
        return
    path = target.url(FILE)
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        target.delete([os.path.basename(temporary)])
        raise


def find_saved(source: Storage) -> dict[str, Any] | None:
    """The state beside a backup."""
    try:
        found = json.loads(source.read(FILE))
        if not isinstance(found, dict) or not {"format", "lake_id", "pending", "tables"} <= found.keys():
            raise ValueError("it is no state of a backup")
        return found
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise Corrupt(
            f"{source.url(FILE)} cannot be read: {error}",
            hint="Restore another backup, or move that file away: then the lake comes back without its sinks.",
            path=FILE,
        ) from error


def check_database(target: Storage, state: str | os.PathLike[str] | None) -> None:
    """`Conflict` when the database for a restored state is in use; nothing was copied yet."""
    if state is not None:
        with open_database(target, state) as database:
            check_free(database)


def restore_state(target: Storage, facts: Mapping[str, Any], state: str | os.PathLike[str] | None) -> SavedState:
    """Make a state of a saved one, before its lake is complete. A lake in a bucket needs the address of a database."""
    if state is None and not target.is_local:
        return SavedState(left_out=("sinks, marks and tokens: a lake in a bucket needs a database for them (state=…)",))
    # Only the file in the lake is ours alone: a database that somebody names may be the one of the original.
    is_again = not target.put_new(RESTORING, b"") and state is None
    with open_database(target, state) as database:
        load_state(database, facts, may_replace=is_again)
        is_fenced = Epoch(target, facts["lake_id"], database).fence()
    found = _count(facts)
    return SavedState(found.sinks, found.marks, found.letters, found.tokens, found.left_out, is_fenced)


def _count(facts: Mapping[str, Any]) -> SavedState:
    rows = {name.removeprefix("strandline_"): found for name, found in facts["tables"].items()}
    current = {row["generation"] for row in rows.get("consumers", ())}
    definitions = [json.loads(row["definition"]) for row in rows.get("generations", ()) if row["generation"] in current]
    has_secrets = any(word in json.dumps(each) for each in definitions for word in ('"env:', '"file:', f'"{GIVEN}"'))
    left_out = [*([_SECRETS] if has_secrets else []), *([_PAST] if current else [])]
    return SavedState(
        len(current - {None}),
        sum(row["generation"] in current for row in rows.get("marks", ())),
        len(rows.get("deadletters", ())),
        sum(bool(row["name"]) for row in rows.get("tokens", ())),
        tuple(left_out),
    )
