"""The one Spark session."""

import io
import zipfile
from pathlib import Path

import strandline
from strandline import spark as sparks


def test_there_is_one_session_with_the_settings_that_matter(spark):
    assert sparks.session() is spark
    assert sparks.session(spark) is spark
    assert sparks.is_running()
    assert {name: spark.conf.get(name) for name in sparks.SETTINGS} == sparks.SETTINGS


def test_the_whole_package_travels_to_the_executors():
    names = zipfile.ZipFile(io.BytesIO(sparks._package())).namelist()
    root = Path(strandline.__file__).parent
    assert sorted(names) == sorted(f"strandline/{path.relative_to(root)}" for path in root.rglob("*.py"))


def test_a_lane_runs_in_the_workers(spark):
    import pyarrow as pa

    def double(batches):
        for batch in batches:
            yield pa.record_batch({"id": [value * 2 for value in batch.column("id").to_pylist()]})

    found = sparks.run_lane(spark.range(5), double, "id long").collect()
    assert sorted(row["id"] for row in found) == [0, 2, 4, 6, 8]
