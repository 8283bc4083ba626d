"""Where an export goes: a folder or an S3 prefix of its own.

`_export.json` lists the files of an export. Files that are not in the list are never touched. The name of a data file
begins with the id of its export.

After a crash: the lock stays and names a process that is gone. If that export had written its `_export.json`, the next
export finishes it: it deletes the replaced files. Otherwise the next export deletes all files with the dead one's id.
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
from strandline.storage.open import StagedFile, Storage, open_storage
from strandline.storage.snapshot import DataFile

MANIFEST = "_export.json"
_FORMAT = 1
_OURS = re.compile(r"[0-9a-f]{32}-[0-9a-f]{32}\.parquet|_export\.json")


class Destination:
    """A place to export to. It is checked when it is claimed."""

    def __init__(self, uri: str | os.PathLike[str], options: Mapping[str, str] | None, *, may_replace: bool) -> None:
        self.storage = open_storage(uri, options)
        self._may_replace = may_replace

    @contextmanager
    def claim(self) -> Iterator[DestinationClaim]:
        """Hold the destination alone while the block runs. When the block fails, its files are deleted."""
        if not self.storage.exists(lock.LOCK):
            # Nothing is written to a place that is refused. If there is a lock, the files may be of a dead export.
            self.check()
        self.storage.check_put_new()
        held = lock.acquire(self.storage, uuid.uuid4().hex)
        try:
            for id_ in held.dead:
                self._end_export(id_)
            claim = DestinationClaim(self.storage, held.id, self.check())
            claim.sweep_unfinished(())
            try:
                yield claim
            except BaseException:
                claim.sweep()
                raise
        finally:
            held.release()

    def _end_export(self, dead: str) -> None:
        """Finish an export whose process is gone: it counts if it wrote its manifest, otherwise its files are
        deleted."""
        manifest = self._read_manifest()
        if manifest is not None and manifest["id"] == dead:
            self.storage.delete(self._existing_files(manifest["replaces"]))
        else:
            DestinationClaim(self.storage, dead, ()).sweep()

    def check(self) -> Sequence[str]:
        """The files of an earlier export that this one replaces. `Invalid` without `may_replace`, and when other files
        are there."""
        manifest = self._read_manifest()
        known = [] if manifest is None else self._existing_files(manifest["files"])
        ours = {MANIFEST, *known}
        foreign = next((path for path in self._visible_files() if path not in ours), None)
        if foreign is not None:
            raise Invalid(
                f"{self.storage.uri} holds files that are not listed by an export, such as {foreign}",
                hint="Choose another destination.",
                path=foreign,
            )
        if manifest is not None and not self._may_replace:
            raise Invalid(
                f"{self.storage.uri} holds an earlier export",
                hint="Choose another destination, or replace it: overwrite=True, on the command line --overwrite.",
                path=MANIFEST,
            )
        return known

    def _visible_files(self) -> Iterator[str]:
        return (info.path for info in self.storage.list("") if not lock.is_lock(info.path))

    def _existing_files(self, paths: Sequence[str]) -> list[str]:
        """The files of a manifest that exist here. A manifest cannot name files elsewhere."""
        if not paths:
            return []
        visible = set(self._visible_files())
        return [path for path in paths if path in visible]

    def _read_manifest(self) -> dict[str, Any] | None:
        def take(note: Any) -> dict[str, Any]:
            return {
                "id": note["id"],
                "files": [str(file["path"]) for file in note["files"]],
                "replaces": [str(path) for path in note["replaces"]],
            }

        return read_note(self.storage, MANIFEST, take, "Choose another destination. Nothing there was changed.")


@dataclass(frozen=True)
class DestinationClaim:
    """The right to write to a destination, in place of `earlier` files."""

    storage: Storage
    id: str
    earlier: Sequence[str]

    def publish(self, files: Sequence[DataFile], staged: Sequence[StagedFile], facts: Mapping[str, Any]) -> None:
        """Make the staged files visible, write the manifest, and delete the files that they replace."""
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
        """Delete everything that this export wrote."""
        self.sweep_unfinished(())
        self.storage.delete([info.path for info in self.storage.list("") if info.path.startswith(f"{self.id}-")])

    def sweep_unfinished(self, kept: Collection[str]) -> None:
        """Delete staged files that nobody will publish: of dead exports, of tasks that ran twice or went on after
        their job had failed. The holder of the lock is alone here, so these are all staged files but the `kept`."""
        clear_unfinished(self.storage, named=_OURS, kept=kept)
