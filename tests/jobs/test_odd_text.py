"""Text files with odd signs: names without text, numbers too large, zero bytes, a line that names the delimiter."""

from __future__ import annotations

from pathlib import Path

import pytest

import strandline as sl


def _load(lake: sl.Lake, file: Path, text: str) -> list[dict[str, object]]:
    file.write_text(text)
    lake.ingest("t", [file], key=[])
    rows: list[dict[str, object]] = lake.table("t").to_arrow().to_pylist()
    return rows


def test_a_json_name_without_text_is_kept_at_every_place(lake: sl.Lake, tmp_path: Path) -> None:
    rows = _load(lake, tmp_path / "a.json", '[{"a":1,"":3},{"":4,"column_2":5},{"column_2":6,"a":2}]')
    assert [row["a"] for row in rows] == [1, None, 2]
    assert [row["column_2"] for row in rows] == [None, 5, 6], "a name in the file has its own column"
    assert [row["column_2_2"] for row in rows] == [3, 4, None]
    (tmp_path / "b.json").write_text('{"":7}')
    assert lake.ingest("t", [tmp_path / "b.json"]).rows == 1
    assert lake.sql("select count(*) n from t where column_2_2 = 7").to_pylist() == [{"n": 1}]


def test_a_json_number_too_large_for_a_float_is_kept(lake: sl.Lake, tmp_path: Path) -> None:
    rows = _load(lake, tmp_path / "a.jsonl", '{"a":1,"x":1e400}\n{"a":2,"x":1.5}\n')
    assert [row["x"] for row in rows] == ["1e400", "1.5"]


def test_zero_bytes_are_named_by_their_line(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"a,b\n1,2\n3,\0\0 4\n")
    with pytest.raises(sl.Invalid, match="the first one in line 3 at byte 3"):
        lake.ingest("t", [tmp_path / "a.csv"], key=[])


def test_the_line_that_has_too_many_fields_is_blamed(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,c\n1,2,3\n4,5,6,7\n6,7,8,\n")
    with pytest.raises(sl.Invalid, match=r"line 3.*4 fields; expected 3"):
        lake.ingest("t", [tmp_path / "a.csv"], key=[])


@pytest.mark.parametrize("sign", [";", "|", "\t"])
def test_a_line_may_name_the_delimiter(lake: sl.Lake, tmp_path: Path, sign: str) -> None:
    text = f"sep={sign}\r\na{sign}b, c\r\n1{sign}x,y\r\n"
    assert _load(lake, tmp_path / "a.csv", text) == [{"a": 1, "b_c": "x,y"}]


def test_a_line_with_too_few_fields_says_how_to_fill_it(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,c\n1,2,3\n4,5\n")
    with pytest.raises(sl.Invalid, match=r"line 3.*2 fields; expected 3") as caught:
        lake.ingest("t", [tmp_path / "a.csv"], key=[])
    assert "--short-rows fill" in str(caught.value.hint)
