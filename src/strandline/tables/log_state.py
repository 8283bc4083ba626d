"""The state of a table's log at one version: its live files by seq, and the files of a range of changes.

A log file belongs to one commit, and its seq is in the commit; or it is a pack, with the changes of several commits and
the seq of each row inside. `files` is the one place that turns a range into files: it limits a pack to the range, and
every scan of the file keeps to that limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow.compute as pc

from strandline.engines.scan import Inside, ScanFile
from strandline.errors import Invalid, NotRetained
from strandline.model.change import PACKED, SEQ
from strandline.model.definition import TableDef
from strandline.storage.open import Storage
from strandline.storage.parquet import reader
from strandline.storage.snapshot import PURGE, DataFile, Snapshot, schema_id_of

TRIM = "trim"
EPOCH = "epoch"
HIDDEN = "hidden"
PACK = "pack"
REDEFINED = "schema"


@dataclass(frozen=True)
class LogState:
    """The log at one version: its definition and its live files in seq order."""

    snapshot: Snapshot
    storage: Storage
    folder: str

    @property
    def head(self) -> int:
        return self.snapshot.version

    @property
    def trimmed_to(self) -> int:
        return self.snapshot.txns.get(TRIM, 0)

    @property
    def epoch(self) -> int:
        """The epoch of the state that last trimmed the log."""
        return self.snapshot.txns.get(EPOCH, 0)

    @property
    def hidden_rows(self) -> int:
        """How many rows have expired since the table was made, as each expiry has counted them."""
        return self.snapshot.txns.get(HIDDEN, 0)

    @property
    def purged(self) -> int:
        """The last commit that removed rows from the past: results of earlier reads may be outdated."""
        return self.snapshot.txns.get(PURGE, 0)

    @property
    def packed(self) -> int:
        """The last commit that packed files: earlier lists of files may name files that are gone."""
        return self.snapshot.txns.get(PACK, 0)

    @property
    def redefined(self) -> int:
        """The last commit that changed the columns; 0 when it is not known."""
        return self.snapshot.txns.get(REDEFINED, 0)

    @cached_property
    def definition(self) -> TableDef:
        return TableDef.from_configuration(self.snapshot.configuration, self.storage.url(self.folder))

    @cached_property
    def by_seq(self) -> list[tuple[int, DataFile]]:
        """The live files, each with its seq; that of a pack is its last."""
        return sorted(
            ((int(file.partition[SEQ] or 0), file) for file in self.snapshot.files.values()),
            key=lambda pair: (pair[0], pair[1].path),
        )

    def files(self, after: int, upto: int) -> list[tuple[int, DataFile]]:
        """The files with the changes in `(after, upto]`, each with its seq; `NotRetained` when some are trimmed.

        A pack may hold other changes too. Then it is limited to the range, as every scan of the file must be, and its
        seq is the last one in the range."""
        for name, bound in (("after", after), ("upto", upto)):
            if isinstance(bound, bool) or not isinstance(bound, int) or bound < 0:
                raise Invalid(f"{name} is {bound!r}; expected a seq, 0 or more")
        if after < self.trimmed_to:
            raise NotRetained(
                f"changes after seq {after} are gone: the log is kept from {self.trimmed_to} on",
                seq=after,
                oldest=self.trimmed_to,
            )
        found = (_limit_file(seq, file, after, upto) for seq, file in self.by_seq if seq > after)
        return [pair for pair in found if pair is not None]

    def rows_at(self, seq: int) -> int:
        """How many rows the commit `seq` has in the log. Of a pack, one column is read."""
        return sum(self._count_rows(file) for _, file in self.files(seq - 1, seq)) if seq > self.trimmed_to else 0

    def _count_rows(self, file: DataFile) -> int:
        return file.rows if file.within is None else count_within(self.storage, f"{self.folder}/{file.path}", file)

    def scans(self, pairs: Iterable[tuple[int, DataFile]]) -> list[ScanFile]:
        return [scan_file(self.storage, self.folder, file, seq) for seq, file in pairs]


def first_seq(seq: int, file: DataFile) -> int:
    """The first seq in a log file, of which `seq` is the last."""
    return seq if file.pack is None else file.pack.first


def scan_file(storage: Storage, folder: str, file: DataFile, number: int) -> ScanFile:
    path = f"{folder}/{file.path}"
    inside = None if file.pack is None else Inside(PACKED, *(file.within or (None, None)))
    return ScanFile(storage.url(path), path, schema_id_of(file), number, file.size, inside)


def _limit_file(seq: int, file: DataFile, after: int, upto: int) -> tuple[int, DataFile] | None:
    """A file with a seq after `after`, limited to `(after, upto]`; None when it lies behind."""
    if file.pack is None:
        return (seq, file) if seq <= upto else None
    if file.pack.first > upto:
        return None
    is_whole = after < file.pack.first and seq <= upto
    return min(seq, upto), file if is_whole else replace(file, within=(after, upto))


def count_within(storage: Storage, path: str, file: DataFile) -> int:
    """How many rows of a pack lie `within` its range."""
    assert file.within is not None
    after, upto = file.within
    with reader.open_file(storage, path) as opened:
        seqs = opened.read([PACKED]).column(PACKED)
    return int(pc.sum(pc.and_(pc.greater(seqs, after), pc.less_equal(seqs, upto))).as_py() or 0)
