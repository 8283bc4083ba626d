"""A small collection of CSV files as people have them: what is loaded, and what is refused with line and column."""

from __future__ import annotations

import gzip
import os
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import bad_rows
import strandline as sl
from bad_rows import rejects_of
from ingested import actions
from strandline.jobs.ingest import infer
from support import refused

flat = bad_rows.flat

FILES: dict[str, tuple[bytes, list[dict[str, Any]]]] = {
    "no newline at the end": (b"id,name\n1,a\n2,b", [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]),
    "semicolons": (b"id;name\n1;a, b\n2;c\n", [{"id": 1, "name": "a, b"}, {"id": 2, "name": "c"}]),
    "bars": (b"id|name\n1|a\n", [{"id": 1, "name": "a"}]),
    "latin-1": ("id,name\n1,Müller\n".encode("latin-1"), [{"id": 1, "name": "Müller"}]),
    "utf-16": ("id,name\n1,Łódź\n".encode("utf-16"), [{"id": 1, "name": "Łódź"}]),
    "a mark": (b"\xef\xbb\xbfid,name\r\n1,a\r\n", [{"id": 1, "name": "a"}]),
    "old line ends": (b"id,name\r1,a\r2,b\r", [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]),
    "comments": (
        b"# made\n# by hand\nid,name\n1,a\n# between\n2,b\n",
        [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
    ),
    "a title": (b"Sales\n\nid,name,qty\n1,a,5\n", [{"id": 1, "name": "a", "qty": 5}]),
    "no header": (b"1,a\n2,b\n", [{"column_1": 1, "column_2": "a"}, {"column_1": 2, "column_2": "b"}]),
    "all quoted": (
        b'"id","qty","day","name"\n"1","5","2024-01-31","x"\n"2","","",""\n',
        [{"id": 1, "qty": 5, "day": "2024-01-31", "name": "x"}, {"id": 2, "qty": None, "day": None, "name": ""}],
    ),
    "apostrophes": (b"id,name\n1,'a, b'\n2,'c'\n", [{"id": 1, "name": "a, b"}, {"id": 2, "name": "c"}]),
    "escapes": (b'id,name\n1,"a \\"b\\", c"\n2,"d, e"\n', [{"id": 1, "name": 'a "b", c'}, {"id": 2, "name": "d, e"}]),
    "long ids": (
        b"id,amount\n1234567890123456789,1.5\n1234567890123456790,2\n",
        [{"id": 1234567890123456789, "amount": 1.5}, {"id": 1234567890123456790, "amount": 2.0}],
    ),
    "longer ids": (b"id,big\n1,12345678901234567890\n", [{"id": 1, "big": Decimal("12345678901234567890")}]),
    "empty fields too many": (b"id,name\n1,a,\n2,b,,\n", [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]),
    "lines in a field": (b'id,name\n1,"a\nb"\n', [{"id": 1, "name": "a\nb"}]),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_loaded_as_it_is(lake: sl.Lake, tmp_path: Path, name: str) -> None:
    data, rows = FILES[name]
    (tmp_path / "a.csv").write_bytes(data)
    os.utime(tmp_path / "a.csv", (1, 1))
    report = lake.ingest("made", [str(tmp_path / "a.csv")], key=[])
    found = lake.table("made").to_arrow().to_pylist()
    shown = [{column: v.isoformat() if hasattr(v, "isoformat") else v for column, v in row.items()} for row in found]
    assert shown == rows
    assert report.files[0].dialect is not None


def test_spaces_after_the_delimiter_do_not_make_numbers_text(flat: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n,day\n1, 5, 2024-01-31\n")
    assert lake.ingest("flat", [str(tmp_path / "a.csv")]).rows == 1
    assert flat.to_arrow(columns=["n"]).to_pylist() == [{"n": 5}]


@pytest.mark.parametrize(
    ("data", "line", "column"),
    [
        (b"id,text\n1,a\n2,\xff\n", 3, "text"),
        ("id,text\n1,é\n2,".encode() + b"\xe9\n", 3, "text"),
        (b"id,f\n1,1.5\n2,1234567890123456789\n", 3, "f"),
        (b"id,n,text\n1,2,x\n2,3\n", 3, None),
        (b"id,n\n1,2\n\n\n2,3,4\n", 5, None),
        (b"# c\n# d\nid,n\n1,x\n", 4, "n"),
    ],
)
def test_a_bad_row_is_named_by_its_line_and_column(
    flat: sl.Table, lake: sl.Lake, tmp_path: Path, data: bytes, line: int, column: str | None
) -> None:
    (tmp_path / "a.csv").write_bytes(data)
    with refused(sl.Invalid, line=line) as caught:
        lake.ingest("flat", [str(tmp_path / "a.csv")])
    assert caught.value.fields.get("column") == column
    report = lake.ingest("flat", [str(tmp_path / "a.csv")], rejects=True)
    assert report.rejects == 1
    assert (rejects_of(flat)[0]["line"], rejects_of(flat)[0]["column"]) == (line, column)


def test_short_rows_are_filled_when_asked(flat: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n,text\n1,2,x\n2\n3,4\n2,9,y\n")
    report = lake.ingest("flat", [str(tmp_path / "a.csv")], short_rows="fill")
    assert (report.rows, report.rejects) == (4, 0)
    rows = flat.to_arrow(columns=["id", "n", "text"]).sort_by("id").to_pylist()
    assert rows[1:] == [{"id": 2, "n": 9, "text": "y"}, {"id": 3, "n": 4, "text": None}]


def test_said_signs_are_used(flat: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("!no row: this\nid:n:text\n1:NA:'x:y'\n!2:3:z\n")
    signs = {"delimiter": ":", "quote": "'", "comment": "!", "header": True, "null": ["NA"]}
    assert lake.ingest("flat", [str(tmp_path / "a.csv")], **signs).rows == 1
    assert flat.to_arrow(columns=["id", "n", "text"]).to_pylist() == [{"id": 1, "n": None, "text": "x:y"}]


def test_many_bad_rows_are_all_found_in_one_pass(flat: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    bad = {at: ["x", f"oops{at}", "1,2,3,4,5"][at % 3] for at in range(0, 3000, 7)}
    rows = [f"{at},{at}" if at not in bad else (f"{at},{bad[at]}" if at % 3 else "x,1") for at in range(3000)]
    (tmp_path / "a.csv").write_text("id,n\n" + "\n".join(rows) + "\n")
    report = lake.ingest("flat", [str(tmp_path / "a.csv")], rejects=True)
    assert (report.rows, report.rejects) == (3000 - len(bad), len(bad))
    assert [reject["line"] - 2 for reject in rejects_of(flat)] == sorted(bad)


def test_a_key_of_long_digits_is_text(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n\n12345678901234567890,1\n")
    lake.ingest("made", [str(tmp_path / "a.csv")], key=["id"])
    assert lake.table("made").schema.field("id").type == pa.string()


def test_a_later_file_with_other_values_says_how_to_choose_the_type(
    lake: sl.Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infer, "_MOST_BYTES", 10)
    (tmp_path / "a.csv").write_text("id,v\n1,5\n")
    (tmp_path / "b.csv").write_text("id,v\n2,x\n")
    with refused(sl.Invalid, file=str(tmp_path / "b.csv"), line=2, column="v") as caught:
        lake.ingest("made", [str(tmp_path / "*.csv")], key=["id"])
    assert "--types v:string" in str(caught.value.hint)
    assert lake.ingest("made", [str(tmp_path / "*.csv")], key=["id"], types="v:string").rows == 2


def test_all_rows_are_looked_at_for_the_types(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,v\n" + "".join(f"{at},{at}\n" for at in range(30_000)) + "30000,x\n")
    assert lake.ingest("made", [str(tmp_path / "a.csv")], key=["id"]).rows == 30_001


def test_without_a_header_fields_are_columns_in_their_order_when_said(
    flat: sl.Table, lake: sl.Lake, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("1,2,0.5\n")
    with refused(sl.Invalid, column="column_1") as caught:
        lake.ingest("flat", [str(tmp_path / "a.csv")])
    assert "--no-header" in str(caught.value.hint)
    assert lake.ingest("flat", [str(tmp_path / "a.csv")], header=False).rows == 1
    assert flat.to_arrow(columns=["id", "n", "f"]).to_pylist() == [{"id": 1, "n": 2, "f": 0.5}]
    (tmp_path / "b.csv").write_text(",".join("1" * 11) + "\n")
    with refused(sl.Invalid, file=str(tmp_path / "b.csv")):
        lake.ingest("flat", [str(tmp_path / "b.csv")], header=False)


def test_the_last_line_of_a_growing_file_waits(lake: sl.Lake, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("id,name\n1,a\n2,b")
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            with file.open("a") as out:
                out.write("b")
            time.sleep(0.1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        report = lake.ingest("made", [str(file)], key=[])
    finally:
        stop.set()
        writer.join()
    assert report.rows == 1 and report.files[0].unfinished_bytes > 0
    # At rest, the line is a row.
    assert lake.ingest("made", [str(file)], last_line="load").rows == 1


def test_a_compressed_or_wide_file_that_has_changed_is_loaded_again(lake: sl.Lake, tmp_path: Path) -> None:
    for name, pack in (("a.csv.gz", gzip.compress), ("b.csv", lambda data: data.decode().encode("utf-16"))):
        (tmp_path / name).write_bytes(pack(b"id,name\n1,a\n"))
        lake.ingest(name[0], [str(tmp_path / name)], key=["id"])
        (tmp_path / name).write_bytes(pack(b"id,name\n1,a\n2,b\n"))
        report = lake.ingest(name[0], [str(tmp_path / name)])
        assert (actions(report), report.rows) == (["load"], 2)
        lake.ingest(f"{name[0]}_log", [str(tmp_path / name)], key=[])
        (tmp_path / name).write_bytes(pack(b"id,name\n1,a\n2,b\n3,c\n"))
        with refused(sl.Invalid, file=str(tmp_path / name)):
            lake.ingest(f"{name[0]}_log", [str(tmp_path / name)])
