"""Examine the rows: hashes, order, one change per key in a commit, one row per key in the baseline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.engines.duck import Duck
from strandline.engines.scan import listed, literal
from strandline.jobs.doctor.delta_tables import DeltaExam
from strandline.model.arrow_check import find_invalid, find_unreadable
from strandline.model.change import DELETE, HASH, OP, PACKED, ROW, SEQ, UPSERT, VNODE
from strandline.model.definition import TableDef
from strandline.model.keys import hash_keys, same_as_next, shift_for
from strandline.storage import digest
from strandline.storage.parquet import reader
from strandline.storage.snapshot import DataFile


def examine_rows(
    log: DeltaExam, baseline: DeltaExam, definition: TableDef, duck: Duck, advance: Callable[[int], None]
) -> None:
    """Read every live file of a table and add faults to the findings of its parts."""
    key = definition.key
    # Spark's tasks and this process sort a log file each in its own way.
    log_orders = [(HASH, *key), (VNODE, *key)] if key else [(ROW,)]
    for part, partition, orders, check in (
        (log, SEQ, log_orders, _log_fault),
        (baseline, VNODE, [key or (SEQ, ROW)], _baseline_fault),
    ):
        groups: dict[str, list[DataFile]] = defaultdict(list)
        for file in part.snapshot.files.values() if part.snapshot else ():
            if f"{part.folder}/{file.path}" in part.listing:
                groups[str(file.partition.get(partition))].append(file)
        for number, files in groups.items():
            is_whole = True
            for file in files:
                examine = partial(check, definition=definition, file=file)
                fault = _find_fault(part, file, examine, definition.vnodes, orders)
                advance(1)
                if fault:
                    is_whole = False
                if fault and not part.has_finding(file.path):
                    part.add(fault, file.path)
            single = [file for file in files if file.pack is None]
            if len(single) > 1 and is_whole and definition.is_keyed:
                _check_unique_keys(part, single, key, f"{partition[1:]} {number}", duck)
            packs = [file for file in files if file.pack is not None]
            if packs and is_whole:
                # The order of a pack does not show that a key is there once for each seq.
                _check_unique_keys(part, packs, [PACKED, *(key or [ROW])], f"the pack up to seq {number}", duck)


def _find_fault(
    part: DeltaExam,
    file: DataFile,
    check: Callable[[pa.Table], str | None],
    vnodes: int,
    orders: Sequence[Sequence[str]],
) -> str | None:
    """The first thing that is wrong with a file's rows, which must be sorted in one of `orders`."""
    last: pa.Table | None = None
    row = 0
    if damage := digest.find_fault(part.storage, f"{part.folder}/{file.path}", file):
        return f"the rows are not readable: {damage}"
    try:
        with reader.open_file(part.storage, f"{part.folder}/{file.path}") as opened:
            for batch in reader.batches(opened):
                rows = pa.Table.from_batches([batch])
                unread = find_invalid(rows) or find_unreadable(rows)
                if unread:
                    where = f"row {row + unread.row}, column {unread.path!r}"
                    return f"{where}: {unread.why}; not every engine reads the file"
                fault = check(rows)
                if fault:
                    return f"after row {row}: {fault}"
                if HASH in rows.column_names:
                    rows = rows.append_column(VNODE, _vnodes(rows.column(HASH), vnodes))
                named = dict.fromkeys(name for order in orders for name in order)
                keys = rows.select([*([PACKED] if file.pack else []), *named])
                joined = keys if last is None else pa.concat_tables([last, keys])
                wanted, orders = orders, _find_orders(joined, orders)
                if not orders:
                    said = " or ".join(", ".join(order) for order in wanted)
                    return f"after row {row}: the rows are not sorted by {said}, or one is there twice"
                last = keys.slice(keys.num_rows - 1)
                row += rows.num_rows
    except (OSError, ValueError) as error:
        return f"the rows are not readable: {str(error).splitlines()[0]}"
    return None


def _find_orders(keys: pa.Table, orders: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """The orders that the rows have. In a pack the seqs rise; the rows of one seq may come from several files."""
    if PACKED not in keys.column_names:
        return [order for order in orders if _is_rising(keys.select(order))]
    return [] if (np.diff(keys.column(PACKED).to_numpy()) < 0).any() else list(orders)


def _is_rising(keys: pa.Table) -> bool:
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
    is_sorted = order.equals(pa.array(range(keys.num_rows), order.type))
    return is_sorted and not pc.any(same_as_next(keys, keys.column_names), min_count=0).as_py()


def _log_fault(rows: pa.Table, definition: TableDef, file: DataFile) -> str | None:
    if file.pack is not None:
        seqs = pc.min_max(rows.column(PACKED)).as_py()
        if seqs["min"] < file.pack.first or seqs["max"] > file.pack.last:
            return f"a change is not of the seqs {file.pack.first} to {file.pack.last} of its pack"
    if not pc.all(pc.is_in(rows.column(OP), pa.array([UPSERT, DELETE])), min_count=0).as_py():
        return f"a change is neither {UPSERT} nor {DELETE}"
    if definition.is_keyed and not hash_keys([rows.column(name) for name in definition.key]).equals(
        rows.column(HASH).combine_chunks()
    ):
        return "a hash is not that of its key"
    return None


def _baseline_fault(rows: pa.Table, definition: TableDef, file: DataFile) -> str | None:
    if not definition.is_keyed:
        return None
    hashes = hash_keys([rows.column(name) for name in definition.key])
    vnode = file.partition[VNODE]
    if not pc.all(pc.equal(_vnodes(hashes, definition.vnodes), int(vnode or 0)), min_count=0).as_py():
        return f"a row is not of vnode {vnode}"
    return None


def _vnodes(hashes: pa.Array | pa.ChunkedArray, vnodes: int) -> pa.Array | pa.ChunkedArray:
    return pc.shift_right(hashes, pa.scalar(shift_for(vnodes), pa.int64()))


def _check_unique_keys(part: DeltaExam, files: Sequence[DataFile], key: Sequence[str], which: str, duck: Duck) -> None:
    """No key is there twice in the files of one commit or vnode, or in those of packs at one seq."""
    urls = ", ".join(literal(part.storage.url(f"{part.folder}/{file.path}")) for file in files)
    scan = f"SELECT {listed(key)} FROM read_parquet([{urls}], hive_partitioning = false, union_by_name = true)"
    found = duck.table(f"{scan} GROUP BY ALL HAVING count(*) > 1 LIMIT 1").to_pylist()
    if found:
        where = "in two files" if files[0].pack is None else "more than once"
        part.add(f"{which} holds the key {found[0]} {where}")
