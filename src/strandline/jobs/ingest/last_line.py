"""A last line without a newline: a row, or half a row of a file that is still growing.

A file is growing when it changes while it is looked at: a file that was written less than a second ago is looked at
again after that second. Objects in a store are written at once, and compressed files are taken whole.
"""

from __future__ import annotations

import time

from strandline.jobs.ingest.source import Source
from strandline.jobs.ingest.text_options import LastLine

_REST_S = 1.0


def settle(source: Source, rule: LastLine) -> Source:
    """The part of a file that is to be loaded: all of it, or all up to its last newline."""
    if rule == "load" or (rule == "auto" and not source.storage.is_local) or not source.may_grow:
        return source
    finished = source.finished()
    if not finished.unfinished_bytes or rule == "wait":
        return finished
    return finished if _is_growing(source) else source


def _is_growing(source: Source) -> bool:
    # A time in the future says nothing; it is not waited for.
    age_s = time.time() - source.mtime_ns / 1e9
    if 0 <= age_s < _REST_S:
        time.sleep(_REST_S - age_s)
    return not source.is_unchanged()
