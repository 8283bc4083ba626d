"""Numbered commit files: the one way in which anything in a lake becomes true.

A commit is a file `<20 digits>.json` of one JSON action a line, created with put-if-absent, so of two writers of
one number one wins. Every commit carries an id of its own. After a lost race or an answer that never came, the
file under that number decides: with our id it landed; with another id someone else has the number; with no file
nothing happened.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strandline.errors import Corrupt, Unavailable
from strandline.storage.base import Storage
from strandline.storage.faults import is_refusal

Action = dict[str, Any]

_ATTEMPTS = 5
_FIRST_WAIT_S = 0.05


@dataclass(frozen=True)
class CommitLog:
    storage: Storage
    folder: str

    def path(self, version: int) -> str:
        return f"{self.folder}/{version:020d}.json"

    def read(self, version: int) -> list[Action] | None:
        """The actions of a commit, or None when there is no such commit."""
        try:
            data = self.storage.read(self.path(version))
        except FileNotFoundError:
            return None
        try:
            return [json.loads(line) for line in data.splitlines() if line.strip()]
        except ValueError as error:
            raise Corrupt(
                f"commit file {self.storage.url(self.path(version))} is not JSON lines: {error}",
                path=self.path(version),
            ) from error

    def create(self, version: int, actions: Sequence[Action], commit_id: str) -> bool:
        """Make `actions` the commit `version`; False when another commit has that number.

        The first action must carry `commit_id` (see `id_of`). `Unavailable` only when the store cannot say what
        happened: then the commit may or may not have landed, and a caller's retry needs a token to be safe."""
        data = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions).encode()
        for attempt in range(_ATTEMPTS):
            failure: Exception | None = None
            try:
                if self.storage.put_new(self.path(version), data):
                    return True
            except (Unavailable, OSError) as error:
                if is_refusal(error):
                    raise
                failure = error
            try:
                landed = self.read(version)
            except Unavailable as error:
                landed, failure = None, error
            if landed is not None:
                return id_of(landed) == commit_id
            if attempt + 1 == _ATTEMPTS:
                raise Unavailable(
                    f"commit {version} of {self.storage.url(self.folder)}: no answer; it may have landed",
                    hint="Retry with the same token=…: it is applied once.",
                ) from failure
            time.sleep(_FIRST_WAIT_S * 2**attempt)
        raise AssertionError("unreachable")


def id_of(actions: Sequence[Action]) -> str | None:
    """The id that a commit carries, in its `commitInfo` (Delta) or at its top (catalog)."""
    for action in actions:
        found = action.get("commitInfo", action).get("commitId")
        if found is not None:
            return str(found)
    return None
