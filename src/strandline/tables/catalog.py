"""The tables of a lake: a log inside the lake, so that the lake describes itself wherever it is moved.

Entry 0 gives the lake its id and format; every later entry creates, drops or renames a table. Entries are numbered
commit files, so of two processes that create one name, one wins, and an entry that is damaged, or missing before later
ones, is `Corrupt`: no table is hidden. The loss of the last entry is noticed by processes that have seen it, and
before any change by the folder of its table, whose commits no entry explains.

A copy of a lake gets all entries at once: the first one is written last, and until then the file `COPYING` says that
the entries after the gap do not count yet.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from strandline.errors import Conflict, Corrupt, Invalid, NotFound
from strandline.model.definition import FORMAT, NAME, check_format
from strandline.storage.commits import FIRST, RESTORE, CommitLog
from strandline.storage.open import Storage

FOLDER = "catalog"
COPYING = f"{FOLDER}/copying"
# A file in the folder of a table that gets rows before it is registered; removed after that.
IMPORTING = "importing"
IMPORTED = f"log/_delta_log/{1:020d}.json"
_NUMBERED = re.compile(r"/\d{20}\.json\Z")
_LATER = re.compile(r"/_delta_log/(?!0{20})\d{20}\.json\Z")
_GENERATION = re.compile(r"[0-9a-f]{32}\Z")
_FOLDER = re.compile(r"tables/[A-Za-z][A-Za-z0-9_]{0,127}/[0-9a-f]{32}\Z")


@dataclass(frozen=True)
class Entry:
    """A table of the lake: one life (generation) of a name, in a folder that is never reused."""

    name: str
    generation: str
    folder: str


@dataclass(frozen=True)
class CatalogState:
    """`is_partial`: this lake is an unfinished copy, with entries that do not count yet."""

    version: int = -1
    digest: str = FIRST
    is_partial: bool = False
    lake_id: str = ""
    format: int = FORMAT
    tables: Mapping[str, Entry] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        return self.version >= 0

    def get(self, name: str) -> Entry:
        entry = self.tables.get(name)
        if entry is None:
            known = f"Tables: {', '.join(sorted(self.tables)) or 'none yet'}"
            hint = known if self.exists else "There is no lake yet at the place that was named: check its spelling."
            raise NotFound(f"no table {name!r} in this lake", hint=hint, table=name)
        return entry


@dataclass(frozen=True)
class DroppedEntry:
    """A table that was dropped, under its last name."""

    entry: Entry
    at_ms: int


@dataclass(frozen=True)
class Generations:
    """All generations ever: the names of the live ones by folder, and the dropped ones by their generation."""

    live: Mapping[str, str]
    dropped: Mapping[str, DroppedEntry]


class Catalog:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._commits = CommitLog(storage, FOLDER)
        self._state = CatalogState()
        self._lock = threading.Lock()
        self._is_whole = False

    def refresh(self) -> CatalogState:
        with self._lock:
            state = self._state
            # In a bucket one listing tells; in a folder that was read once, the files next to the last entry tell.
            is_listed = not self._storage.is_local or not state.exists
            has_later = self._lists_later if is_listed else self._sees_later
            if self._storage.is_local or has_later(state.version):
                state = self._read_later_entries(state)
                while has_later(state.version):
                    # The next entry and later ones may have landed a moment ago.
                    before, state = state, self._read_later_entries(state)
                    if state.version == before.version:
                        if not self._storage.exists(COPYING):
                            raise self._commits.missing(state.version + 1)
                        state = replace(state, is_partial=True)
                        break
            self._state = state
            return state

    def _sees_later(self, version: int) -> bool:
        if not self._commits.exists(version):
            raise self._gone_error(version)
        return self._commits.exists(version + 2)

    def _lists_later(self, version: int) -> bool:
        if version < 0:
            return self._commits.lists_later(version)
        head = self._commits.path(version)
        listed = {info.path for info in self._storage.list(FOLDER, after=self._commits.path(version - 1))}
        if head not in listed:
            raise self._gone_error(version)
        return any(_NUMBERED.search(path) and path > head for path in listed)

    def _gone_error(self, version: int) -> Corrupt:
        path = self._commits.path(version)
        return Corrupt(
            f"catalog entry {self._storage.url(path)} was there and is gone, or another file is in its place",
            hint=RESTORE,
            path=path,
        )

    def check_whole(self) -> None:
        """`Corrupt` when a table has no entry: then the last entries, or all, are lost. `Conflict` for an unfinished
        copy, which cannot be changed."""
        if self._is_whole and not self._state.is_partial:
            return
        # List first: a table is registered before its second commit, and a lake before its tables.
        listing = list(self._storage.list("tables"))
        state = self.refresh()
        self._check_complete()
        known = {entry.folder for entry in state.tables.values()}
        proofs: dict[str, set[str]] = defaultdict(set)
        for info in listing:
            if folder := _folder_of(info.path, state.exists):
                proofs[folder].add(info.path)
        hidden = proofs.keys() - known
        if hidden and state.exists:
            hidden = {folder for folder in hidden if not self._is_import(folder, proofs[folder])}
            # An import registers its table before it removes its mark.
            lives = self.generations()
            hidden = {folder for folder in hidden - set(lives.live) if _generation_of(folder) not in lives.dropped}
        if hidden and not state.exists:
            raise Corrupt(
                f"{self._storage.uri} has tables, such as {min(hidden)}, but its folder {FOLDER}/ is gone, or a backup"
                " or restore to this place did not end",
                hint=f"Nothing was changed. Copy the folder {FOLDER}/ from a backup of this lake, or run that backup or"
                " restore again. Do not make a new lake here: it would not know these tables.",
                path=FOLDER,
            )
        if hidden:
            raise Corrupt(
                f"the catalog of {self._storage.uri} does not know the table in {min(hidden)}: its last entry is lost,"
                " or a backup or restore to this place did not end",
                hint="Restore the folder catalog/ from a backup, or run that backup or restore again."
                " No table can be created, dropped or renamed until then.",
                path=FOLDER,
            )
        self._is_whole = state.exists

    def _check_complete(self) -> None:
        if self._state.is_partial:
            raise Conflict(
                f"{self._storage.uri} is an unfinished copy of a lake; nothing was changed",
                hint="Run its backup or restore again.",
            )

    def _is_import(self, folder: str, proofs: set[str]) -> bool:
        """Whether an import is filling or clearing that folder: it makes one commit of rows, and removes its mark
        last."""
        rows = f"{folder}/{IMPORTED}"
        return proofs == {rows} and (self._storage.exists(f"{folder}/{IMPORTING}") or not self._storage.exists(rows))

    def _read_later_entries(self, state: CatalogState) -> CatalogState:
        try:
            while (found := self._commits.read_next(state.version, state.digest)) is not None:
                state = replace(self._apply(state, found.actions[0]), digest=found.digest, is_partial=False)
        except Corrupt:
            if not state.exists:
                self._check_format()
            raise
        return state

    def _check_format(self) -> None:
        """`Invalid` when the first entry comes from a version that wrote no digests."""
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            entry = json.loads(self._storage.read(self._commits.path(0)))
            if "digest" not in entry:
                check_format(int(entry["format"]), self._storage.uri)

    def generations(self) -> Generations:
        """The live and the dropped generations; `Corrupt` when an entry is missing or damaged, since it may hide a
        table."""
        state = self.refresh()
        if state.is_partial:
            raise self._commits.missing(state.version + 1)
        now: dict[str, Entry] = {}
        dropped: dict[str, DroppedEntry] = {}
        for version in range(state.version + 1):
            entry = self._commits.read(version)
            if entry is None:
                raise self._commits.missing(version)
            for action in entry.actions:
                if "create" in action:
                    made = _entry_from(action)
                    now[made.name] = made
                    dropped.pop(made.generation, None)
                elif "rename" in action:
                    now[action["to"]] = replace(now.pop(action["rename"]), name=action["to"])
                elif "drop" in action:
                    gone = now.pop(action["drop"])
                    dropped[gone.generation] = DroppedEntry(gone, int(action.get("at", 0)))
        return Generations({entry.folder: entry.name for entry in state.tables.values()}, dropped)

    def ensure_lake(self) -> CatalogState:
        """Make this an empty lake unless it is one already."""
        while not self.refresh().exists:
            self.check_whole()
            self._commit(0, {"lake": uuid.uuid4().hex, "format": FORMAT})
        return self._state

    def check_free(self, name: str) -> None:
        """`Invalid` when a table has that name."""
        _refuse_taken(self.refresh(), name)

    def add(self, name: str, prepare: Callable[[Entry], None]) -> Entry:
        """Create a table: `prepare` writes its files, then an entry registers the name."""
        generation = uuid.uuid4().hex
        entry = Entry(name, generation, f"tables/{name}/{generation}")
        _refuse_taken(self.ensure_lake(), name)
        self.check_whole()
        prepare(entry)

        def action(state: CatalogState) -> dict[str, Any]:
            _refuse_taken(state, name)
            return {"create": name, "generation": generation, "folder": entry.folder}

        self._change(action)
        return entry

    def drop(self, entry: Entry) -> None:
        """Drop a table, even when it was renamed meanwhile."""
        self._change(lambda state: {"drop": _current_name(state, entry)})

    def undrop(self, entry: Entry) -> None:
        """Register a dropped table again, under the name of `entry`. Readers of earlier versions see a create."""

        def action(state: CatalogState) -> dict[str, Any]:
            if entry.folder in {each.folder for each in state.tables.values()}:
                raise Conflict(f"table {entry.name!r} was brought back by another process", table=entry.name)
            _refuse_taken(state, entry.name)
            return {"create": entry.name, "generation": entry.generation, "folder": entry.folder, "undrop": True}

        self._change(action)

    def rename(self, entry: Entry, to: str) -> None:
        def action(state: CatalogState) -> dict[str, Any]:
            name = _current_name(state, entry)
            if name == to:
                raise Invalid(f"the table has the name {to!r} already", table=to)
            _refuse_taken(state, to)
            return {"rename": name, "to": to}

        self._change(action)

    def _change(self, action: Callable[[CatalogState], dict[str, Any]]) -> None:
        self.check_whole()
        while True:
            state = self.refresh()
            head = self._commits.read(state.version)
            if head is None or head.digest != state.digest:
                raise self._gone_error(state.version)
            if self._commit(state.version + 1, action(state)):
                self.refresh()
                return

    def _commit(self, version: int, action: dict[str, Any]) -> bool:
        commit_id = uuid.uuid4().hex
        stamped = {**action, "at": int(time.time() * 1000), "commitId": commit_id}
        self._check_complete()
        return self._commits.create(version, [stamped], commit_id, self._state.digest) is not None

    def _apply(self, state: CatalogState, action: Mapping[str, Any]) -> CatalogState:
        tables = dict(state.tables)
        try:
            if "lake" in action:
                check_format(action["format"], self._storage.uri)
                return replace(state, version=state.version + 1, lake_id=action["lake"], format=action["format"])
            if "create" in action:
                tables[action["create"]] = _entry_from(action)
            elif "drop" in action:
                del tables[action["drop"]]
            elif "rename" in action:
                tables[action["to"]] = replace(tables.pop(action["rename"]), name=_check_form(action["to"], NAME))
            else:
                raise KeyError("no known action")
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(
                f"catalog entry {state.version + 1} of {self._storage.uri} makes no sense: {error}",
                hint=RESTORE,
                path=self._commits.path(state.version + 1),
            ) from error
        return replace(state, version=state.version + 1, tables=tables)


def _folder_of(path: str, has_catalog: bool) -> str | None:
    """The folder of the table whose existence a file proves: a later commit does, and without a catalog any file."""
    folder = "/".join(path.split("/")[:3])
    is_proof = not has_catalog or is_later_commit(path)
    return folder if is_proof and _FOLDER.match(folder) else None


def is_later_commit(path: str) -> bool:
    """Whether a file is a commit of a table, but not its first."""
    return _LATER.search(path) is not None


def _generation_of(folder: str) -> str:
    return folder.rsplit("/", 1)[1]


def _entry_from(action: Mapping[str, Any]) -> Entry:
    """The table of a create action. Its parts become paths, so each is checked against the form that we write."""
    return Entry(
        _check_form(action["create"], NAME),
        _check_form(action["generation"], _GENERATION),
        _check_form(action["folder"], _FOLDER),
    )


def _check_form(text: str, form: re.Pattern[str]) -> str:
    if not form.match(text):
        raise ValueError(f"{text!r} is not a valid name, generation or folder of a table")
    return text


def _refuse_taken(state: CatalogState, name: str) -> None:
    for taken in state.tables:
        if taken.lower() == name.lower():
            raise Invalid(
                f"table {taken!r} exists",
                hint=f"See: strandline table show {taken}. Choose another name, or drop it first:"
                f" strandline table drop {taken}. In Python, create_table(…, if_exists='open') opens it.",
                table=name,
            )


def _current_name(state: CatalogState, entry: Entry) -> str:
    for name, current in state.tables.items():
        if current.generation == entry.generation:
            return name
    raise NotFound(f"table {entry.name!r} was dropped meanwhile", table=entry.name)
