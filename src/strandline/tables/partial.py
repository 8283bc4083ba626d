"""Rows that lack values of their table's columns: refused when the table would lose a value, or completed from it.

A row lacks a column when it gives no value for it, not even null. By default (`refuse`) a call is refused if a row of
the table, or an earlier row of the call with the same key, has a value there: it would be replaced by null. New rows
get null. `keep` makes it a partial upsert: a row keeps the values that its key has at the moment of the commit, after
the earlier rows of the call. A change of one of these keys between the read and the commit makes the upsert read again.

After a crash: the commit exists with the completed rows, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.engines.choice import BULK
from strandline.engines.scan import listed, quoted
from strandline.engines.spark import collect
from strandline.errors import Conflict, Invalid
from strandline.model.change import HASH, OP, SEQ, UPSERT, Commit
from strandline.model.checked_rows import CheckedRows, Mask
from strandline.model.definition import TableDef
from strandline.model.keys import hash_keys, vnode_of
from strandline.model.rows import check_required
from strandline.model.types import conform
from strandline.retry import until_landed
from strandline.storage.snapshot import PURGE, Draft, Snapshot, schema_id_of
from strandline.tables.log import TRIM, Amend, first_seq
from strandline.tables.merge import Files, TableAt, duck_sql
from strandline.tables.store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Missing = Literal["refuse", "null", "keep"]
Places = npt.NDArray[np.int64]

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
    table: TableStore, definition: TableDef, pieces: Iterable[CheckedRows], *, where: str = "the rows"
) -> Iterator[pa.Table]:
    """The rows; after the last one, `Invalid` when they would replace values by null. The caller commits only after
    that."""
    held: list[CheckedRows] = []
    for piece in pieces:
        # Objects that lack nothing may be followed by one of the same key that does.
        if piece.table.num_rows and (piece.lacking or piece.by_row):
            held.append(replace(piece, table=_note_values(piece.table, definition.key)))
        yield piece.table
    if any(piece.lacking for piece in held):
        lost = _find_losses(table, CheckedRows.concat(held))
        if lost:
            raise _loss_error(table, lost, where)


def count_losses(
    table: TableStore, definition: TableDef, pieces: Iterable[CheckedRows], lost: MutableMapping[str, int]
) -> Iterator[pa.Table]:
    """The rows; after the last one, `lost` tells for the columns in which no object has a value how many values of the
    table the objects will replace by null."""
    keys: list[pa.Table] = []
    empty = [name for name in definition.schema.names if name not in definition.key]
    for piece in pieces:
        rows = piece.table
        if not piece.by_row:
            yield rows
            continue
        empty = [name for name in empty if rows.column(name).null_count == rows.num_rows]
        keys = [*keys, rows.select(list(definition.key))] if empty else []
        yield rows
    merge = table.merge()
    filled = find_filled(merge, empty) if keys else []
    if filled:
        wanted = pa.concat_tables(keys)
        values = _find_values(table, merge, wanted.take(np.unique(_find_twins(wanted))), filled)
        counts = {name: len(values) - values.column(name).null_count for name in filled}
        lost.update({name: count for name, count in counts.items() if count})


def _note_values(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The keys, and for each other column whether there is a value."""
    names = rows.column_names
    return pa.table([rows.column(n) if n in key else pc.is_valid(rows.column(n)) for n in names], names)


def _find_losses(table: TableStore, rows: CheckedRows) -> list[str]:
    """The columns in which noted rows would replace a value by null, of the table or of the call."""
    merge = table.merge()
    filled = set(find_filled(merge, list(rows.lacking)))
    keys = rows.table.select(list(merge.definition.key))
    first = _find_twins(keys)
    sources = {name: _find_sources(first, mask) for name, mask in rows.lacking.items()}
    missing = {name: np.unique(first[source < 0]) for name, source in sources.items() if name in filled}
    asked = _join(missing.values())
    values = _find_values(table, merge, keys.take(asked), list(missing)) if len(asked) else None
    lost = []
    for name, source in sources.items():
        given = source[(source >= 0) & rows.lacks(name)]
        is_given = rows.table.column(name).to_numpy()[given] if len(given) else np.empty(0)
        is_held = values.column(name).is_valid().to_numpy() if values is not None and name in filled else np.empty(0)
        if is_given.any() or is_held[np.searchsorted(asked, missing.get(name, asked[:0]))].any():
            lost.append(name)
    return lost


def write_keeping(
    table: TableStore,
    definition: TableDef,
    pieces: Iterable[CheckedRows],
    *,
    tokens: Sequence[str] = (),
    amend: Amend | None = None,
) -> Commit:
    """Commit rows, which keep the table's values in the columns that they lack."""
    held: list[CheckedRows] = []
    for piece in pieces:
        held.append(piece)
        if not BULK.holds(raw_bytes=sum(each.table.nbytes for each in held)):
            raise Invalid(
                f"a partial upsert takes at most {BULK.raw_bytes >> 20} MiB of rows",
                hint="Split the rows, or pass them as a Spark DataFrame.",
                table=table.name,
            )
    if not sum(piece.table.num_rows for piece in held):
        return table.log.empty_commit(tokens)
    rows = CheckedRows.concat(held)

    def attempt() -> Commit:
        whole, check = complete_rows(table, rows, amend)
        return table.log.append(whole, definition, UPSERT, tokens=tokens, amend=check)

    return until_landed(attempt)


def complete_rows(table: TableStore, rows: CheckedRows, amend: Amend | None = None) -> tuple[pa.Table, Amend]:
    """Rows completed with the values of their keys; and `amend`, which also makes their commit a `Conflict` when one of
    the keys was changed meanwhile. `Invalid` when a new row lacks a value that the table requires."""
    merge = table.merge()
    whole = _complete_rows(table, merge, rows)
    check_required(whole, [field.name for field in merge.definition.schema if not field.nullable], 0)
    hashes = hash_keys([whole.column(name) for name in merge.definition.key]).to_numpy()
    return whole, _check_unchanged(merge.seq, np.unique(hashes), amend)


def needed_columns(definition: TableDef, missing: Missing) -> list[str]:
    """The columns that each row must give by itself."""
    if missing != "keep":
        return [field.name for field in definition.schema if not field.nullable]
    return [*definition.key, *([] if definition.version is None else [definition.version])]


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


def _complete_rows(table: TableStore, merge: TableAt, rows: CheckedRows) -> pa.Table:
    if not rows.lacking:
        return rows.table
    count = rows.table.num_rows
    keys = rows.table.select(list(merge.definition.key))
    first = _find_twins(keys)
    sources = {name: _find_sources(first, mask) for name, mask in rows.lacking.items()}
    filled = find_filled(merge, list(sources))
    asked = _join(np.unique(first[sources[name] < 0]) for name in filled)
    values = _find_values(table, merge, keys.take(asked), filled) if len(asked) else None
    whole = rows.table
    for name, source in sources.items():
        column, places, is_null = whole.column(name), source, source < 0
        if values is not None and name in filled:
            column = pa.chunked_array([*column.chunks, *values.column(name).chunks], type=column.type)
            places = np.where(is_null, count + np.searchsorted(asked, first), source)
            is_null = np.zeros(count, np.bool_)
        at = whole.schema.get_field_index(name)
        whole = whole.set_column(at, whole.schema.field(at), column.take(pa.array(places, mask=is_null)))
    return whole


def _find_twins(keys: pa.Table) -> Places:
    """For each row the number of the first row with the same key."""
    hashes = hash_keys(keys.columns).to_numpy()
    _, start, inverse, counts = np.unique(hashes, return_index=True, return_inverse=True, return_counts=True)
    first = start[inverse]
    alike = np.flatnonzero(counts[inverse] > 1)
    met: dict[tuple[Any, ...], int] = {}
    for at, key in zip(alike.tolist(), keys.take(alike).to_pylist(), strict=True):
        first[at] = met.setdefault(tuple(key.values()), at)
    return first


def _find_sources(first: Places, lacks: Mask) -> Places:
    """For each row the number of the row which has its value of a column: itself, or the last one before it with the
    same key that gives one; -1 without one."""
    count = len(first)
    order = np.argsort(first, kind="stable")
    given = np.maximum.accumulate(np.where(lacks[order], -1, np.arange(count)))
    begins = np.maximum.accumulate(np.where(np.diff(first[order], prepend=-1) != 0, np.arange(count), 0))
    sources = np.empty(count, np.int64)
    sources[order] = np.where(given >= begins, order[given], -1)
    return sources


def _join(places: Iterable[Places]) -> Places:
    """All of these numbers, sorted."""
    return np.unique(np.concatenate([np.empty(0, np.int64), *places]))


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
