"""The connected components of an edge table as a fixed point.

The result has a row for each node that has an edge: its component, which is the least node in it, and its parent in a
spanning forest, which lets the next run follow removed edges. The component is the same as after a cold start; the
forest may be another one. Numbers stand for nodes while it is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.consumers.fixpoint import Computed, Run
from strandline.consumers.graph.components import NO_PARENT, Forest, Nodes, Pairs
from strandline.engines.scan import listed, quoted
from strandline.errors import Invalid
from strandline.model.definition import TableDef
from strandline.tables.difference import difference
from strandline.tables.merge import duck_sql
from strandline.tables.store import TableStore

NODE, COMPONENT, PARENT = "node", "component", "parent"
_VERSION = 1
_SHOWN = 5


@dataclass(frozen=True)
class ComponentMethod:
    """The method. `src` and `dst` are the columns of the edge table; the direction of an edge does not count."""

    edges: str
    src: str
    dst: str
    kind: pa.DataType
    vnodes: int = 16

    @staticmethod
    def of(table: TableStore, src: str, dst: str, vnodes: int) -> ComponentMethod:
        schema = table.definition.schema
        for name in (src, dst):
            if name not in schema.names:
                raise Invalid(
                    f"table {table.name!r} has no column {name!r}; it has: {', '.join(schema.names)}", column=name
                )
        if src == dst:
            raise Invalid(f"{src!r} is given for both ends of an edge", hint="Name two columns.", column=src)
        one, other = schema.field(src).type, schema.field(dst).type
        if one != other:
            raise Invalid(f"{src!r} is {one} and {dst!r} is {other}; both ends of an edge need one type", column=dst)
        return ComponentMethod(table.name, src, dst, one, vnodes)

    @property
    def engine(self) -> str:
        return "driver"

    @cached_property
    def definition(self) -> TableDef:
        fields = [pa.field(NODE, self.kind, False), pa.field(COMPONENT, self.kind), pa.field(PARENT, self.kind)]
        return TableDef.declare(pa.schema(fields), key=[NODE], vnodes=self.vnodes)

    @property
    def fingerprint(self) -> str:
        return f"connected_components {_VERSION} {self.src} {self.dst}"

    def to_dict(self) -> dict[str, Any]:
        return {"algorithm": "connected_components", "edges": self.edges, "src": self.src, "dst": self.dst}

    def compute(self, run: Run) -> Computed:
        (edges,) = run.inputs
        kept = run.kept.to_arrow(columns=[NODE, COMPONENT, PARENT])
        if run.why:
            found = edges.table.to_arrow(at=edges.upto, columns=[self.src, self.dst])
            return self._compare(kept, *self._compute_cold(found), is_warm=False, why=run.why)
        assert edges.after is not None
        change = difference(edges.table, edges.after, edges.upto, [self.src, self.dst])
        return self._move_on(kept, self._ends(change.before), self._ends(change.after), edges.table, edges.upto)

    def compare(self, run: Run) -> tuple[int, list[dict[str, Any]]]:
        (edges,) = run.inputs
        found = edges.table.to_arrow(at=edges.upto, columns=[self.src, self.dst])
        nodes, forest = self._compute_cold(found)
        want = dict(zip(nodes.to_pylist(), nodes.take(pa.array(forest.label)).to_pylist(), strict=True))
        kept = run.kept.to_arrow(columns=[NODE, COMPONENT])
        have = dict(zip(kept[NODE].to_pylist(), kept[COMPONENT].to_pylist(), strict=True))
        wrong = [node for node in {**want, **have} if want.get(node) != have.get(node)]
        return len(wrong), [{NODE: node} for node in wrong[:_SHOWN]]

    def _ends(self, edges: pa.Table) -> pa.Table:
        """The two ends of edges. An edge with an end that is null is none."""
        found = edges.select([self.src, self.dst]).rename_columns([NODE, PARENT])
        return found.filter(pc.and_(pc.is_valid(found[NODE]), pc.is_valid(found[PARENT])))

    def _compute_cold(self, edges: pa.Table) -> tuple[pa.Array, Forest]:
        ends = self._ends(edges)
        both = pa.chunked_array([*ends[NODE].chunks, *ends[PARENT].chunks], self.kind)
        nodes = _sorted_values(both)
        pairs = _numbers(ends[NODE], nodes), _numbers(ends[PARENT], nodes)
        return nodes, Forest.of(len(nodes), pairs, np.arange(len(nodes)))

    def _move_on(self, kept: pa.Table, before: pa.Table, after: pa.Table, table: TableStore, upto: int) -> Computed:
        old_nodes = kept[NODE].combine_chunks()
        ends = pa.chunked_array([*after[NODE].chunks, *after[PARENT].chunks], self.kind)
        fresh = _sorted_values(ends.filter(pc.invert(pc.is_in(ends, value_set=old_nodes))))
        nodes = pa.concat_arrays([old_nodes, fresh])
        forest = Forest(_numbers(kept[COMPONENT], old_nodes), _numbers(kept[PARENT], old_nodes, NO_PARENT))
        forest = forest.grown(len(nodes))
        was = Forest(forest.label.copy(), forest.parent.copy())
        order = _order_of(nodes)
        removed = _numbers(before[NODE], nodes), _numbers(before[PARENT], nodes)
        added = _numbers(after[NODE], nodes), _numbers(after[PARENT], nodes)
        near = self._make_near(table, upto, nodes)
        # An edge that another row has too is still there.
        is_there = np.isin(_codes(removed, len(nodes)), _codes(added, len(nodes)))
        removed = removed[0][~is_there], removed[1][~is_there]
        forest.remove(removed, order, near)
        forest.add(added, order)
        lonely = forest.find_lonely(np.concatenate([*removed]))
        has_edge = np.unique(np.concatenate(near(lonely))) if len(lonely) else lonely
        gone = np.setdiff1d(lonely, has_edge)
        is_gone = np.zeros(len(nodes), np.bool_)
        is_gone[gone] = True
        is_new = np.arange(len(nodes)) >= len(old_nodes)
        changed = np.flatnonzero(((forest.label != was.label) | (forest.parent != was.parent) | is_new) & ~is_gone)
        deletes = pa.table({NODE: nodes.take(pa.array(gone[gone < len(old_nodes)]))})
        rows = _rows_of(nodes, forest, changed)
        return Computed([rows.num_rows], True, is_warm=True, upserts=rows, deletes=deletes)

    def _make_near(self, table: TableStore, upto: int, nodes: pa.Array) -> Callable[[Nodes], Pairs]:
        src, dst = quoted(self.src), quoted(self.dst)

        def near(chosen: Nodes) -> Pairs:
            if not len(chosen):
                return np.zeros(0, np.int64), np.zeros(0, np.int64)
            wanted = pa.table({"v": nodes.take(pa.array(chosen))})
            merge = table.merge(upto)
            with table.duck.transaction() as cursor:
                rows = duck_sql(merge, table.pinned_fold(cursor, merge), [self.src, self.dst])
                cursor.register("_near", wanted)
                try:
                    sql = (
                        f"SELECT {listed([self.src, self.dst])} FROM ({rows}) e WHERE {src} IN (SELECT v FROM _near)"
                        f" OR {dst} IN (SELECT v FROM _near)"
                    )
                    found = cursor.sql(sql).to_arrow_table()
                finally:
                    cursor.unregister("_near")
            ends = self._ends(found)
            return _numbers(ends[NODE], nodes), _numbers(ends[PARENT], nodes)

        return near

    def _compare(self, kept: pa.Table, nodes: pa.Array, forest: Forest, *, is_warm: bool, why: str) -> Computed:
        """The changes from the kept rows to those of a whole graph."""
        at = _numbers(nodes, kept[NODE].combine_chunks(), NO_PARENT)
        label, parent = nodes.take(pa.array(forest.label)), _parents(nodes, forest.parent)
        known = pa.array(at, mask=at == NO_PARENT)
        same = pc.and_(
            pc.equal(label, kept[COMPONENT].combine_chunks().take(known)),
            _equal_or_null(parent, kept[PARENT].combine_chunks().take(known)),
        )
        changed = np.flatnonzero(~pc.fill_null(same, False).to_numpy(zero_copy_only=False))
        gone = kept[NODE].filter(pc.invert(pc.is_in(kept[NODE], value_set=nodes)))
        rows = _rows_of(nodes, forest, changed)
        return Computed([rows.num_rows], True, is_warm, why, rows, pa.table({NODE: gone}))


def _sorted_values(values: pa.ChunkedArray) -> pa.Array:
    """The distinct values in order."""
    found = values.unique()
    return found.take(pc.sort_indices(found))


def _numbers(values: pa.ChunkedArray | pa.Array, nodes: pa.Array, missing: int | None = None) -> Nodes:
    """The numbers of nodes; `missing` for those without one."""
    found = pc.index_in(values, value_set=nodes)
    if missing is not None:
        found = pc.fill_null(found, missing)
    found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    return np.asarray(found.to_numpy(zero_copy_only=False), np.int64)


def _order_of(nodes: pa.Array) -> Nodes:
    """The place of each node among all in the order of their values."""
    place = np.empty(len(nodes), np.int64)
    place[pc.sort_indices(nodes).to_numpy()] = np.arange(len(nodes))
    return place


def _codes(pairs: Pairs, count: int) -> Nodes:
    """A number for each pair, whichever way round it is."""
    left, right = np.minimum(*pairs), np.maximum(*pairs)
    return left * count + right


def _parents(nodes: pa.Array, parent: Nodes) -> pa.Array:
    return nodes.take(pa.array(parent, mask=parent == NO_PARENT))


def _equal_or_null(one: pa.Array, other: pa.Array) -> pa.Array:
    both_null = pc.and_(pc.is_null(one), pc.is_null(other))
    return pc.or_(pc.fill_null(pc.equal(one, other), False), both_null)


def _rows_of(nodes: pa.Array, forest: Forest, chosen: Nodes) -> pa.Table:
    label, parent = forest.label[chosen], forest.parent[chosen]
    columns = {NODE: nodes.take(pa.array(chosen)), COMPONENT: nodes.take(pa.array(label))}
    return pa.table({**columns, PARENT: _parents(nodes, parent)})
