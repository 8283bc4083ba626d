"""Which files of a log are packed, and when: a plan as data, from commit files alone.

A commit's own files are of tier 0. When more than `compact_files` neighbours of one tier are small, they become one
pack of a higher tier. So a row is packed once per tier, and the tiers grow with the logarithm of the commits. Files
that are large already are left alone.

Commits that are folded do not make a pack due before they are enough for the second tier. Reads do not open their files
any more, and mostly they are trimmed before. So a fold of many small files does not write their changes twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from strandline.storage.snapshot import schema_id_of
from strandline.tables.log import LogState
from strandline.tables.packing import Bundle, LogFile

MIB = 1 << 20
SMALL_BYTES, SMALL_RAW_BYTES = 16 * MIB, 64 * MIB
PACK_BYTES, PACK_RAW_BYTES = 4 * SMALL_BYTES, 4 * SMALL_RAW_BYTES
# The writer may end a file early, so packs need not be fewer than their files: this ends the tiers.
MAX_TIER = 20


@dataclass(frozen=True)
class PackNeed:
    """A pack that is due: the number and the size of its files, and the seqs of their changes, `(after, upto]`."""

    files: int
    rows: int
    bytes: int
    raw_bytes: int
    after: int
    upto: int

    @staticmethod
    def of(bundle: Bundle) -> PackNeed:
        files = [file for _, file in bundle.files]
        sizes = (sum(f.rows for f in files), sum(f.size for f in files), sum(f.raw_bytes for f in files))
        return PackNeed(len(files), *sizes, bundle.first - 1, bundle.last)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe_packs(files: int) -> str:
    """The packs that are due, in words."""
    return f"pack {files:,} files of the log"


def plan_packs(log: LogState, folded: int = 0, upto: int | None = None) -> list[Bundle]:
    """The packs that are due, of changes up to a seq. All changes up to `folded` are in the baseline, or will be after
    this compaction."""
    most = max(2, log.definition.settings.compact_files)
    found: list[Bundle] = []
    files = [pair for pair in log.by_seq if upto is None or pair[0] <= upto]
    for (is_small, _, tier), group in groupby(files, key=_kind_of):
        run = list(group)
        open_files = sum(tier > 0 or seq > folded for seq, _ in run)
        is_much = open_files > most or len(run) >= (most + 1) ** 2
        if is_small and tier < MAX_TIER and is_much:
            for part in _cut_run(run):
                tiers = max(1, int(math.log(len(part)) / math.log(most + 1)))
                found.append(Bundle(tuple(part), tier + tiers))
    return found


def _kind_of(pair: LogFile) -> tuple[bool, int, int]:
    """What neighbours must have in common to be packed together."""
    file = pair[1]
    tier = 0 if file.pack is None else file.pack.tier
    return file.size < SMALL_BYTES and file.raw_bytes < SMALL_RAW_BYTES, schema_id_of(file), tier


def _cut_run(files: Sequence[LogFile]) -> Iterator[list[LogFile]]:
    """The files in packs of a handy size, each of two files or more."""
    part: list[LogFile] = []
    size = raw_bytes = 0
    for pair in files:
        size, raw_bytes = size + pair[1].size, raw_bytes + pair[1].raw_bytes
        if size > PACK_BYTES or raw_bytes > PACK_RAW_BYTES:
            yield part
            part, size, raw_bytes = [], pair[1].size, pair[1].raw_bytes
        part.append(pair)
    if len(part) > 1:
        yield part
