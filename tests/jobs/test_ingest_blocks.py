"""A text file in blocks: where a block ends changes nothing."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import pytest

import bad_rows
import strandline as sl
from bad_rows import FLAT, GOOD, HEADER, rejects_of
from strandline.jobs.ingest import blocks
from strandline.jobs.ingest.source import find

flat = bad_rows.flat
things = bad_rows.things


def test_a_block_boundary_may_fall_anywhere(
    flat: sl.Table, lake: sl.Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small blocks against one: the same rows and the same faults at the same lines."""
    seeded = random.Random(7)
    texts = ["", "x", "a,b", 'say ""hi""', "two\nlines", "\n", "," * 50, "y" * 500]
    rows = ["bad,,,,,,,,," if seeded.random() < 0.1 else f'{i},,,,"{seeded.choice(texts)}",,,,,' for i in range(300)]
    (tmp_path / "a.csv").write_text(HEADER + "\n".join(rows))
    expected: Any = None
    for size in (1 << 20, 64, 257, 1000):
        table = lake.create_table(f"t{size}", FLAT, key=["id"])
        monkeypatch.setattr(blocks.Reading.blocks, "__kwdefaults__", {"block_bytes": size})
        lake.ingest(f"t{size}", [str(tmp_path / "a.csv")], rejects=True)
        found = (
            table.to_arrow(columns=["id", "text"]).sort_by("id").to_pylist(),
            [(r["line"], r["column"], r["text"]) for r in rejects_of(table)],
        )
        expected = expected or found
        assert found == expected
    assert len(expected[0]) + len(expected[1]) == 300


def test_rejects_in_one_block_of_many_rows_are_found_all(things: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    bad = {3, 4, 5000, 9999}
    (tmp_path / "a.jsonl").write_text("".join('{"id": "x"}\n' if i in bad else GOOD % i for i in range(10_000)))
    report = lake.ingest("things", [str(tmp_path / "a.jsonl")], rejects=True)
    assert (report.rows, report.rejects) == (9_996, 4)
    assert {r["line"] - 1 for r in rejects_of(things)} == bad


def reading_of(tmp_path, data, name="a.jsonl"):
    (tmp_path / name).write_bytes(data)
    (source,) = find([str(tmp_path / name)], None)
    return blocks.Reading.whole(source)


def cut_lines(data):
    return data.rfind(b"\n") + 1


@pytest.mark.parametrize("size", [1, 3, 7, 1 << 20])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_blocks_are_whole_lines_that_know_where_they_stand(tmp_path, name, size):
    text = b"one\ntwo\n\nlonger line\nopen"
    data = gzip.compress(text) if name.endswith(".gz") else text
    reading = reading_of(tmp_path, data, name)
    found = list(reading.blocks(cut_lines, block_bytes=size))
    assert b"".join(block.data for block in found) == text
    for block in found:
        assert block.line == text[: text.index(block.data)].count(b"\n") + 1 or block.data == b"\n"
    assert reading.is_open and reading.lines == 4
    assert reading.digest == blocks.digest_of(reading.source)


def test_a_file_that_has_grown_is_read_on_and_a_rewritten_one_is_not(tmp_path):
    reading = reading_of(tmp_path, b"one\n")
    list(reading.blocks(cut_lines))
    (tmp_path / "a.jsonl").write_bytes(b"one\ntwo\n")
    (grown,) = find([str(tmp_path / "a.jsonl")], None)
    more = blocks.resume(grown, 4, reading.digest, 1)
    assert [(block.data, block.line) for block in more.blocks(cut_lines)] == [(b"two\n", 2)]
    assert blocks.resume(grown, 4, "another digest", 1) is None


@pytest.mark.parametrize("encoding", ["utf-16-le", "latin-1", "utf-8"])
def test_blocks_are_utf_8_without_mark_whatever_the_file_is(tmp_path, encoding):
    marked = reading_of(tmp_path, ("é,1\n" if encoding == "latin-1" else "\ufeffé,1\n").encode(encoding))
    marked.encoding = encoding
    assert [block.data for block in marked.blocks(cut_lines)] == ["é,1\n".encode()]
