"""Connected components, kept as a spanning forest.

Nodes are numbers. The label of a component is its least node by `order`, so it does not depend on the way that led to
it. The forest has a parent for each node that is no root. It says what a removed edge costs: an edge that is no part of
it costs nothing; another one only touches the subtree below it, which looks for another edge out.

Invariant: two nodes have the same root exactly when the edges connect them, and each parent is a neighbour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

Nodes = NDArray[np.int64]
Pairs = tuple[Nodes, Nodes]
"""Edges: the nodes at one end, and those at the other."""
Near = Callable[[Nodes], Pairs]
"""All edges of the graph that have one of these nodes at an end."""
NO_PARENT = -1


@dataclass
class Forest:
    """The label and the parent of each node."""

    label: Nodes
    parent: Nodes

    @staticmethod
    def of(count: int, edges: Pairs, order: Nodes) -> Forest:
        """The components of a whole graph with so many nodes."""
        nodes = np.arange(count)
        forest = Forest(nodes.copy(), np.full(count, NO_PARENT))
        forest._span(nodes, edges, order)
        return forest

    def grown(self, count: int) -> Forest:
        """A copy with more nodes, each a component of its own."""
        more = np.arange(len(self.label), count)
        label, parent = np.concatenate([self.label, more]), np.concatenate([self.parent, np.full(len(more), NO_PARENT)])
        return Forest(label, parent)

    def remove(self, edges: Pairs, order: Nodes, near: Near) -> None:
        """Follow the removal of edges. `near` no longer has them; it may have edges that are still to be added."""
        left, right = edges
        tops = np.unique(np.concatenate([left[self.parent[left] == right], right[self.parent[right] == left]]))
        if not len(tops):
            return
        is_loose = self._find_subtrees(tops)
        loose = np.flatnonzero(is_loose)
        left, right = near(loose)
        # Edges between components are still to be added.
        is_inside = self.label[left] == self.label[right]
        labels = np.unique(self.label[tops])
        self._relabel_rest(labels[is_loose[labels]], is_loose, order)
        self.label[loose], self.parent[loose] = loose, NO_PARENT
        self._span(loose, (left[is_inside], right[is_inside]), order)
        self._rename_lower(loose, order)

    def add(self, edges: Pairs, order: Nodes) -> None:
        """Follow the addition of edges."""
        left, right = edges
        is_new = self.label[left] != self.label[right]
        left, right = left[is_new], right[is_new]
        if not len(left):
            return
        labels, ends = np.unique(np.concatenate([self.label[left], self.label[right]]), return_inverse=True)
        ones, others = ends[: len(left)], ends[len(left) :]
        sizes = np.bincount(self.label, minlength=len(self.label))[labels]
        _, group = csgraph.connected_components(_matrix(len(labels), ones, others), directed=False)
        before = _grow_trees(len(labels), ones, others, _pick_largest(group, sizes))
        joins = {}
        for one, other, x, y in zip(ones.tolist(), others.tolist(), left.tolist(), right.tolist(), strict=True):
            joins[one, other], joins[other, one] = (x, y), (y, x)
        for at, source in enumerate(before.tolist()):
            if source != NO_PARENT:
                x, y = joins[source, at]
                self._make_root(y)
                self.parent[y] = x
        least = labels[_pick_largest(group, ~order[labels])]
        renamed = np.arange(len(self.label))
        renamed[labels] = least[group]
        self.label = renamed[self.label]

    def find_lonely(self, nodes: Nodes) -> Nodes:
        """Those of these nodes that are components of their own."""
        nodes = np.unique(nodes)
        nodes = nodes[(self.parent[nodes] == NO_PARENT) & (self.label[nodes] == nodes)]
        return nodes[~np.isin(nodes, self.parent)] if len(nodes) else nodes

    def _find_subtrees(self, tops: Nodes) -> NDArray[np.bool_]:
        """Whether each node is one of these or below one, looking twice as far up each time. A time that finds no node
        is the last: below a node at some distance there is none without one at each smaller distance."""
        found = np.zeros(len(self.parent), np.bool_)
        found[tops] = True
        up = np.where(self.parent == NO_PARENT, np.arange(len(self.parent)), self.parent)
        count, before = len(tops), 0
        while count > before:
            found |= found[up]
            up = up[up]
            count, before = int(np.count_nonzero(found)), count
        return found

    def _relabel_rest(self, labels: Nodes, is_loose: NDArray[np.bool_], order: Nodes) -> None:
        """Name what is left of these components anew: their least node is among the loose ones."""
        if not len(labels):
            return
        rest = np.flatnonzero(np.isin(self.label, labels) & ~is_loose)
        old, group = np.unique(self.label[rest], return_inverse=True)
        least = rest[_pick_largest(group, ~order[rest], len(old))]
        self.label[rest] = least[group]

    def _rename_lower(self, nodes: Nodes, order: Nodes) -> None:
        """Rename the components whose least node is among these, which have hung themselves on them."""
        labels, group = np.unique(self.label[nodes], return_inverse=True)
        least = nodes[_pick_largest(group, ~order[nodes])]
        is_lower = order[least] < order[labels]
        if is_lower.any():
            renamed = np.arange(len(self.label))
            renamed[labels[is_lower]] = least[is_lower]
            self.label = renamed[self.label]

    def _span(self, nodes: Nodes, edges: Pairs, order: Nodes) -> None:
        """Span these nodes, which have no parents, by edges that each have one of them at an end. They hang on other
        nodes where they have an edge to one; each other piece hangs on its node with the most edges."""
        number = np.full(len(self.label), NO_PARENT)
        number[nodes] = np.arange(len(nodes))
        left, right = number[edges[0]], number[edges[1]]
        is_inner = (left != NO_PARENT) & (right != NO_PARENT)
        hold = np.full(len(nodes), NO_PARENT)
        hold[right[left == NO_PARENT]] = edges[0][left == NO_PARENT]
        hold[left[right == NO_PARENT]] = edges[1][right == NO_PARENT]
        left, right = left[is_inner], right[is_inner]
        graph = _matrix(len(nodes), left, right)
        pieces, piece = csgraph.connected_components(graph, directed=False)
        is_held = np.zeros(pieces, np.bool_)
        is_held[piece[hold != NO_PARENT]] = True
        degree = np.bincount(left, minlength=len(nodes)) + np.bincount(right, minlength=len(nodes))
        hubs = _pick_largest(piece, degree, pieces)[~is_held]
        sources = np.concatenate([np.flatnonzero(hold != NO_PARENT), hubs])
        before = _grow_trees(len(nodes), left, right, sources)
        self.parent[nodes] = np.where(before == NO_PARENT, hold, nodes[before])
        # A piece without a hold is a component of its own; the others have the labels of what they hang on.
        least = nodes[_pick_largest(piece, ~order[nodes], pieces)]
        top = _find_tops(before)
        self.label[nodes] = np.where(is_held[piece], self.label[hold[top]], least[piece])

    def _make_root(self, node: int) -> None:
        """Turn the path from a node to its root around."""
        parent, before = self.parent, NO_PARENT
        while node != NO_PARENT:
            parent[node], before, node = before, node, int(parent[node])


def _matrix(count: int, left: Nodes, right: Nodes) -> sparse.csr_array:
    ones = np.ones(2 * len(left))
    ends = np.concatenate([left, right]), np.concatenate([right, left])
    return sparse.csr_array((ones, ends), shape=(count, count))


def _grow_trees(count: int, left: Nodes, right: Nodes, sources: Nodes) -> Nodes:
    """The node from which each node is first reached, breadth first from all sources together."""
    start = np.full(len(sources), count)
    matrix = _matrix(count + 1, np.concatenate([left, start]), np.concatenate([right, sources]))
    before = csgraph.breadth_first_order(matrix, count, directed=True, return_predecessors=True)[1][:count]
    found: Nodes = np.where((before < 0) | (before == count), NO_PARENT, before).astype(np.int64)
    return found


def _find_tops(before: Nodes) -> Nodes:
    """The first node of the tree of each node."""
    top = np.where(before == NO_PARENT, np.arange(len(before)), before)
    while not np.array_equal(further := top[top], top):
        top = further
    return top


def _pick_largest(group: Nodes, size: Nodes, count: int | None = None) -> Nodes:
    """The place of the largest of each group; the groups are numbers from 0 on, and none is empty."""
    count = int(group.max()) + 1 if count is None else count
    ordered = np.lexsort((size, group))
    is_last = np.append(group[ordered][1:] != group[ordered][:-1], True) if len(group) else np.zeros(0, np.bool_)
    picked: Nodes = ordered[is_last]
    assert len(picked) == count
    return picked
