"""Files read in parts give the rows, the bad rows and the memory of files read as a whole. No Spark is needed."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.jobs.column_names import ColumnMatcher
from strandline.jobs.ingest import parts as cutting
from strandline.jobs.ingest.bad_rows import BadRow, keep_row
from strandline.jobs.ingest.file_reader import FileReader
from strandline.jobs.ingest.part_lane import ORDER, PartLane
from strandline.jobs.ingest.part_report import Reports, choose_attempt
from strandline.jobs.ingest.parts import cut_parts
from strandline.jobs.ingest.plan import Step
from strandline.jobs.ingest.source import find
from strandline.jobs.ingest.text_options import TextOptions
from strandline.model.types import conform, storage_schema
from strandline.tables.rejects import RejectedRows, Rejects
from support import ITEMS, refused

LINES = ['{"id": %d, "name": "n%d"}', '{"id": %d, "qty": %d}', '{"id": %d, "name": "é\\n%d"}']
NAMES = ["file", "line", "column", "reason", "text", "names", "dialect"]
BAD = ["oops", '{"id": "x"}', '{"id": 1, "other": 2}', '{"id": 1', "[1]", '{"id": 1} {"id": 2}', "", "  ", "{}"]


class Setting:
    """A table in a new lake, whose files are read in both ways."""

    def __init__(self, folder: Path, schema: pa.Schema = ITEMS) -> None:
        self.folder = folder
        self.table = sl.Lake(folder / "lake").create_table("items", schema)

    def steps(self, *patterns: str, **options: Any) -> list[Step]:
        named = [str(self.folder / pattern) for pattern in patterns]
        return [Step(source, "load", "new") for source in find(named, None, **options)]

    def read_whole(self, steps: list[Step], text: TextOptions) -> tuple[Any, ...]:
        definition = self.table.definition
        names = ColumnMatcher(definition, None, steps[0].source.skip)
        rows, bad, loaded = [], [], []
        for step in steps:
            reader = FileReader(definition, text, names)
            for found in reader.read(step):
                if isinstance(found, BadRow):
                    bad.append(keep_row(step.source, found))
                else:
                    rows += conform(found.table, storage_schema(found.table.schema)).to_pylist()
            loaded += reader.loaded
        return rows, bad, [(each.size, each.lines, each.is_open, each.digest) for each in loaded]

    def lane(self, steps: list[Step], text: TextOptions, *, is_strict: bool = False) -> PartLane:
        log = self.table.log
        self.reports = Reports(log.storage, log.folder)
        self.parts = cut_parts(steps, 2)
        tokens = None if is_strict else tuple(step.source.uri for step in steps)
        entry, definition = self.table.entry, self.table.definition
        return PartLane(
            log.storage, entry, self.reports, definition, text, None, self.parts.pieces, tokens, frozenset(), True
        )

    def run(self, lane: PartLane) -> list[dict[str, Any]]:
        numbers = pa.record_batch({"id": pa.array(reversed(range(len(self.parts))), pa.int64())})
        rows = [row for batch in lane(iter([numbers])) for row in batch.to_pylist()]
        return sorted(rows, key=lambda row: row[ORDER])

    def read_parts(self, steps: list[Step], text: TextOptions) -> tuple[Any, ...]:
        rows = self.run(self.lane(steps, text))
        for row in rows:
            del row[ORDER]
        reports = [choose_attempt(attempts) for attempts in self.reports.read()]
        self.reports.delete()
        for report in reports:
            if report.error is not None:
                raise report.error
        rejects = Rejects(self.table.log.storage, self.table.entry)
        batch = RejectedRows(rejects)
        batch.take_files([file for report in reports for file in report.rejects], [])
        bad = [row for file in batch.give_files() for row in rejects.read(file).select(NAMES).to_pylist()]
        loaded = {}
        for piece in (piece for report in reports for piece in report.pieces):
            loaded[piece.at] = (piece.size, piece.lines, piece.is_open, piece.digest)
        for at, each in self.parts.cut.items():
            loaded[at] = (each.size, each.lines, each.is_open, each.digest)
        return rows, bad, list(loaded.values())

    def check(self, *patterns: str, text: TextOptions | None = None, **options: Any) -> tuple[Any, ...]:
        """Both ways give the same; returns the rows and bad rows."""
        text, steps = text or TextOptions(), self.steps(*patterns, **options)
        rows, bad, loaded = self.read_whole(steps, text)
        found, others, remembered = self.read_parts(steps, text)
        assert found == rows
        place = lambda row: (row["file"], row["line"], row["reason"], row["text"])  # noqa: E731
        assert sorted(others, key=place) == sorted([vars(each) for each in bad], key=place)
        assert remembered == loaded
        return rows, bad


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


@pytest.fixture
def tiny_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "LEAST_BYTES", 60)
    monkeypatch.setattr(cutting, "PART_BYTES", 60)
    monkeypatch.setattr(cutting, "_CHUNK_BYTES", 37)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return Setting(tmp_path_factory.mktemp("parts"))


@settings(max_examples=40)
@given(
    texts=st.lists(st.lists(st.integers(0, 30), max_size=40), min_size=1, max_size=4),
    newline=st.sampled_from(["\n", "\r\n"]),
    mark=st.sampled_from(["", "\ufeff"]),
    is_open=st.booleans(),
    size=st.integers(20, 400),
    chunk=st.integers(1, 300),
)
def test_any_json_lines_in_parts_are_read_as_a_whole(
    shared: Setting, texts: list[list[int]], newline: str, mark: str, is_open: bool, size: int, chunk: int
) -> None:
    for file in shared.folder.glob("*.jsonl"):
        file.unlink()
    for number, choices in enumerate(texts):
        lines = [(LINES[at % 3] % (at, at)) if at < 22 else BAD[at - 22] for at in choices]
        end = "" if is_open else newline
        (shared.folder / f"{number}.jsonl").write_text(mark + newline.join(lines) + end, newline="", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "LEAST_BYTES", size)
        patch.setattr(cutting, "PART_BYTES", size)
        patch.setattr(cutting, "_CHUNK_BYTES", chunk)
        shared.check("*.jsonl")


@pytest.mark.usefixtures("tiny_parts")
def test_a_large_file_of_lines_is_cut_and_others_are_not(setting: Setting) -> None:
    lines = "".join(f'{{"id": {n}, "name": "n"}}\n' for n in range(100))
    objects = [json.loads(line) for line in lines.splitlines()]
    (setting.folder / "lines.jsonl").write_text(lines)
    (setting.folder / "pretty.json").write_text("\n".join(json.dumps(each, indent=1) for each in objects))
    (setting.folder / "array.json").write_text(json.dumps(objects))
    (setting.folder / "packed.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (setting.folder / "wide.jsonl").write_bytes(lines.encode("utf-16"))
    rows, _ = setting.check("lines.jsonl", "pretty.json", "array.json", "packed.jsonl.gz", "wide.jsonl")
    assert len(rows) == 500
    assert list(setting.parts.cut) == [0]
    assert len({piece.at for pieces in setting.parts.pieces for piece in pieces}) == 5
    assert len(setting.parts) > 20


@pytest.mark.usefixtures("tiny_parts")
def test_every_kind_of_csv_is_read_as_on_the_driver(setting: Setting) -> None:
    (setting.folder / "a.csv").write_text('ID;Name\n1;"a\nb"\n2;c;d\nx;y\n3\n')
    (setting.folder / "b.csv").write_bytes("id,name\n4,Zoë\n".encode("latin-1"))
    (setting.folder / "c.tsv").write_text("# made by hand\nname\tqty\tid\nn\t1\t5\nn\tmany\t6\n")
    (setting.folder / "d.csv.bz2").write_bytes(bz2.compress(b"id,name,qty\n" + b"7,n,7\n" * 50))
    (setting.folder / "e.csv").write_text("")
    (setting.folder / "f.csv").write_text("id,name,qty\n")
    rows, bad = setting.check("*.csv", "*.tsv", "*.bz2")
    assert len(rows) == 53 and len(bad) == 4
    rows, bad = setting.check("a.csv", text=TextOptions(short_rows="fill"))
    assert len(rows) == 2
    rows, bad = setting.check("a.csv", "b.csv", skip=["name", "Name"])
    assert all(row["name"] is None for row in rows)


@pytest.mark.usefixtures("tiny_parts")
def test_parquet_files_and_folders_with_values_are_read_as_on_the_driver(setting: Setting) -> None:
    for qty in range(3):
        folder = setting.folder / f"qty={qty}"
        folder.mkdir()
        rows = pa.table({"id": range(qty * 10, qty * 10 + 10), "name": ["n"] * 10})
        pq.write_table(rows, folder / "a.parquet")
        pc.write_csv(rows.slice(0, 3), folder / "b.csv")
    rows, _ = setting.check("qty=*/*")
    assert len(rows) == 39 and {row["qty"] for row in rows} == {0, 1, 2}


@pytest.mark.usefixtures("tiny_parts")
def test_a_strict_lane_reports_the_first_bad_row_of_each_part(setting: Setting) -> None:
    text = "".join(f'{{"id": {json.dumps(n if n != 50 else "no")}}}\n' for n in range(90))
    (setting.folder / "a.jsonl").write_text(text)
    (setting.folder / "b.jsonl").write_text("no\n" * 50)
    lane = setting.lane(setting.steps("*.jsonl"), TextOptions(), is_strict=True)
    setting.run(lane)
    errors = [choose_attempt(each).error for each in setting.reports.read()]
    first = next(error for error in errors if error is not None)
    with refused(sl.Invalid, line=51, column="id"):
        raise first
    assert setting.reports.failed_before(len(setting.parts))
    assert not setting.reports.failed_before(0)
    setting.reports.delete()
    assert setting.reports.read() == []
