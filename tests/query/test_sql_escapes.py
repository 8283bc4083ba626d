"""Whatever a stranger's SQL says, it reads the rows of the lake's tables and nothing else.

The lake is full of canaries. No result and no error may hold one."""

import glob
import os
import re

import pandas as pd
import pyarrow as pa
import pytest

import strandline as sl
from sql_escapes import GENERAL, PLACES
from support import files_below

CANARY = "canary-7f3a"
# Names that DuckDB is given in place of the query's.
HIDDEN_NAME = re.compile(r"\b[a-z]{24}\b")
ALLOWED_ROWS = {"1", "2", "ada", "bo"}


@pytest.fixture(scope="module")
def fort(tmp_path_factory):
    """A lake, and paths that are not to be read through it."""
    root = tmp_path_factory.mktemp("fort")
    lake = sl.Lake(root / "lake")
    people = lake.create_table(
        "people", pa.schema([("id", pa.int64()), ("name", pa.string()), ("dropped", pa.string())]), key=["id"]
    )
    people.upsert([{"id": 1, "name": "ada", "dropped": CANARY}, {"id": 3, "name": CANARY, "dropped": CANARY}])
    people.compact(full=True)
    people.upsert([{"id": 2, "name": "bo", "dropped": CANARY}, {"id": 4, "name": CANARY}])
    old = [path for path in files_below(lake.storage.uri) if path.endswith(".parquet")]
    people.purge([3, 4])
    people.drop_column("dropped")
    gone = lake.create_table("gone", pa.schema([("x", pa.string())]), key=["x"])
    gone.upsert([{"x": CANARY}])
    lake.drop("gone")
    assert lake.state.database
    (root / "lake" / "state.json").write_text(f'{{"secret": "{CANARY}"}}')
    (root / "outside.csv").write_text(f"x\n{CANARY}\n")
    assert lake.sql("SELECT count(*) AS n FROM people").to_pylist() == [{"n": 2}]
    base = lake.storage.uri
    commit = sorted(glob.glob(f"{base}/tables/people/*/log/_delta_log/*.json"))[0]
    remains = sorted(glob.glob(f"{base}/tables/gone/*/log/**/*.parquet", recursive=True))[0]
    targets = {
        "state": f"{base}/state.json",
        "database": f"{base}/state.db",
        "commit": commit,
        "purged": os.path.join(base, old[0]),
        "of a dropped table": remains,
        "outside": str(root / "outside.csv"),
        "pattern": f"{base}/**/*.parquet",
        "address": f"file://{base}/state.json",
    }
    assert all(os.path.exists(path) for name, path in targets.items() if name not in ("pattern", "address"))
    return lake, targets


def attempt(lake, statement):
    """What a statement gives away, as one text."""
    frame = pd.DataFrame({"x": [CANARY]})
    arrow_frame = secret_frame = pa.table({"x": [CANARY]})
    try:
        found = lake.sql(statement, timeout_s=60)
    except sl.Invalid as error:
        given = f"{error}\n{error.fields}\n{error.__cause__}"
    else:
        given = f"{found.column_names}\n{found.to_pylist()}"
    assert len(frame) == len(arrow_frame) == len(secret_frame)
    return given


def check(lake, statement, target):
    given = attempt(lake, statement).replace(target, "").lower()
    assert CANARY not in given
    assert lake.storage.uri.lower() not in given
    assert "strandline-" not in given
    assert not HIDDEN_NAME.search(given)


def test_there_are_enough_of_them():
    assert len(set(GENERAL)) + len(set(PLACES)) > 250


@pytest.mark.parametrize("place", PLACES)
def test_a_path_is_no_table_wherever_it_stands(fort, place):
    lake, targets = fort
    for target in targets.values():
        check(lake, place.replace("@", f'"{target}"'), target)
        if place.endswith("FROM @"):
            check(lake, place.replace("@", f"'{target}'"), target)


@pytest.mark.parametrize("statement", GENERAL)
def test_there_is_no_other_way_out(fort, monkeypatch, statement):
    lake, targets = fort
    monkeypatch.setenv("STRANDLINE_TEST_SECRET", CANARY)
    before = files_below(lake.storage.uri)
    for target in (targets["state"], targets["purged"]):
        quoted = statement.replace("'@'", f"'{target}'").replace('"@"', f'"{target}"').replace("@", f'"{target}"')
        with pytest.raises(sl.Invalid):
            lake.sql(quoted, timeout_s=60)
        check(lake, quoted, target)
    assert files_below(lake.storage.uri) == before


def test_every_path_below_the_lake_is_closed(fort):
    lake, _ = fort
    for path in files_below(lake.storage.uri):
        name = os.path.join(lake.storage.uri, path)
        check(lake, f'WITH a AS (FROM "{name}"), "{name}" AS (SELECT 1) FROM a', name)


LISTS = [
    "SHOW TABLES",
    "SELECT * FROM (SHOW TABLES)",
    "DESCRIBE SELECT * FROM (SHOW TABLES)",
    "SUMMARIZE FROM information_schema.tables",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM information_schema.columns",
    "WITH a AS (FROM information_schema.tables), tables AS (SELECT 1) FROM a",
    "SELECT * FROM information_schema.tables, information_schema.columns, people",
]


@pytest.mark.parametrize("statement", LISTS)
def test_a_list_of_tables_shows_the_lake_and_nothing_of_its_engine(fort, statement):
    lake, targets = fort
    check(lake, statement, targets["state"])
    given = attempt(lake, statement).lower()
    assert not [word for word in ("dropped", "gone", "_fold", "temp", "memory", "system", "duckdb") if word in given]


def test_the_past_of_a_table_shows_nothing_that_was_purged_or_dropped(fort):
    lake, targets = fort
    read = 0
    for seq in range(lake.table("people").head + 1):
        statement = f"SELECT * FROM people AT (VERSION => {seq})"
        check(lake, statement, targets["state"])
        try:
            read += lake.sql(statement).num_rows
        except sl.NotRetained:
            continue
    assert read > 0
