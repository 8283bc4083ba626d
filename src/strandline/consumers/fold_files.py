"""Write the files of a fold: in this process, or with Spark in tasks that each take some of the vnodes.

Both ways run the same function (`fold_vnodes`). Written files do not count before a commit claims them; those of a fold
that fails are deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strandline.consumers.account import FoldAccount, check_account
from strandline.consumers.fold_lane import FoldLane, fold_vnodes, pack_part
from strandline.engines.lanes import RECEIPT, files_of, raised_as_ours
from strandline.engines.spark import collect, parallelism, parts_frame, run_lane, running_job, session
from strandline.engines.workers import DUCKDB
from strandline.storage.snapshot import DataFile
from strandline.tables.merge import TableAt
from strandline.tables.store import TableStore

# A Spark task gets vnodes of about this size: it opens the files that hold changes of all vnodes once.
_TASK_BYTES = 256 << 20
_MOST_TASKS = 1024


def fold_on_driver(table: TableStore, part: TableAt) -> tuple[list[DataFile], list[DataFile]]:
    """The new files, and the files that they replace."""
    account = FoldAccount()
    added: list[DataFile] = []
    try:
        with raised_as_ours():
            added += fold_vnodes(part, table.duck, account)
        check_account(part, account, added)
    except BaseException:
        discard(table, added)
        raise
    return added, _find_removed(part, account)


def fold_on_spark(table: TableStore, part: TableAt) -> tuple[list[DataFile], list[DataFile]]:
    """The same in Spark tasks. They read and write the files by themselves, so that no row passes through Spark."""
    spark = session(table.spark)
    chosen = sorted(part.only or ())
    groups = list(_split_vnodes(chosen, part, parallelism(spark)))
    frame = parts_frame(spark, [pack_part(part.part(group)) for group in groups])
    count = "1 vnode" if len(chosen) == 1 else f"{len(chosen)} vnodes"
    with running_job(spark, part.row_bytes, name=f"compact {table.name}, {count}"):
        receipts = collect(run_lane(frame, FoldLane(), RECEIPT, stores=[part.log.storage], packages=[DUCKDB]))
    added, failure = files_of(receipts)
    account = FoldAccount.sum_texts(row["counts"] for row in receipts if row["counts"] is not None)
    try:
        if failure is not None:
            raise failure
        check_account(part, account, added)
    except BaseException:
        discard(table, added)
        raise
    return added, _find_removed(part, account)


def _split_vnodes(vnodes: Sequence[int], part: TableAt, at_once: int) -> Iterator[Sequence[int]]:
    """The vnodes of each task: neighbours, whose changes lie in the same large files."""
    wanted = max(at_once, sum(file.raw_bytes for file in part.files()) // _TASK_BYTES)
    tasks = min(len(vnodes), wanted, _MOST_TASKS)
    for at in range(tasks):
        yield vnodes[at * len(vnodes) // tasks : (at + 1) * len(vnodes) // tasks]


def _find_removed(part: TableAt, account: FoldAccount) -> list[DataFile]:
    return [file for file in part.base_files() if file.path in account.removed]


def discard(table: TableStore, files: Sequence[DataFile]) -> None:
    """Delete own files that no commit will claim."""
    table.baseline.storage.delete(f"{table.baseline.folder}/{file.path}" for file in files)
