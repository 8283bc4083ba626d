"""Carry out a plan. Only this module writes to the target.

After a crash the order of the copies keeps the target readable: data files before the commit files that claim them;
refused rows before the log, as ingest commits them; a commit of the baseline after the log commits that it folds, and
before those that trim the log. The catalog comes last, and all its new entries appear at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from strandline.crash import crash_point
from strandline.jobs.backup.part import CommitToCopy, DeltaToCopy, FileToCopy
from strandline.jobs.backup.plan import BackupPlan, Step
from strandline.jobs.backup.refusal import cleaned, corrupt
from strandline.jobs.backup.run import CopyRun
from strandline.storage import digest
from strandline.storage.commits import CommitLog
from strandline.storage.delta_files import CommitChain
from strandline.tables.catalog import COPYING, FOLDER

_CHUNK_BYTES = 8 << 20


def copy_table(run: CopyRun, plan: BackupPlan) -> None:
    table = plan.entry.name

    def stream(file: FileToCopy) -> None:
        _stream_file(run, file, table)

    def put(step: Step) -> None:
        if isinstance(step, CommitToCopy):
            _put_commit(run, step.info.path, run.read(step.info.path), table)
        else:
            _write_pointer(run, step, table)

    def put_all(steps: Sequence[Step]) -> None:
        if not plan.is_visible:
            # Nobody reads the table yet, so the order does not matter.
            run.each(put, [step for step in steps if isinstance(step, CommitToCopy)])
            steps = [step for step in steps if isinstance(step, DeltaToCopy)]
        for step in steps:
            put(step)

    refused = plan.rejects.commits if plan.rejects else []
    # The first commit claims no file. Files of refused rows without a commit would count as damage.
    put_all([commit for commit in refused if commit.version == 0])
    run.each(stream, [file for part in plan.parts for file in part.data])
    crash_point("backup.data_copied")
    # Strandline uses a checkpoint when the pointer names it, other readers use it at once: its data are there.
    # The baseline's come before the log's: readers refuse a baseline that is ahead of its log.
    for part in (plan.baseline, plan.log, *([plan.rejects] if plan.rejects else [])):
        run.each(stream, part.checkpoints)
    if plan.rejects:
        put_all([*(commit for commit in refused if commit.version > 0), plan.rejects])
    early, late = plan.in_order()
    put_all(early)
    crash_point("backup.log_copied")
    put_all(late)
    crash_point("backup.table_copied")


def entries_to_copy(run: CopyRun, upto: int) -> list[tuple[str, bytes]]:
    """The catalog's entries that the target lacks, in order."""
    there = {info.path for info in run.target.list(FOLDER)}
    commits = CommitLog(run.source, FOLDER)
    missing = [path for version in range(upto + 1) if (path := commits.path(version)) not in there]
    return list(zip(missing, run.each(run.read, missing), strict=True))


def copy_catalog(run: CopyRun, entries: Sequence[tuple[str, bytes]]) -> None:
    """Copy the missing entries, the first of them last, so that all appear at once. Until then the file `COPYING`
    makes readers stop before the gap.

    In order, a table that a later entry drops would be visible for a moment, without its files."""
    if len(entries) > 1:
        run.target.put_new(COPYING, b"")
    run.each(lambda entry: _put_commit(run, *entry, FOLDER), entries[1:])
    crash_point("backup.catalog_begun")
    for entry in entries[:1]:
        _put_commit(run, *entry, FOLDER)
    run.target.delete([COPYING])


def _stream_file(run: CopyRun, file: FileToCopy, what: str) -> None:
    """Copy a file of any size. A data file must match its commit. One that was deleted meanwhile belongs to an older
    state than the fixed one, unless it `is_live`."""
    path, size, crc = file.info.path, 0, 0
    try:
        if (
            file.file is not None
            and file.file.crc is None
            and (fault := digest.find_fault(run.source, path, file.file))
        ):
            raise corrupt(run.source, path, what, f"is damaged: {fault}")
        with run.source.input(path) as opened, run.target.output(path) as output:
            while chunk := opened.read(_CHUNK_BYTES):
                output.write(chunk)
                size += len(chunk)
                crc = zlib.crc32(chunk, crc)
                run.advance(len(chunk), what)
            if file.file is not None and size != file.info.size:
                raise corrupt(run.source, path, what, f"has {size} bytes, not {file.info.size}")
            if file.file is not None and file.file.crc not in (None, crc):
                raise corrupt(run.source, path, what, f"is damaged: {digest.mismatch_text(crc, file.file.crc)}")
    except FileNotFoundError as error:
        if run.source.exists(path):
            raise
        if not file.is_data:
            raise cleaned(run.source, path) from error
        if file.is_live:
            raise corrupt(run.source, path, what, "is gone") from error
        run.advance(file.info.size - size, what)
    else:
        run.count_copied(size)


def _put_commit(run: CopyRun, path: str, data: bytes, what: str) -> None:
    """Create a commit file. If the target has it by now, it must be the same."""
    if not run.target.put_new(path, data):
        run.check_same(path, data)
    run.count_copied(len(data))
    run.advance(len(data), what)


def _write_pointer(run: CopyRun, part: DeltaToCopy, what: str) -> None:
    """Write the pointer to the last checkpoint; the commits after it are already there."""
    if part.pointer is not None:
        with run.target.output(CommitChain(run.target, part.folder).checkpoints.pointer_path) as output:
            output.write(part.pointer)
        run.count_copied(len(part.pointer))
        run.advance(len(part.pointer), what)
