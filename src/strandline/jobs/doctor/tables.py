"""Examine a table: its log, its baseline, its refused rows, and whether these fit together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import pyarrow as pa

from strandline.errors import StrandlineError
from strandline.jobs.doctor.delta_tables import DeltaExam
from strandline.jobs.doctor.finding import Finding
from strandline.model.change import PACKED, SEQ, VNODE
from strandline.model.definition import TableDef
from strandline.model.stored_names import stored_schema
from strandline.model.types import storage_schema
from strandline.storage import digest
from strandline.storage.commits import RESTORE
from strandline.storage.open import FileInfo, Storage
from strandline.tables.baseline import marks_of
from strandline.tables.catalog import Entry
from strandline.tables.fold_problems import FoldProblems
from strandline.tables.log import TRIM

_REWRITES = ("PURGE", "PACK")
"""The operations that replace files of earlier commits."""


class TableExam:
    """The examination of one table. `run` fills the findings."""

    def __init__(self, storage: Storage, entry: Entry, listing: Mapping[str, FileInfo]) -> None:
        self.entry = entry
        below = {path: info for path, info in listing.items() if path.startswith(f"{entry.folder}/")}
        self.log = DeltaExam(storage, entry.name, f"{entry.folder}/log", below)
        self.baseline = DeltaExam(storage, entry.name, f"{entry.folder}/baseline", below)
        self.rejects = DeltaExam(storage, entry.name, f"{entry.folder}/rejects", below)
        self.rows = 0
        self.files = 0
        self.definition: TableDef | None = None

    @property
    def parts(self) -> list[DeltaExam]:
        return [self.log, self.baseline, *([self.rejects] if self.rejects.names() else [])]

    @property
    def findings(self) -> list[Finding]:
        return [finding for part in self.parts for finding in part.findings]

    def run(self, advance: Callable[[int], None]) -> None:
        head = self.log.snapshot.version if self.log.snapshot else None
        self.definition = _read_definition(self.log)
        for part in self.parts:
            part.check_checkpoints()
            part.check_transactions(head if part is not self.rejects else None)
        self._check_seqs(self.log)
        self._check_marks(head)
        definitions = {
            id(self.log): self.definition,
            id(self.baseline): self.definition,
            id(self.rejects): _read_definition(self.rejects) if self.rejects.names() else None,
        }
        if self.rejects.names():
            self._check_seqs(self.rejects)
        at_fault = FoldProblems(self.log.storage, self.entry.folder).files()
        for part in self.parts:
            self._check_files(part, definitions[id(part)], advance)
            self._check_reported_files(part, at_fault)

    def _check_reported_files(self, part: DeltaExam, at_fault: Collection[str]) -> None:
        """A file that a compaction could not read is checked against its digest, also without `--deep`."""
        for file in part.snapshot.files.values() if part.snapshot else ():
            path = f"{part.folder}/{file.path}"
            if file.path not in at_fault or part.has_finding(file.path):
                continue
            if fault := digest.find_fault(part.storage, path, file):
                part.add(f"a compaction found that the file is damaged: {fault}", file.path)

    def _check_seqs(self, part: DeltaExam) -> None:
        """A log file's seq is the version of the commit that added it; after a purge, or in a pack, it may be an older
        one."""
        for version, actions in part.commits.items():
            is_later = any(action.get("commitInfo", {}).get("operation") in _REWRITES for action in actions)
            for add in (action["add"] for action in actions if "add" in action):
                seq = add["partitionValues"].get(SEQ)
                if seq != str(version) and not (is_later and str(seq).isdecimal() and int(seq) < version):
                    part.add(f"commit {version} added the file with seq {add['partitionValues'].get(SEQ)}", add["path"])

    def _check_marks(self, head: int | None) -> None:
        if self.definition is None or self.baseline.snapshot is None or head is None:
            return
        vnodes = self.definition.vnodes
        txns = self.baseline.snapshot.txns
        for app in txns:
            number = app.removeprefix("fold/")
            if app.startswith("fold/") and not (number.isdecimal() and int(number) < vnodes):
                self.baseline.add(f"the transaction {app!r} names no vnode: there are {vnodes}")
        marks = marks_of(txns, vnodes)
        # The fold may include a commit that came after `head` was read.
        is_past = max(marks) > head and not self.log.delta.chain.commits.exists(head + 1)
        lost = f"_delta_log/{head + 1:020d}.json"
        if is_past and not self.log.has_finding(lost):
            what = f"commit files after {head} are missing: the baseline is compacted up to {max(marks)}. {RESTORE}"
            self.log.add(what, lost)
        trimmed_to = self.log.snapshot.txns.get(TRIM, 0) if self.log.snapshot else 0
        if min(marks) < trimmed_to:
            self.log.add(f"the log is trimmed to seq {trimmed_to}, but the baseline is compacted only to {min(marks)}")
        for file in self.baseline.snapshot.files.values():
            vnode = file.partition.get(VNODE)
            if vnode is None or not vnode.isdecimal() or int(vnode) >= vnodes:
                self.baseline.add(f"the file is of vnode {vnode}; there are {vnodes}", file.path)

    def _check_files(self, part: DeltaExam, definition: TableDef | None, advance: Callable[[int], None]) -> None:
        for path, footer in part.check_files():
            self.files += 1
            self.rows += footer.num_rows
            advance(1)
            if definition is None:
                continue
            schema_id = int(path.split("-", 1)[0]) if path.split("-", 1)[0].isdecimal() else -1
            if not 0 <= schema_id <= definition.schema_id:
                part.add(f"the file names schema {schema_id}; there are {definition.schema_id + 1}", path)
                continue
            is_log = part is not self.baseline
            wanted = stored_schema((definition.log_schema if is_log else definition.baseline_schema)(schema_id))
            if part.snapshot is not None and part.snapshot.files[path].pack is not None:
                wanted = pa.schema([pa.field(PACKED, pa.int64(), False), *wanted])
            if _columns_of(footer.schema.to_arrow_schema()) != _columns_of(wanted):
                part.add(f"the file's columns are not those of schema {schema_id}", path)


def _read_definition(part: DeltaExam) -> TableDef | None:
    if part.snapshot is None:
        return None
    try:
        return TableDef.from_configuration(part.snapshot.configuration, part.storage.url(part.folder))
    except (StrandlineError, pa.ArrowException) as error:
        part.add(f"the table's definition is not readable: {error}")
        return None


def _columns_of(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in storage_schema(schema)]
