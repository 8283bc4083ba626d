"""Rows of a table, and the values that their caller did not give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CheckedRows:
    """Rows with the columns of a table. `lacking` tells for each column in which rows no value was given, not even
    null; the rows have null there. Columns that all rows have are not in it.

    `by_row`: the rows are objects, so each may lack other columns."""

    table: pa.Table
    lacking: Mapping[str, Mask] = field(default_factory=dict)
    by_row: bool = False

    @classmethod
    def of_columns(cls, table: pa.Table, lacking: Sequence[str]) -> CheckedRows:
        """Rows that all lack the same columns."""
        return cls(table, {name: np.ones(table.num_rows, np.bool_) for name in lacking})

    @classmethod
    def concat(cls, pieces: Sequence[CheckedRows]) -> CheckedRows:
        """One piece with the rows of all, in their order. There is at least one."""
        names = dict.fromkeys(name for piece in pieces for name in piece.lacking)
        lacking = {name: np.concatenate([piece.lacks(name) for piece in pieces]) for name in names}
        return cls(pa.concat_tables([piece.table for piece in pieces]), lacking, any(p.by_row for p in pieces))

    def lacks(self, name: str) -> Mask:
        """Which rows lack a column."""
        return self.lacking.get(name, np.zeros(self.table.num_rows, np.bool_))

    def take(self, rows: npt.NDArray[np.int64]) -> CheckedRows:
        """Some of the rows, in this order."""
        table = self.table.take(pa.array(rows, pa.int64()))
        masks = {name: mask[rows] for name, mask in self.lacking.items()}
        return CheckedRows(table, {name: mask for name, mask in masks.items() if mask.any()}, self.by_row)
