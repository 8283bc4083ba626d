"""Keys of one vnode, rows for them, and which vnodes are due for a fold."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa

import strandline as sl
from strandline.consumers.compaction_plan import plan
from strandline.consumers.fold_files import fold_on_driver
from strandline.model.keys import hash_keys, vnode_of

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
TIMED = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("name", pa.string())])


def keys_in(vnode, count, *, vnodes=4, start=0):
    """The first `count` whole numbers from `start` on whose key falls into a vnode."""
    numbers = range(start, start + 64 * vnodes * (count + 1))
    hashes = hash_keys([pa.array(numbers, pa.int64())]).to_pylist()
    return [n for n, hash_ in zip(numbers, hashes, strict=True) if vnode_of(hash_, vnodes) == vnode][:count]


def put(table, keys, name="x"):
    return table.upsert([{"id": key, "name": name} for key in keys])


def due(table, **options):
    return [need.vnode for need in plan(table, **options).due]


def rows_by_key(table, rows):
    return {name: pa.array([row[name] for row in rows], table.schema.field(name).type) for name in table.definition.key}


NOW = {"keep": 0, "grace": 0}


def again(table):
    """The same table as another process would open it."""
    return sl.Lake(table.log.storage.uri).table(table.name)


def fill(table, commits=4, start=0):
    for at in range(start, start + commits):
        table.upsert([{"id": at, "name": f"n{at}"}, {"id": -1, "name": f"last{at}"}])


def fold_vnodes(table, vnodes):
    """Fold only these vnodes, as a tick with little time does."""
    part = table.merge().part(vnodes)
    added, removed = fold_on_driver(table, part)
    table.baseline.commit_fold(
        part.baseline, part.definition, upto=part.seq, vnodes=vnodes, idle=(), removed=removed, added=added
    )
