"""Numbers that a float column of an existing table cannot hold are bad values, in CSV and in JSON."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import strandline as sl


@pytest.mark.parametrize("number", ["9007199254740993", "1e400", "1" * 400, "-1" + "0" * 5000])
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_number_that_would_become_another_is_refused(lake: sl.Lake, tmp_path: Path, kind: str, number: str) -> None:
    table = lake.create_table("items", "v:float64")
    texts = {"csv": f"v\n1.5\n{number}\n 2\n", "json": f'{{"v": 1.5}}\n{{"v": {number}}}\n{{"v": 2}}\n'}
    path = tmp_path / f"a.{kind}"
    path.write_text(texts[kind])
    report = lake.ingest("items", [path], rejects=True)
    assert (report.rows, report.rejects) == (2, 1)
    assert sorted(table.to_arrow().column("v").to_pylist()) == [1.5, 2.0]


def test_infinity_by_its_name_and_large_exact_integers_are_taken(lake: sl.Lake, tmp_path: Path) -> None:
    table = lake.create_table("items", "v:float64")
    (tmp_path / "a.csv").write_text("v\ninf\n9007199254740994\n")
    (tmp_path / "a.json").write_text('{"v": Infinity}\n{"v": 9007199254740994}\n')
    assert lake.ingest("items", [tmp_path / "a.csv", tmp_path / "a.json"]).rows == 4
    assert sorted(table.to_arrow().column("v").to_pylist()) == [9007199254740994.0] * 2 + [math.inf] * 2
