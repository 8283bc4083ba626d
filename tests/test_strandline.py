"""The public face, and what it costs to look at it."""

import json

import strandline as sl
from support import python


def test_all_is_what_is_exported():
    public = {name for name in dir(sl) if not name.startswith("_")}
    assert public == set(sl.__all__)
    assert sl.__all__ == sorted(sl.__all__)
    assert sl.graph.connected_components.__module__ == sl.graph.__name__
    own = public - {"graph"}
    assert {getattr(sl, name).__name__ for name in own} == own
    homes = {getattr(sl, name).__module__.partition(".")[0] for name in own}
    assert homes == {"strandline"}


def test_what_runs_in_spark_tasks_needs_pyarrow_and_numpy_alone():
    code = """
import sys
for name in ("deltalake", "duckdb", "sqlglot", "obstore", "botocore", "typer", "rich", "pandas", "pyspark"):
    sys.modules[name] = None
import strandline.jobs.export.blocks, strandline.engines.lanes
print("there")
"""
    done = python(code)
    assert done.stdout.split() == ["there"], done.stderr


def test_importing_loads_neither_spark_nor_iceberg():
    done = python("import sys, strandline; print('pyspark' in sys.modules, 'pyiceberg' in sys.modules)")
    assert done.stdout.split() == ["False", "False"], done.stderr


HEAVY = [
    "deltalake",
    "duckdb",
    "fastapi",
    "numpy",
    "obstore",
    "pandas",
    "pyarrow",
    "pyiceberg",
    "pyspark",
    "sqlalchemy",
    "sqlglot",
    "uvicorn",
]
LOADED = "import sys\n{}\nprint(*sys.modules)"


def test_importing_loads_no_library_and_little_of_python():
    loaded = python(LOADED.format("import strandline")).stdout.split()
    ours = [name for name in loaded if name.partition(".")[0] in ("strandline", "typing", "dataclasses", *HEAVY)]
    assert ours == ["strandline"]


def test_the_version_and_the_help_load_no_heavy_library():
    for word in ("--version", "--help"):
        code = f"from strandline.cli import main\ntry: main(['{word}'])\nexcept SystemExit: pass"
        loaded = python(LOADED.format(code)).stdout.split()
        assert "strandline.cli.parser" in loaded
        assert [name for name in HEAVY if name in loaded] == []


SMALL = """
import json, sys
import pyarrow as pa
import strandline as sl
lake = sl.Lake(sys.argv[1])
table = lake.create_table("t", pa.schema([("id", pa.int64()), ("name", pa.string())]), key=["id"])
table.upsert([{"id": n, "name": "a"} for n in range(100)])
table.delete([1])
table.compact(full=True)
table.evolve(pa.schema([("more", pa.string())]))
table.upsert([{"id": 1, "name": "b"}])
rows = table.to_arrow(where="id < 5").num_rows, lake.sql("SELECT count(*) AS n FROM t")["n"][0].as_py()
rows += table.changes(1).num_rows, sum(batch.num_rows for batch in table.to_batches(at=1))
import pyspark
print(json.dumps([rows, pyspark.SparkContext._gateway is None]))
"""


def test_small_work_starts_no_jvm(tmp_path):
    done = python(SMALL, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[5, 100, 2, 100], True]


WITHOUT_JAVA = """
import sys
import strandline as sl
from strandline.engines.spark import session
try:
    session()
except sl.Unavailable as error:
    print("told", error.hint is not None)
"""


def test_a_machine_without_java_is_told_so_with_the_command_to_type(tmp_path):
    done = python(WITHOUT_JAVA, JAVA_HOME=str(tmp_path / "nowhere"))
    assert done.stdout.split() == ["told", "True"], done.stderr
