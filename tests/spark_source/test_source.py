"""The data source as it travels between Spark's processes."""

import subprocess
import sys

from pyspark import cloudpickle

import strandline as sl
from strandline.spark_source.source import StrandlineSource
from support import refused

LOAD = """
import pickle, sys
try:
    import strandline
except ModuleNotFoundError:
    source = pickle.load(open(sys.argv[1], "rb"))
    print(type(source).__name__, source.seq, source.place.open(source.generation).head)
"""


def test_a_process_that_has_not_got_the_package_finds_it_by_the_source(items, tmp_path):
    items.upsert([{"id": 1, "name": "a"}])
    source = StrandlineSource({"lake": items.log.storage.uri, "table": "items"})
    items.upsert([{"id": 2, "name": "b"}])
    (tmp_path / "source").write_bytes(cloudpickle.dumps(source))
    libraries = next(path for path in sys.path if path.endswith("site-packages"))
    command = [sys.executable, "-S", "-c", LOAD, str(tmp_path / "source")]
    found = subprocess.run(command, env={"PYTHONPATH": libraries}, capture_output=True, text=True)
    assert found.stdout.split() == ["StrandlineSource", "1", "2"], found.stderr


def test_a_source_that_travels_is_of_the_generation_that_it_was_made_for(items, lake):
    source = StrandlineSource({"lake": items.log.storage.uri, "table": "items"})
    moved = cloudpickle.loads(cloudpickle.dumps(source))
    assert (moved.place, moved.generation, moved.seq) == (source.place, source.generation, 0)
    lake.drop("items")
    lake.create_table("items", items.schema, key=["id"])
    with refused(sl.NotFound, table="items"):
        moved.schema()
