"""Rows that lack columns of their table: refused when a value would be lost, or completed with the table's values.

A call lacks a column when none of its rows has it. By default (`refuse`) it is refused if a row of the table has a
value there that the call would replace by null; new rows get null. `keep` makes it a partial upsert: rows keep the
values that the table has for their keys at the moment of the commit. A change of one of these keys between the read
and the commit makes the upsert read again.

After a crash: the commit exists with the completed rows, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa

from strandline.engines.choice import BULK
from strandline.engines.scan import listed, quoted
from strandline.engines.spark import collect
from strandline.errors import Conflict, Invalid
from strandline.model.change import HASH, OP, SEQ, UPSERT, Commit
from strandline.model.definition import TableDef
from strandline.model.keys import hash_keys, vnode_of
from strandline.model.types import conform
from strandline.retry import until_landed
from strandline.storage.snapshot import PURGE, Draft, Snapshot, schema_id_of
from strandline.tables.log import TRIM, Amend, first_seq
from strandline.tables.merge import Files, TableAt, duck_sql
from strandline.tables.store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Missing = Literal["refuse", "null", "keep"]

_PLACE = "_place"


def check_missing(missing: Missing) -> Missing:
    """The option `missing`, checked."""
    if missing not in get_args(Missing):
        raise Invalid(f"missing is {missing!r}; expected one of: {', '.join(get_args(Missing))}")
    return missing


def find_lacking(definition: TableDef, found: Iterable[str]) -> list[str]:
    """The columns that rows lack which have the columns `found`."""
    present = set(found)
    return [name for name in definition.schema.names if name not in present]


def refuse_losses(
    table: TableStore,
    definition: TableDef,
    pieces: Iterable[pa.Table],
    found: Iterable[str],
    *,
    where: str = "the rows",
) -> Iterator[pa.Table]:
    """The pieces; after the last one, `Invalid` when they would replace values by null. `found` are the columns of the
    pieces so far, all of them after the last one. The caller commits only after that."""
    keys: list[pa.Table] = []
    for piece in pieces:
        if not find_lacking(definition, found):
            keys = []
        elif piece.num_rows:
            keys.append(piece.select(list(definition.key)))
        yield piece
    if not keys:
        return
    merge = table.merge()
    filled = find_filled(merge, find_lacking(definition, found))
    if filled:
        values = _find_values(table, merge, pa.concat_tables(keys), filled)
        lost = [name for name in filled if values.column(name).null_count < values.num_rows]
        if lost:
            raise _loss_error(table, lost, where)


def write_keeping(
    table: TableStore,
    definition: TableDef,
    pieces: Iterable[pa.Table],
    found: Iterable[str],
    *,
    tokens: Sequence[str] = (),
    amend: Amend | None = None,
) -> Commit:
    """Commit rows, which keep the table's values in the columns that they lack."""
    held: list[pa.Table] = []
    for piece in pieces:
        held.append(piece)
        if not BULK.holds(raw_bytes=sum(each.nbytes for each in held)):
            raise Invalid(
                f"a partial upsert takes at most {BULK.raw_bytes >> 20} MiB of rows",
                hint="Split the rows, or pass them as a Spark DataFrame.",
                table=table.name,
            )
    rows = pa.concat_tables(held) if held else definition.schema.empty_table()
    if not rows.num_rows:
        return table.log.empty_commit(tokens)
    lacking = find_lacking(definition, found)

    def attempt() -> Commit:
        (whole,), check = complete_parts(table, [(rows, lacking)], amend)
        return table.log.append(whole, definition, UPSERT, tokens=tokens, amend=check)

    return until_landed(attempt)


def complete_parts(
    table: TableStore, parts: Sequence[tuple[pa.Table, Sequence[str]]], amend: Amend | None = None
) -> tuple[list[pa.Table], Amend]:
    """Rows, in parts with the columns that each part lacks, completed with the table's values; and `amend`, which also
    makes their commit a `Conflict` when one of their keys was changed meanwhile."""
    merge = table.merge()
    whole = [_complete_rows(table, merge, rows, lacking) for rows, lacking in parts]
    hashes = [hash_keys([rows.column(name) for name in merge.definition.key]).to_numpy() for rows in whole]
    return whole, _check_unchanged(merge.seq, np.unique(np.concatenate(hashes)), amend)


def complete_frame(
    table: TableStore, definition: TableDef, frame: DataFrame, found: Iterable[str], missing: Missing
) -> tuple[DataFrame, Amend | None]:
    """A checked DataFrame with the table's values in the columns that it lacks, and what its commit has to check;
    without `keep`, the same DataFrame, or `Invalid` when values would be lost."""
    from pyspark.sql import functions as F

    merge = table.merge()
    filled = find_filled(merge, find_lacking(definition, found)) if missing != "null" else []
    if not filled:
        return frame, None
    key = list(definition.key)
    present = table.to_spark(at=merge.seq, columns=[*key, *filled])
    if missing == "refuse":
        counts = present.join(frame.select(*key), key, "semi").agg(*[F.count(f"`{name}`") for name in filled])
        (found_values,) = collect(counts, f"find values of {table.name} that an upsert would lose")
        lost = [name for name, count in zip(filled, found_values, strict=True) if count]
        if lost:
            raise _loss_error(table, lost, "the DataFrame")
        return frame, None
    order = frame.columns
    joined = frame.drop(*filled).join(present, key, "left")
    return joined.select(*[f"`{name}`" for name in order]), _check_unchanged(merge.seq, None, None)


def find_filled(merge: TableAt, names: Sequence[str]) -> list[str]:
    """Those columns in which the table may have values, by statistics."""
    inside = [frozenset(schema.names) for schema in merge.definition.schemas]
    stored = {name: merge.definition.stored.get(name, name) for name in names}
    filled: set[str] = set()
    for file in [*merge.base_files(), *(file for _, file in merge.log_files())]:
        held, nulls, rows = inside[schema_id_of(file)], file.stats.get("nullCount", {}), file.rows
        filled.update(n for n in names if n not in filled and n in held and nulls.get(stored[n], -1) < rows)
    return [name for name in names if name in filled]


def _find_values(table: TableStore, merge: TableAt, keys: pa.Table, names: Sequence[str]) -> pa.Table:
    """The table's values in some columns for each of the keys, in their order; null for a key that it does not have."""
    definition = merge.definition
    key = list(definition.key)
    hashes = np.unique(hash_keys([keys.column(name) for name in key]).to_numpy())
    part = merge.part({vnode_of(int(each), merge.baseline.vnodes) for each in hashes})
    wanted = keys.append_column(_PLACE, pa.array(range(keys.num_rows), pa.int64()))
    with table.duck.transaction() as cursor:
        fold = table.pinned_fold(cursor, part)
        cursor.register("_wanted", wanted)
        files = part.candidates(None) if fold is None else _choose_files(cursor, fold, part)
        rows = duck_sql(part, fold, [*key, *names], files=files)
        columns = ", ".join(f"t.{quoted(name)}" for name in names)
        sql = f"SELECT {columns} FROM _wanted w LEFT JOIN ({rows}) t USING ({listed(key)}) ORDER BY w.{_PLACE}"
        found = cursor.sql(sql).to_arrow_table()
        cursor.unregister("_wanted")
    return conform(found, pa.schema([definition.schema.field(name).with_nullable(True) for name in names]))


def _choose_files(cursor: Any, fold: str, part: TableAt) -> Files:
    """The files that have the rows of the wanted keys: the fold knows the commit of each key that has changed since the
    base, and the base has the others. A file of many columns opens slowly."""
    files, key = part.candidates(None), listed(part.definition.key)
    found = cursor.execute(f"SELECT {SEQ}, {OP}, count(*) FROM {fold} SEMI JOIN _wanted USING ({key}) GROUP BY ALL")
    changed = found.fetchall()
    seqs = {seq for seq, op, _ in changed if op == UPSERT}
    first, later = part.split(files.log)
    later = [pair for pair in later if any(first_seq(*pair) <= seq <= pair[0] for seq in seqs)]
    wanted = cursor.execute(f"SELECT count(*) FROM (SELECT DISTINCT {key} FROM _wanted)").fetchall()[0][0]
    is_all_changed = part.definition.version is None and sum(count for _, _, count in changed) == wanted
    return Files((), later) if is_all_changed else Files(files.baseline, [*first, *later])


def _complete_rows(table: TableStore, merge: TableAt, rows: pa.Table, lacking: Sequence[str]) -> pa.Table:
    filled = find_filled(merge, lacking)
    if not filled:
        return rows
    values = _find_values(table, merge, rows.select(list(merge.definition.key)), filled)
    is_filled = set(filled)
    columns = [(values if name in is_filled else rows).column(name) for name in rows.column_names]
    return pa.table(columns, schema=rows.schema)


def _check_unchanged(seq: int, hashes: Any, amend: Amend | None) -> Amend:
    """An amendment that refuses the commit when a key with one of the hashes, or without them any key, may have
    changed after `seq`."""

    def check(snapshot: Snapshot, draft: Draft) -> Draft:
        is_purged = snapshot.txns.get(PURGE, 0) > seq or snapshot.txns.get(TRIM, 0) > seq
        later = [file for file in snapshot.files.values() if int(file.partition[SEQ] or 0) > seq]
        if is_purged or any(hashes is None or _may_hold(file.stats, hashes) for file in later):
            raise Conflict("a row that keeps values was changed meanwhile; nothing was written")
        return draft if amend is None else amend(snapshot, draft)

    return check


def _may_hold(stats: Mapping[str, Any], hashes: Any) -> bool:
    low, high = stats["minValues"][HASH], stats["maxValues"][HASH]
    return bool(np.searchsorted(hashes, low) < np.searchsorted(hashes, high, side="right"))


def _loss_error(table: TableStore, lost: Sequence[str], where: str) -> Invalid:
    names = ", ".join(map(repr, lost))
    what = f"column {names}" if len(lost) == 1 else f"columns {names}"
    return Invalid(
        f"{where} lack the {what}, in which table {table.name!r} has values for some of their keys",
        hint="Add the values. Or say what to do: missing='keep' keeps the values of the table, missing='null' replaces"
        " them by null (ingest: --missing keep, --missing null).",
        table=table.name,
        column=lost[0],
        columns=list(lost),
    )
