"""Where an export goes: a folder or an S3 prefix of its own.

`_export.json` says what was written there, so that it can be told from files that no export wrote, which are never
touched. Data files bear the id of their export.

After a crash: the lock stays and names a process that is gone. The next export removes what bears that id, visible or
not, or, if the dead one had written its `_export.json`, ends what it had left to do; then it goes on.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from strandline.crash import crash_point
from strandline.errors import Invalid
from strandline.jobs.export import lock
from strandline.sinks.files import clear_unfinished, describe_files, read_note
from strandline.storage.open import Staged, Storage, open_storage
from strandline.storage.snapshot import DataFile

MANIFEST = "_export.json"
_FORMAT = 1
_OURS = re.compile(r"[0-9a-f]{32}-[0-9a-f]{32}\.parquet|_export\.json")


class Destination:
    """A place to export to, looked at when it is `claimed`."""

    def __init__(self, uri: str | os.PathLike[str], options: Mapping[str, str] | None, *, is_replaced: bool) -> None:
        self.storage = open_storage(os.fspath(uri) if isinstance(uri, os.PathLike) else uri, options)
        self._is_replaced = is_replaced

    @contextmanager
    def claimed(self) -> Iterator[DestinationClaim]:
        """Hold the destination alone while the block runs; when it fails, nothing of it is left there."""
        if not self.storage.exists(lock.LOCK):
            # Nothing is written to a place that is refused. With a lock, what is there may be a dead one's.
            self.check()
        self.storage.check_put_new()
        held = lock.acquire(self.storage, uuid.uuid4().hex)
        try:
            for id_ in held.dead:
                self._end(id_)
            claim = DestinationClaim(self.storage, held.id, self.check())
            claim.sweep_unfinished(())
            try:
                yield claim
            except BaseException:
                claim.sweep()
                raise
        finally:
            held.release()

    def _end(self, dead: str) -> None:
        """Put an end to an export whose process is gone: it is whole if it said what it wrote, else it never was."""
        manifest = self._manifest()
        if manifest is not None and manifest["id"] == dead:
            self.storage.delete(self._found(manifest["replaces"]))
        else:
            DestinationClaim(self.storage, dead, ()).sweep()

    def check(self) -> Sequence[str]:
        """The files of an earlier export that this one replaces; `Invalid` when that was not asked for, or when other
        files are there."""
        manifest = self._manifest()
        known = [] if manifest is None else self._found(manifest["files"])
        ours = {MANIFEST, *known}
        foreign = next((path for path in self._visible() if path not in ours), None)
        if foreign is not None:
            raise Invalid(
                f"{self.storage.uri} holds files that are not listed by an export, such as {foreign}",
                hint="Choose another destination.",
                path=foreign,
            )
        if manifest is not None and not self._is_replaced:
            raise Invalid(
                f"{self.storage.uri} holds an earlier export",
                hint="Choose another destination, or replace it: overwrite=True, on the command line --overwrite.",
                path=MANIFEST,
            )
        return known

    def _visible(self) -> Iterator[str]:
        return (info.path for info in self.storage.list("") if not lock.is_lock(info.path))

    def _found(self, paths: Sequence[str]) -> list[str]:
        """Those of the files that a manifest names which are there: it cannot name what lies elsewhere."""
        if not paths:
            return []
        visible = set(self._visible())
        return [path for path in paths if path in visible]

    def _manifest(self) -> dict[str, Any] | None:
        def take(note: Any) -> dict[str, Any]:
            return {
                "id": note["id"],
                "files": [str(file["path"]) for file in note["files"]],
                "replaces": [str(path) for path in note["replaces"]],
            }

        return read_note(self.storage, MANIFEST, take, "Choose another destination: what is there stays.")


@dataclass(frozen=True)
class DestinationClaim:
    """The right to write to a destination, in place of `earlier` files."""

    storage: Storage
    id: str
    earlier: Sequence[str]

    def publish(self, files: Sequence[DataFile], staged: Sequence[Staged], facts: Mapping[str, Any]) -> None:
        """Make the staged files visible, say what they are, and remove those that they replace."""
        crash_point("export.staged")
        temporaries = [each.temporary for each in staged]
        self.sweep_unfinished(temporaries)
        try:
            self.storage.publish(staged)
        except BaseException:
            self.storage.delete(temporaries)
            raise
        crash_point("export.published")
        manifest = {
            "format": _FORMAT,
            "id": self.id,
            **facts,
            "exported_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            **describe_files(files),
            "replaces": list(self.earlier),
        }
        with self.storage.output(MANIFEST) as stream:
            stream.write(json.dumps(manifest, indent=1).encode())
        crash_point("export.described")
        self.storage.delete(self.earlier)
        crash_point("export.cleared")

    def sweep(self) -> None:
        """Remove whatever this export wrote."""
        self.sweep_unfinished(())
        self.storage.delete([info.path for info in self.storage.list("") if info.path.startswith(f"{self.id}-")])

    def sweep_unfinished(self, kept: Collection[str]) -> None:
        """Remove files that were staged and that nobody will publish: of exports that are gone, of tasks that ran twice
        or went on after their job had failed. Who holds the lock is alone here, so all but the kept ones are such."""
        clear_unfinished(self.storage, named=_OURS, kept=kept)
