"""Connected components of random graphs that change: always those of a cold start, and of networkx."""

from __future__ import annotations

import networkx
import numpy as np
import pytest

from strandline.consumers.graph.components import NO_PARENT, Forest

SEEDS = range(150)


class Graph:
    """A multigraph with its forest, moved on by batches of added and removed edges."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.count = int(self.rng.integers(1, 40))
        # Nodes in no order: the numbers of nodes say nothing of their values.
        self.order = self.rng.permutation(self.count)
        self.edges = [self.pick() for _ in range(int(self.rng.integers(0, 60)))]
        self.forest = Forest.of(self.count, self.pairs(self.edges), self.order)

    def pick(self) -> tuple[int, int]:
        return int(self.rng.integers(self.count)), int(self.rng.integers(self.count))

    def pairs(self, edges):
        made = np.array(edges, np.int64).reshape(-1, 2)
        return made[:, 0], made[:, 1]

    def near(self, nodes):
        wanted = set(nodes.tolist())
        return self.pairs([edge for edge in self.edges if wanted & set(edge)])

    def change(self) -> None:
        rng = self.rng
        more = int(rng.integers(0, 4))
        self.count += more
        self.order = np.concatenate([self.order, np.arange(self.count - more, self.count)])
        self.forest = self.forest.grown(self.count)
        gone = rng.random(len(self.edges)) < rng.choice([0.0, 0.05, 0.3, 1.0], p=[0.3, 0.4, 0.25, 0.05])
        removed = [edge for edge, is_gone in zip(self.edges, gone, strict=True) if is_gone]
        added = [self.pick() for _ in range(int(rng.choice([0, 1, 3, 30])))]
        self.edges = [edge for edge, is_gone in zip(self.edges, gone, strict=True) if not is_gone] + added
        self.forest.remove(self.pairs(removed), self.order, self.near)
        self.forest.add(self.pairs(added), self.order)

    def check(self) -> None:
        graph = networkx.Graph()
        graph.add_nodes_from(range(self.count))
        graph.add_edges_from(self.edges)
        label = np.empty(self.count, np.int64)
        for part in networkx.connected_components(graph):
            nodes = np.array(sorted(part))
            label[nodes] = nodes[np.argmin(self.order[nodes])]
        assert self.forest.label.tolist() == label.tolist()
        cold = Forest.of(self.count, self.pairs(self.edges), self.order)
        assert cold.label.tolist() == label.tolist()
        for forest in (self.forest, cold):
            self.check_forest(graph, forest)

    def check_forest(self, graph, forest) -> None:
        """Each component is a tree of its edges."""
        tree = networkx.Graph()
        tree.add_nodes_from(range(self.count))
        held = np.flatnonzero(forest.parent != NO_PARENT)
        for node in held.tolist():
            assert graph.has_edge(node, int(forest.parent[node]))
            tree.add_edge(node, int(forest.parent[node]))
        assert networkx.is_forest(tree) and tree.number_of_edges() == len(held)
        assert networkx.number_connected_components(tree) == networkx.number_connected_components(graph)


@pytest.mark.parametrize("seed", SEEDS)
def test_components_follow_any_change(seed):
    graph = Graph(seed)
    graph.check()
    for _ in range(12):
        graph.change()
        graph.check()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 4000))
def test_components_follow_any_change_in_thousands_of_graphs(seed):
    test_components_follow_any_change(seed)


def built(count, edges):
    left, right = np.array(edges, np.int64).reshape(-1, 2).T
    return Forest.of(count, (left, right), np.arange(count))


def near_of(edges):
    def near(nodes):
        kept = [edge for edge in edges if set(edge) & set(nodes.tolist())]
        left, right = np.array(kept, np.int64).reshape(-1, 2).T
        return left, right

    return near


def test_a_long_path_is_cut_in_the_middle_and_joined_again():
    count = 5000
    edges = [(at, at + 1) for at in range(count - 1)]
    forest = built(count, edges)
    left = [edge for edge in edges if edge != (2000, 2001)]
    cut = np.array([2000]), np.array([2001])
    forest.remove(cut, np.arange(count), near_of(left))
    assert forest.label.tolist() == [0] * 2001 + [2001] * (count - 2001)
    forest.add(cut, np.arange(count))
    assert forest.label.tolist() == [0] * count


def test_a_removed_edge_outside_of_the_forest_costs_nothing():
    edges = [(0, 1), (1, 2), (2, 0)]
    forest = built(3, edges)
    spare = next(edge for edge in edges if forest.parent[edge[0]] != edge[1] and forest.parent[edge[1]] != edge[0])

    def near(nodes):
        raise AssertionError("nothing has to be looked up")

    forest.remove((np.array([spare[0]]), np.array([spare[1]])), np.arange(3), near)
    assert forest.label.tolist() == [0, 0, 0]


def test_lonely_nodes_are_found():
    forest = built(5, [(0, 1), (3, 3)])
    assert forest.find_lonely(np.arange(5)).tolist() == [2, 3, 4]
    assert forest.find_lonely(np.zeros(0, np.int64)).tolist() == []
