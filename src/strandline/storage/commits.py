"""Numbered commit files: the one way to change a lake.

A commit is a file `<20 digits>.json` of one JSON action a line, created with put-if-absent, so of two writers of
one number one wins. Every commit has its own id. After a lost race or a lost answer, the file under that number
decides: with our id, our commit landed; with another id, another writer has the number; with no file, nothing
happened.

A commit file is sealed: its first action ends with the number of actions, the digest of the commit before it, and a
digest of the file's own path and bytes. So a file that is empty, cut, altered, moved or foreign is `Corrupt`, and so is
a file that does not follow the commit before it. None of them is ever read as a smaller commit.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from strandline.errors import Corrupt, Unavailable
from strandline.storage.contract import Storage
from strandline.storage.os_errors import is_refusal

Action = dict[str, Any]

FIRST = ""  # stands for the digest of a commit before the first one
_UNTIL = "Until then reads and writes that need it fail, and a vacuum that needs it deletes nothing."
RESTORE = f"Restore that file from a backup. {_UNTIL}"
_ATTEMPTS = 5
_FIRST_WAIT_S = 0.05
_HEX = 32
_NUMBERED = re.compile(r"/\d{20}\.json\Z")
_SEAL = re.compile(rb'"actions":(\d+),"previous":"([0-9a-f]*)","digest":"([0-9a-f]{%d})"\}{1,2}(?=\n|\Z)' % _HEX)


@dataclass(frozen=True)
class CommitFile:
    """The actions of a sealed file, the digest of the file before it, and its own digest."""

    actions: list[Action]
    previous: str
    digest: str


@dataclass(frozen=True)
class CommitLog:
    storage: Storage
    folder: str

    def path(self, version: int) -> str:
        return f"{self.folder}/{version:020d}.json"

    def exists(self, version: int) -> bool:
        return self.storage.exists(self.path(version))

    def read(self, version: int) -> CommitFile | None:
        """The commit of a number, or None when there is none; `Corrupt` when its file is damaged."""
        try:
            data = self.storage.read(self.path(version))
        except FileNotFoundError:
            return None
        return self.check(version, data)

    def read_next(self, version: int, digest: str) -> CommitFile | None:
        """The commit after that version and digest; `Corrupt` when it follows another commit."""
        found = self.read(version + 1)
        if found is not None:
            self.check_follows(version + 1, found, digest)
        return found

    def lists_later(self, version: int) -> bool:
        """Whether there are commits after a version, by a listing, which is one request to a bucket."""
        later = self.storage.list(self.folder, after=self.path(version))
        return any(_NUMBERED.search(info.path) for info in later)

    def is_last(self, version: int) -> bool:
        """Whether the commit exists and is the last, by a listing."""
        listed = (info.path for info in self.storage.list(self.folder, after=self.path(version - 1)))
        return {path for path in listed if _NUMBERED.search(path)} == {self.path(version)}

    def check(self, version: int, data: bytes) -> CommitFile:
        """The commit in the bytes of a file; `Corrupt` when they are damaged."""
        try:
            return read_sealed(self.path(version), data)
        except ValueError as error:
            raise Corrupt(
                f"commit file {self.storage.url(self.path(version))} is damaged: {error}",
                hint=RESTORE,
                path=self.path(version),
            ) from error

    def check_follows(self, version: int, commit: CommitFile, digest: str) -> None:
        if commit.previous != digest:
            raise Corrupt(
                f"commit file {self.storage.url(self.path(version))} does not follow the commit before it:"
                " one of the two is not the file that was written",
                hint=f"Restore both files from a backup. {_UNTIL}",
                path=self.path(version),
            )

    def missing(self, version: int) -> Corrupt:
        return Corrupt(
            f"commit file {self.storage.url(self.path(version))} is missing before later ones",
            hint=RESTORE,
            path=self.path(version),
        )

    def create(self, version: int, actions: Sequence[Action], commit_id: str, previous: str) -> CommitFile | None:
        """Make `actions` the commit `version`, after the commit with the digest `previous`; None when another commit
        has that number.

        The first action must carry `commit_id` (see `id_of`). `Unavailable` only when the store does not tell the
        outcome: then the commit may or may not have landed, and a retry is safe only with a token."""
        data, digest = seal_actions(self.path(version), actions, previous)
        for attempt in range(_ATTEMPTS):
            failure: Exception | None = None
            try:
                if self.storage.put_new(self.path(version), data):
                    return CommitFile(list(actions), previous, digest)
            except (Unavailable, OSError) as error:
                if is_refusal(error):
                    raise
                failure = error
            try:
                landed = self.read(version)
            except Unavailable as error:
                landed, failure = None, error
            if landed is not None:
                return landed if id_of(landed.actions) == commit_id else None
            if attempt + 1 == _ATTEMPTS:
                raise Unavailable(
                    f"commit {version} of {self.storage.url(self.folder)}: no answer; it may have landed",
                    hint="Retry with the same token=…: it is applied once.",
                ) from failure
            time.sleep(_FIRST_WAIT_S * 2**attempt)
        raise AssertionError("unreachable")


def seal_actions(path: str, actions: Sequence[Action], previous: str) -> tuple[bytes, str]:
    """The bytes of a file that holds `actions`, and their digest."""
    seal = {"actions": len(actions), "previous": previous, "digest": "0" * _HEX}
    first = actions[0]
    info = first.get("commitInfo")
    head = {**first, **seal} if info is None else {"commitInfo": {**info, **seal}}
    lines = [json.dumps(action, separators=(",", ":")).encode() for action in (head, *actions[1:])]
    at = len(lines[0]) - _HEX - (2 if info is None else 3)
    data = b"\n".join(lines)
    digest = _compute_digest(path, data, at)
    return data[:at] + digest.encode() + data[at + _HEX :], digest


def read_sealed(path: str, data: bytes) -> CommitFile:
    """The content of a sealed file; `ValueError` when it is damaged or lies under another path."""
    seal = _SEAL.search(data)
    if not data:
        raise ValueError("it is empty")
    if seal is None:
        raise ValueError("it carries no digest, so it is cut or altered, or another program wrote it")
    digest = seal.group(3).decode()
    if _compute_digest(path, data, seal.start(3)) != digest:
        raise ValueError("its bytes do not match its digest")
    actions = [json.loads(line) for line in data.split(b"\n")]
    if len(actions) != int(seal.group(1)):
        raise ValueError(f"it holds {len(actions)} actions, not {int(seal.group(1))}")
    return CommitFile(actions, seal.group(2).decode(), digest)


def _compute_digest(path: str, data: bytes, at: int) -> str:
    """The digest of a file's path and bytes, without the bytes of the digest itself."""
    found = blake2b(f"{path}\n".encode(), digest_size=_HEX // 2)
    found.update(data[:at])
    found.update(data[at + _HEX :])
    return found.hexdigest()


def id_of(actions: Sequence[Action]) -> str | None:
    """The id that a commit carries, in its `commitInfo` (Delta) or at its top (catalog)."""
    for action in actions:
        found = action.get("commitInfo", action).get("commitId")
        if found is not None:
            return str(found)
    return None
