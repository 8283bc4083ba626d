"""A checked request: its rows, the operation of each, and what makes the request count once.

A request is validated before it is grouped with others, so a bad one never affects them.
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
    """Rows with `_op` and the table's columns, in the order in which they apply.

    The rows of a chunk have `places`; `key` is the `Idempotency-Key` of a request that is not a chunk. For a table with
    versions, `upserted` and `deleted` are the hashes of the keys. The table needs `growth` first. `replay` has the seq
    at which the rows of dead letters were read."""

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
    """The columns of a row beside the table's. Outside of a chunk the place is ignored."""
    return [pa.field(OP, pa.string(), not is_chunk), *(pa.field(name, pa.int64(), not is_chunk) for name in PLACE)]


def make_posts(
    rows: pa.Table,
    definition: TableDef,
    *,
    chunk: ChunkHeader | None = None,
    key: Key | None = None,
    growth: Growth | None = None,
) -> list[Post]:
    """The rows of a request as one post; a chunk for a table with versions as one post per commit that it needs.
    `definition` is the table after `growth`."""
    columns = [field if field.name in definition.key else field.with_nullable(True) for field in definition.schema]
    wanted = pa.schema([*hidden_columns(is_chunk=chunk is not None), *columns])
    # A body without rows cannot be wrong. A chunk without rows still moves its positions.
    rows = next(check_rows(rows, wanted)) if rows.num_rows else wanted.empty_table()
    ops = pc.fill_null(rows.column(OP), UPSERT)
    is_delete = pc.equal(ops, DELETE)
    _check_ops(ops, is_delete, definition)
    _check_required(rows, is_delete, definition)
    places = None
    if chunk is not None:
        places = chunk.places(*(_to_numbers(rows.column(name)) for name in (VNODE, SEQ, INDEX)))
    rows = rows.select(definition.schema.names)
    if pc.any(is_delete, min_count=0).as_py():
        rows = _clear_deleted(rows, is_delete, definition)
    rows = rows.add_column(0, columns_of(definition).field(OP), ops)
    if definition.version is None:
        return [Post(rows, chunk, places, key, growth=growth)]
    return _split_by_version(Post(rows, chunk, places, key, growth=growth), definition, is_delete)


def _to_numbers(column: pa.ChunkedArray) -> Numbers:
    return np.asarray(column.to_numpy(), np.int64)


def _check_ops(ops: pa.ChunkedArray, is_delete: pa.ChunkedArray, definition: TableDef) -> None:
    is_unknown = pc.invert(pc.or_(is_delete, pc.equal(ops, UPSERT)))
    row = _first_true(is_unknown)
    if row is not None:
        raise Invalid(
            f"row {row}, column {OP!r}: {ops[row].as_py()!r:.40} is neither {UPSERT!r} nor {DELETE!r}",
            row=row,
            column=OP,
        )
    row = None if definition.is_keyed else _first_true(is_delete)
    if row is not None:
        raise Invalid(f"row {row}: the table has no key, so nothing can be deleted from it", row=row, column=OP)


def _check_required(rows: pa.Table, is_delete: pa.ChunkedArray, definition: TableDef) -> None:
    """Upserts have a value in every required column; deletes need only the key."""
    for field in definition.schema:
        if field.nullable or field.name in definition.key or not rows.column(field.name).null_count:
            continue
        row = _first_true(pc.and_(pc.is_null(rows.column(field.name)), pc.invert(is_delete)))
        if row is not None:
            raise Invalid(
                f"row {row}, column {field.name!r}: a value is required, found null", row=row, column=field.name
            )


def _clear_deleted(rows: pa.Table, is_delete: pa.ChunkedArray, definition: TableDef) -> pa.Table:
    """The rows; those that delete keep only their key."""
    places = pa.array(range(rows.num_rows), pa.int64())
    kept = pc.if_else(is_delete, pa.scalar(None, pa.int64()), places)
    for at, field in enumerate(rows.schema):
        column = rows.column(at)
        if field.name not in definition.key and pc.any(pc.and_(is_delete, column.is_valid())).as_py():
            rows = rows.set_column(at, field, column.take(kept))
    return rows


def _split_by_version(post: Post, definition: TableDef, is_delete: pa.ChunkedArray) -> list[Post]:
    """Split a post for a table with versions. After a delete any version of the key counts. A commit has one change
    per key, so an upsert after a delete of its key needs another commit."""
    hashes = _to_numbers(pa.chunked_array([hash_keys([post.rows.column(name) for name in definition.key])]))
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


def _first_true(mask: pa.ChunkedArray) -> int | None:
    row = int(pc.index(mask, pa.scalar(True)).as_py())
    return None if row < 0 else row
