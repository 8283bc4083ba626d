"""What a body will take in memory, counted before it is taken.

A few bytes can stand for very many: compressed buffers, dictionaries, views that share a text, columns of nulls, empty
objects. So a request first adds up what its rows become in all their later forms (as they came, in the table's types,
sorted, encoded), and claims that of the server's budget. Only then is it decoded.
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
"""How often a value is held at once: as it came, in the table's type, sorted, and in the file under way."""
LONGEST_COPIES = 9
"""How often the longest row is held beside that, while its file is written: by its row group, and as the least and the
greatest value of its page, column and index."""
ROW_BYTES = 160
"""What a row takes beside its values: `_op`, its hash, its place in the order."""
SLOT_BYTES = 8
"""What a value takes at least, also one that is null."""


def _unbounded(_: int) -> None:
    pass


@dataclass
class Weight:
    """What one body takes. `hold` is told of it beforehand, and may refuse it when others leave no room."""

    most_bytes: int
    most_rows: int
    most_columns: int
    hold: Callable[[int], None] = _unbounded
    bytes: int = 0

    def add(self, size: int) -> None:
        """So much is about to be taken, until the request is answered."""
        self._check(self.bytes + size)
        self.bytes += size

    def add_longest(self, rows: pa.Table) -> None:
        """Rows in the table's types are about to be written."""
        sizes = (sum(map(row_bytes, batch.columns), np.zeros(batch.num_rows, np.int64)) for batch in rows.to_batches())
        self.add(LONGEST_COPIES * max((int(each.max(initial=0)) for each in sizes), default=0))

    @contextmanager
    def lent(self, size: int) -> Iterator[None]:
        """So much is taken while the block lasts."""
        self.add(size)
        try:
            yield
        finally:
            self.bytes -= size
            self.hold(self.bytes)

    def check_work(self, size: int) -> None:
        """So many bytes are looked at again and again, which takes time and no memory."""
        if size > self.most_bytes:
            raise too_large(f"the body makes {size} bytes of work; at most {self.most_bytes} are taken")

    def check_rows(self, rows: int) -> None:
        if rows > self.most_rows:
            raise too_large(
                f"the body has {rows} rows or more; at most {self.most_rows} are taken", limit=self.most_rows
            )

    def _check(self, size: int) -> None:
        if size > self.most_bytes:
            raise too_large(
                f"the body's rows take {size} bytes or more in memory; at most {self.most_bytes} are taken",
                limit=self.most_bytes,
            )
        self.hold(size)


def slots(kind: pa.DataType | pa.Schema) -> int:
    """How many values a null of a type has in it."""
    if isinstance(kind, pa.Schema):
        return sum(slots(field.type) for field in kind)
    if isinstance(kind, pa.BaseExtensionType):
        return slots(kind.storage_type)
    if pt.is_struct(kind):
        return 1 + sum(slots(field.type) for field in kind)
    return 2 if pt.is_decimal(kind) else 1


def rows_bytes(rows: int, columns: int) -> int:
    """What rows take that have so many values, all of them null."""
    return rows * (ROW_BYTES + COPIES * SLOT_BYTES * columns)
