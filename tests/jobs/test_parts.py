"""Files are cut into parts for Spark tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.jobs.ingest import parts as cutting
from strandline.jobs.ingest.parts import Parts, cut_parts
from strandline.jobs.ingest.plan import Step
from strandline.jobs.ingest.source import find


def steps_of(folder: Path) -> list[Step]:
    return [Step(source, "load", "new") for source in find([str(folder)], None)]


def bytes_of(parts: Parts, steps: list[Step]) -> list[list[tuple[int, int]]]:
    """The ranges of bytes that the pieces have, of each file."""
    found: list[list[tuple[int, int]]] = [[] for _ in steps]
    for piece in (piece for pieces in parts.pieces for piece in pieces):
        lines = piece.lines
        found[piece.at].append((0, steps[piece.at].source.size) if lines is None else (lines.start, lines.stop))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cut")


@given(lines=st.lists(st.integers(1, 90), min_size=1, max_size=60), size=st.integers(1, 500), chunk=st.integers(1, 200))
def test_pieces_have_every_byte_once_and_end_with_lines(folder: Path, lines: list[int], size: int, chunk: int) -> None:
    text = "".join('{"a": "%s"}\n' % ("x" * length) for length in lines)
    (folder / "a.jsonl").write_text(text)
    (folder / "b.csv").write_text("a\n" + "1\n" * 200)
    steps = steps_of(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "LEAST_BYTES", size)
        patch.setattr(cutting, "PART_BYTES", size)
        patch.setattr(cutting, "_CHUNK_BYTES", chunk)
        parts = cut_parts(steps, 2)
    for ranges, step in zip(bytes_of(parts, steps), steps, strict=True):
        assert ranges[0][0] == 0 and ranges[-1][1] == step.source.size
        assert [stop for _, stop in ranges[:-1]] == [start for start, _ in ranges[1:]]
        assert all(text[stop - 1] == "\n" for _, stop in ranges[:-1])
    assert [piece.at for pieces in parts.pieces for piece in pieces] == sorted(
        piece.at for pieces in parts.pieces for piece in pieces
    )
    for pieces in parts.pieces:
        for piece in pieces:
            if piece.lines is not None:
                assert piece.lines.lines == text.count("\n", 0, piece.lines.start)


def test_many_small_files_make_few_parts(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:03}.jsonl").write_text('{"a": 1}\n')
    parts = cut_parts(steps_of(tmp_path), 2)
    assert 2 <= len(parts) <= 16
    assert [piece.at for pieces in parts.pieces for piece in pieces] == list(range(300))
