"""Files of every format are read as rows of one table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bad_rows
import strandline as sl
from strandline.jobs.column_names import ColumnMatcher
from strandline.jobs.ingest.bad_rows import BadRow
from strandline.jobs.ingest.file_reader import FileReader
from strandline.jobs.ingest.loaded_files import LoadedFiles
from strandline.jobs.ingest.plan import plan
from strandline.jobs.ingest.source import find
from strandline.jobs.ingest.text_options import TextOptions
from strandline.model.checked_rows import CheckedRows
from support import refused

flat = bad_rows.flat


def test_rows_and_bad_rows_come_from_every_format(flat: sl.Table, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n\n1,2\nx,2\n")
    (tmp_path / "b.jsonl").write_text('{"id": 2}\n{"id": "x"}\n')
    pq.write_table(pa.table({"id": [3, None]}), tmp_path / "c.parquet")
    planned = plan(find([str(tmp_path / "*.*")], None), LoadedFiles({}, 0), is_keyed=True)
    told: list[int] = []
    reader = FileReader(
        flat.definition, TextOptions(), ColumnMatcher(flat.definition), lambda step, size: told.append(size)
    )
    for at, step in enumerate(planned.steps):
        found = list(reader.read(step))
        good = [row["id"] for each in found if isinstance(each, CheckedRows) for row in each.table.to_pylist()]
        assert good == [at + 1]
        assert [each.line for each in found if isinstance(each, BadRow)] == [3 if at == 0 else 2]
        assert told[-1] == step.bytes
    assert len(reader.loaded) == 3
    assert list(reader.dialects) == [str(tmp_path / "a.csv")]


def test_a_file_that_grows_while_its_last_line_is_read_is_read_again(flat: sl.Table, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n\n1,2")
    planned = plan(find([str(tmp_path / "a.csv")], None), LoadedFiles({}, 0), is_keyed=True, last_line="load")
    with (tmp_path / "a.csv").open("a") as file:
        file.write("3\n")
    with refused(sl.Conflict):
        list(FileReader(flat.definition, TextOptions(), ColumnMatcher(flat.definition)).read(planned.steps[0]))
    loading = TextOptions(last_line="load")
    assert list(FileReader(flat.definition, loading, ColumnMatcher(flat.definition)).read(planned.steps[0]))


@pytest.mark.parametrize("said", [{"n": "int32"}, {}])
def test_options_reach_the_files(flat: sl.Table, lake: sl.Lake, tmp_path: Path, said: dict[str, str]) -> None:
    (tmp_path / "a.csv").write_text("id,n\n1,NA\n")
    assert lake.ingest("flat", [str(tmp_path / "a.csv")], null="NA", types=said).rows == 1
