"""Graph algorithms over the tables of a lake, kept as fixed points (`sl.graph`)."""

from __future__ import annotations

from strandline.consumers.context import Context
from strandline.consumers.fixpoint import Fixpoint
from strandline.consumers.graph.component_method import ComponentMethod
from strandline.pipeline.addition import declare_fixpoint

__all__ = ["connected_components"]


def connected_components(
    lake: Context, name: str, *, edges: str, src: str = "src", dst: str = "dst", vnodes: int = 16
) -> Fixpoint:
    """Declare the connected components of an edge table as the table `name`: for each `node` that has an edge its
    `component`, which is the least node in it. The column `parent` is for the next run. The direction of edges does not
    count. A tick computes it; nothing is written before that."""
    method = ComponentMethod.of(lake.table(edges), src, dst, vnodes)
    return declare_fixpoint(lake, Fixpoint(lake, name, (edges,), method))
