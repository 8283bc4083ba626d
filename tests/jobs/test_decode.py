"""Stored bytes become UTF-8: compression and encoding."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pyarrow as pa
import pytest

import strandline as sl
from strandline.jobs.ingest.decode import sniff_encoding, text_chunks
from strandline.jobs.ingest.source import Source, find
from support import refused

TEXT = "id,name\n1,Müller\n2,Łódź ✓\n"


def source_of(path: Path, data: bytes) -> Source:
    path.write_bytes(data)
    (source,) = find([str(path)], None)
    return source


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("zst", zstd)])
def test_packed_text_is_unpacked_also_when_it_was_appended_to(tmp_path: Path, ending: str, pack) -> None:
    half = len(TEXT) // 2
    data = pack(TEXT[:half].encode()) + pack(TEXT[half:].encode())
    source = source_of(tmp_path / f"a.csv.{ending}", data)
    pieces = (data[at : at + 7] for at in range(0, len(data), 7))
    assert b"".join(text_chunks(source, pieces, "utf-8", is_start=True)).decode() == TEXT


@pytest.mark.parametrize("ending", ["gz", "bz2", "zst"])
def test_what_is_not_packed_as_its_name_says_is_refused(lake: sl.Lake, tmp_path: Path, ending: str) -> None:
    pack = {"gz": gzip.compress, "bz2": bz2.compress, "zst": zstd}[ending]
    for data in (b"id\n1\n", pack(TEXT.encode() * 50)[:40]):
        (tmp_path / f"a.csv.{ending}").write_bytes(data)
        with refused(sl.Invalid, file=str(tmp_path / f"a.csv.{ending}")):
            lake.ingest("made", [str(tmp_path / f"a.csv.{ending}")], key=[])


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (TEXT.encode(), "utf-8"),
        (TEXT.encode("utf-8-sig"), "utf-8"),
        (TEXT.encode("utf-16"), "utf-16-le"),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "utf-16-be"),
        ("id,name\n1,abc\n".encode("utf-16-le"), "utf-16-le"),
        ("id,name\n1,abc\n".encode("utf-16-be"), "utf-16-be"),
        (TEXT.encode("utf-32"), "utf-32-le"),
        ("1,Müller,é\n".encode("latin-1"), "latin-1"),
        ("1,“Müller”,10 €\n".encode("windows-1252"), "windows-1252"),
        (b"1,\xff\n", "utf-8"),
        ("1,é\n".encode() + b"2,\xe9\n", "utf-8"),
        (b"", "utf-8"),
    ],
)
def test_the_bytes_tell_the_encoding(data: bytes, encoding: str) -> None:
    assert sniff_encoding(data, None) == encoding


def test_a_said_encoding_wins_and_a_mark_tells_its_order() -> None:
    assert sniff_encoding("é".encode(), "latin-1") == "latin-1"
    assert sniff_encoding(b"\xfe\xff\0a", "utf-16") == "utf-16-be"
    assert sniff_encoding(b"a\0", "utf-16") == "utf-16-le"


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "shift-jis"])
def test_a_letter_may_lie_across_two_chunks(tmp_path: Path, encoding: str, size: int) -> None:
    text = "id,name\n1,日本\n"
    data = (text if encoding == "shift-jis" else "\ufeff" + text).encode(encoding)
    source = source_of(tmp_path / "a.csv", data)
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    assert b"".join(text_chunks(source, pieces, encoding, is_start=True)).decode() == text


def test_text_that_breaks_its_encoding_is_named_by_line(lake: sl.Lake, tmp_path: Path) -> None:
    for data, encoding in (
        ("id,name\n1,a\n2,".encode("utf-16") + b"\x00\xd8x\0\n\0", None),
        (b"id,name\n1,a\n2,\x81\x00\n", "shift-jis"),
    ):
        (tmp_path / "a.csv").write_bytes(data)
        with refused(sl.Invalid, line=3, file=str(tmp_path / "a.csv")):
            lake.ingest("made", [str(tmp_path / "a.csv")], key=[], encoding=encoding)
