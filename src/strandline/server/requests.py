"""A request that was checked: rows of the table, what each does, and what makes the request count once.

All that can be wrong with a request is found here, before it meets others, so that one never harms another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import Invalid
from strandline.model.change import DELETE, OP, SEQ, UPSERT, VNODE
from strandline.model.definition import TableDef
from strandline.model.keys import hash_keys
from strandline.model.rows import check_rows
from strandline.server.body import PLACE
from strandline.server.idempotency import Key
from strandline.server.table_growth import Growth
from strandline.sinks.forward.message import ChunkHeader, Numbers, Places, Replay
from strandline.sinks.forward.protocol import INDEX


@dataclass(frozen=True)
class Post:
    """Rows with `_op` and the table's columns, in the order in which they count.

    A chunk's rows have `places`; `key` is the `Idempotency-Key` of a request that is not a chunk. Of a table with
    versions, `upserted` and `deleted` are the hashes of the keys. `growth` is what the table needs before.
    `replay` says as of which seq the rows of dead letters are."""

    rows: pa.Table
    chunk: ChunkHeader | None = None
    places: Places | None = None
    key: Key | None = None
    upserted: npt.NDArray[np.int64] | None = None
    deleted: npt.NDArray[np.int64] | None = None
    growth: Growth | None = None
    replay: Replay | None = None


def columns_of(definition: TableDef) -> pa.Schema:
    """The columns of a post's rows."""
    return pa.schema([pa.field(OP, pa.string()), *(field.with_nullable(True) for field in definition.schema)])


def hidden_columns(*, is_chunk: bool) -> list[pa.Field]:
    """What a row says beside the table's columns. Outside of a chunk a place is ignored."""
    return [pa.field(OP, pa.string(), not is_chunk), *(pa.field(name, pa.int64(), not is_chunk) for name in PLACE)]


def posts_of(
    rows: pa.Table,
    definition: TableDef,
    *,
    chunk: ChunkHeader | None = None,
    key: Key | None = None,
    growth: Growth | None = None,
) -> list[Post]:
    """The rows of a request as posts: one, or of a chunk for a table with versions one for each commit that it takes.
    `definition` is the table as it is after `growth`."""
    columns = [field if field.name in definition.key else field.with_nullable(True) for field in definition.schema]
    wanted = pa.schema([*hidden_columns(is_chunk=chunk is not None), *columns])
    # Nothing in a body without rows can be wrong; a chunk whose rows were all refused still moves its positions.
    rows = next(check_rows(rows, wanted)) if rows.num_rows else wanted.empty_table()
    ops = pc.fill_null(rows.column(OP), UPSERT)
    is_delete = pc.equal(ops, DELETE)
    _check_ops(ops, is_delete, definition)
    _check_required(rows, is_delete, definition)
    places = None
    if chunk is not None:
        places = chunk.places(*(_numbers(rows.column(name)) for name in (VNODE, SEQ, INDEX)))
    rows = rows.select(definition.schema.names)
    if pc.any(is_delete, min_count=0).as_py():
        rows = _without_values(rows, is_delete, definition)
    rows = rows.add_column(0, columns_of(definition).field(OP), ops)
    if definition.version is None:
        return [Post(rows, chunk, places, key, growth=growth)]
    return _by_version(Post(rows, chunk, places, key, growth=growth), definition, is_delete)


def _numbers(column: pa.ChunkedArray) -> Numbers:
    return np.asarray(column.to_numpy(), np.int64)


def _check_ops(ops: pa.ChunkedArray, is_delete: pa.ChunkedArray, definition: TableDef) -> None:
    is_unknown = pc.invert(pc.or_(is_delete, pc.equal(ops, UPSERT)))
    row = _first(is_unknown)
    if row is not None:
        raise Invalid(
            f"row {row}, column {OP!r}: {ops[row].as_py()!r:.40} is neither {UPSERT!r} nor {DELETE!r}",
            row=row,
            column=OP,
        )
    row = None if definition.is_keyed else _first(is_delete)
    if row is not None:
        raise Invalid(f"row {row}: the table has no key, so nothing can be deleted from it", row=row, column=OP)


def _check_required(rows: pa.Table, is_delete: pa.ChunkedArray, definition: TableDef) -> None:
    """Upserts have a value wherever the table requires one; of a delete that is the key alone."""
    for field in definition.schema:
        if field.nullable or field.name in definition.key or not rows.column(field.name).null_count:
            continue
        row = _first(pc.and_(pc.is_null(rows.column(field.name)), pc.invert(is_delete)))
        if row is not None:
            raise Invalid(
                f"row {row}, column {field.name!r}: a value is required, found null", row=row, column=field.name
            )


def _without_values(rows: pa.Table, is_delete: pa.ChunkedArray, definition: TableDef) -> pa.Table:
    """The rows, with nothing but the key in those that delete."""
    places = pa.array(range(rows.num_rows), pa.int64())
    kept = pc.if_else(is_delete, pa.scalar(None, pa.int64()), places)
    for at, field in enumerate(rows.schema):
        column = rows.column(at)
        if field.name not in definition.key and pc.any(pc.and_(is_delete, column.is_valid())).as_py():
            rows = rows.set_column(at, field, column.take(kept))
    return rows


def _by_version(post: Post, definition: TableDef, is_delete: pa.ChunkedArray) -> list[Post]:
    """With versions, a delete clears its key for versions of any height. One commit has one change of a key and cannot
    say both, so an upsert after a delete of its key takes another."""
    hashes = _numbers(pa.chunked_array([hash_keys([post.rows.column(name) for name in definition.key])]))
    deletes = np.asarray(is_delete.to_numpy(), np.bool_)
    cuts, cleared = [0], set[int]()
    if deletes.any() and not deletes.all():
        for row, (key, clears) in enumerate(zip(hashes.tolist(), deletes.tolist(), strict=True)):
            if clears:
                cleared.add(key)
            elif key in cleared:
                cuts.append(row)
                cleared.clear()
    if len(cuts) > 1 and (post.chunk is None or post.places is None):
        raise Invalid(
            f"row {cuts[1]} upserts a key that a row before it deletes, and the table has versions",
            hint="Send the rows from there on in a request of their own.",
            row=cuts[1],
            column=OP,
        )
    chunks = [post.chunk] if post.chunk is None or post.places is None else post.chunk.split(post.places, cuts)
    return [
        Post(
            post.rows.slice(start, stop - start),
            chunk,
            None if post.places is None else post.places.slice(start, stop),
            post.key,
            hashes[start:stop][~deletes[start:stop]],
            hashes[start:stop][deletes[start:stop]],
            post.growth,
        )
        for chunk, start, stop in zip(chunks, cuts, [*cuts[1:], post.rows.num_rows], strict=True)
    ]


def _first(mask: pa.ChunkedArray) -> int | None:
    row = int(pc.index(mask, pa.scalar(True)).as_py())
    return None if row < 0 else row
