"""Rows that are too many for the driver: kept as files in the order they came, read by Spark, gone afterwards."""

import pyarrow as pa
import pytest

from strandline.storage.local import LocalStorage
from strandline.tables.overflow import OverflowFiles
from support import files_below


def pieces(*sizes):
    start = 0
    for size in sizes:
        yield pa.table({"id": pa.array(range(start, start + size), pa.int64())})
        start += size


def test_rows_come_back_with_the_place_that_they_came_at(spark, tmp_path):
    with OverflowFiles(LocalStorage(str(tmp_path)), "log") as spool:
        held = list(pieces(3, 4))
        spool.add_all(held, pieces(2))
        assert held == []
        rows = spool.frame(spark).orderBy(OverflowFiles.ORDER).collect()
    assert [(row["id"], row[OverflowFiles.ORDER]) for row in rows] == [
        *((at, at) for at in range(7)),
        (0, 7),
        (1, 8),
    ]


def test_the_files_lie_beside_the_log_and_go_with_the_block(tmp_path):
    with pytest.raises(KeyError), OverflowFiles(LocalStorage(str(tmp_path)), "log") as spool:
        spool.add_all(list(pieces(5)), ())
        (file,) = files_below(tmp_path)
        assert file.startswith("log/spool-")
        raise KeyError
    assert files_below(tmp_path) == set()
