"""A table whose rows are folded."""

from __future__ import annotations

import pytest

from folding import keys_in, put


@pytest.fixture
def folded(items):
    """40 rows in each of four vnodes, folded."""
    put(items, [key for vnode in range(4) for key in keys_in(vnode, 40)])
    items.compact()
    assert items.baseline.refresh().marks == (1,) * 4
    return items
