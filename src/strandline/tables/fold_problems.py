"""The vnodes that the last compaction of a table could not fold: a small file beside the table, for status.

Nothing depends on it. `doctor` examines the files that it names.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from strandline.storage.open import Storage


class FoldProblems:
    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._path = f"{folder}/health.json"

    def read(self) -> dict[str, Any]:
        """The degraded vnodes: number to path and message."""
        try:
            found = json.loads(self._storage.read(self._path))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def files(self) -> set[str]:
        """The names of the damaged files."""
        return {str(found.get("path")).rsplit("/", 1)[-1] for found in self.read().values() if isinstance(found, dict)}

    def write(self, degraded: Mapping[str, Any], folded: Collection[int]) -> None:
        """Add the degraded vnodes and remove the `folded` ones."""
        before = self.read()
        after = {vnode: found for vnode, found in before.items() if int(vnode) not in folded} | dict(degraded)
        if after != before:
            with self._storage.output(self._path) as stream:
                stream.write(json.dumps(after).encode())
