"""The demo as a run of stops."""

from pathlib import Path

import pytest

from strandline.demo.tour import Tour


def test_without_java_the_demo_runs_and_says_once_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    tour = Tour(tmp_path / "demo", rows=50, with_spark=True)
    tour.run()
    results = {stop.what: stop.result for stop in tour.stops}
    assert results["Export as Parquet"].startswith("1 file, ")
    assert tour.left_out.count("Install it") == 1 and not tour.with_spark
