"""What a caller says about text files is checked, and said types win over those that the values show."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import strandline as sl
from strandline.jobs.ingest.text_options import TextOptions, parse_types
from strandline.model.types import JSON
from support import refused

SAID = pa.schema([("zip", pa.string()), ("price", pa.decimal128(10, 2))])


@pytest.mark.parametrize(
    "given",
    ["zip:string, price:decimal(10,2)", {"zip": "string", "price": pa.decimal128(10, 2)}, SAID],
    ids=["text", "mapping", "schema"],
)
def test_types_are_given_as_text_as_mapping_or_as_schema(given: object) -> None:
    assert parse_types(given) == SAID  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["zip", "zip:what", "a:int64,a:string", {"a": 5}, ["a:int64"]], ids=str)
def test_types_that_cannot_be_are_refused(given: object) -> None:
    with refused(sl.Invalid):
        parse_types(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_said_types_win_over_the_values(lake: sl.Lake, tmp_path: Path, name: str) -> None:
    text = "id,zip,doc\n1,501,5\n" if name == "a.csv" else '{"id": 1, "zip": "501", "doc": 5}\n'
    (tmp_path / name).write_text(text)
    lake.ingest("made", [str(tmp_path / name)], key=["id"], types="id:int32, zip:string, doc:json")
    assert lake.table("made").schema.types == [pa.int32(), pa.string(), JSON]
    assert lake.table("made").to_arrow(columns=["id", "zip"]).to_pylist() == [{"id": 1, "zip": "501"}]


def test_a_said_type_needs_its_column_and_does_not_change_a_table(lake: sl.Lake, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,zip\n1,501\n")
    with refused(sl.Invalid, column="zap"):
        lake.ingest("made", [str(tmp_path / "a.csv")], key=[], types={"zap": "string"})
    assert lake.tables() == []
    lake.ingest("made", [str(tmp_path / "a.csv")], key=[], types={"zip": "string"})
    (tmp_path / "b.csv").write_text("id,zip\n2,502\n")
    with refused(sl.Invalid, table="made", column="zip"):
        lake.ingest("made", [str(tmp_path / "b.csv")], types={"zip": "int64"})
    assert lake.ingest("made", [str(tmp_path / "b.csv")], types={"zip": "string"}).rows == 1


@pytest.mark.parametrize(
    "said",
    [
        {"delimiter": ""}, {"delimiter": ",,"}, {"delimiter": "\n"}, {"delimeter": ","},
    ],
    ids=str,
)  # fmt: skip
def test_options_that_cannot_be_are_refused(said: dict[str, str]) -> None:
    with refused(sl.Invalid):
        TextOptions.of(said)  # type: ignore[typeddict-item]


def test_a_tab_may_be_written_as_an_escape() -> None:
    assert TextOptions.of({"delimiter": r"\t"}).delimiter == "\t"
    with refused(sl.Invalid) as caught:
        TextOptions.of({"delimiter": "tab"})
    assert r"\t" in str(caught.value.hint)
