"""The memory that a body will need, counted before it is decoded.

A few bytes can become very many: compressed buffers, dictionaries, views that share a text, columns of nulls, empty
objects. So a request first adds up the size of its rows in all their later forms (as received, in the table's types,
sorted, encoded), and claims this memory from the server's budget. Only then is it decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from strandline.sinks.forward.refusal import too_large
from strandline.storage.parquet.rowgroup import row_bytes

COPIES = 4
"""How many copies of a value exist at once: as received, in the table's type, sorted, and in the new file."""
LONGEST_COPIES = 9
"""How many more copies of the longest row exist while its file is written: in its row group, and as the minimum and the
maximum of its page, column and index."""
ROW_BYTES = 160
"""The memory of a row beside its values: `_op`, its hash, its position."""
SLOT_BYTES = 8
"""The least memory of a value, also of null."""


def _allow_all(_: int) -> None:
    pass


@dataclass
class Weight:
    """The memory of one body. `hold` gets each new total first, and refuses it when other requests leave no room."""

    most_bytes: int
    most_rows: int
    most_columns: int
    hold: Callable[[int], None] = _allow_all
    bytes: int = 0

    def add(self, size: int) -> None:
        """Count memory that is needed until the request is answered."""
        self._check_bytes(self.bytes + size)
        self.bytes += size

    def add_longest(self, rows: pa.Table) -> None:
        """Count the memory for writing these rows, which are in the table's types."""
        sizes = (sum(map(row_bytes, batch.columns), np.zeros(batch.num_rows, np.int64)) for batch in rows.to_batches())
        self.add(LONGEST_COPIES * max((int(each.max(initial=0)) for each in sizes), default=0))

    @contextmanager
    def borrow(self, size: int) -> Iterator[None]:
        """Count memory that is needed only inside the block."""
        self.add(size)
        try:
            yield
        finally:
            self.bytes -= size
            self.hold(self.bytes)

    def check_work(self, size: int) -> None:
        """Limit the bytes that are read again and again, which takes time but no memory."""
        if size > self.most_bytes:
            raise too_large(f"the body makes {size} bytes of work; the limit is {self.most_bytes}")

    def check_rows(self, rows: int) -> None:
        if rows > self.most_rows:
            raise too_large(f"the body has {rows} rows or more; the limit is {self.most_rows}", limit=self.most_rows)

    def _check_bytes(self, size: int) -> None:
        if size > self.most_bytes:
            raise too_large(
                f"the body's rows take {size} bytes or more in memory; the limit is {self.most_bytes}",
                limit=self.most_bytes,
            )
        self.hold(size)


def slots(kind: pa.DataType | pa.Schema) -> int:
    """How many values a null of this type takes, fields of structs included."""
    if isinstance(kind, pa.Schema):
        return sum(slots(field.type) for field in kind)
    if isinstance(kind, pa.BaseExtensionType):
        return slots(kind.storage_type)
    if pt.is_struct(kind):
        return 1 + sum(slots(field.type) for field in kind)
    return 2 if pt.is_decimal(kind) else 1


def rows_bytes(rows: int, columns: int) -> int:
    """The memory of rows with this many columns, all of them null."""
    return rows * (ROW_BYTES + COPIES * SLOT_BYTES * columns)
