"""The shared fold: the change that wins, from nothing, extended, or after a newer baseline."""

import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from support import Oracle, by_id, refused, trim

VERSIONED = pa.schema([("id", pa.int64()), ("rev", pa.int16()), ("name", pa.string())])


@pytest.fixture
def versioned(lake):
    return lake.create_table("docs", VERSIONED, key=["id"], version="rev", vnodes=2)


def doc(id_, rev, name):
    return {"id": id_, "rev": rev, "name": name}


def test_an_older_version_never_replaces_a_newer_one(versioned):
    versioned.upsert([doc(1, 5, "five")])
    versioned.upsert([doc(1, 3, "three")])
    assert by_id(versioned) == {1: "five"}
    versioned.compact(full=True)
    versioned.upsert([doc(1, 4, "four")])
    assert by_id(versioned) == {1: "five"}
    versioned.compact(full=True)
    assert by_id(versioned) == {1: "five"}
    versioned.upsert([doc(1, 6, "six")])
    assert by_id(versioned) == {1: "six"}


def test_of_equal_versions_the_later_commit_wins(versioned):
    for name in "abc":
        versioned.upsert([doc(1, 5, name)])
        assert by_id(versioned) == {1: name}
        if name == "b":
            versioned.compact(full=True)


def test_a_delete_clears_the_version(versioned):
    versioned.upsert([doc(1, 9, "nine")])
    versioned.compact(full=True)
    versioned.delete([1])
    versioned.upsert([doc(1, 2, "two")])
    assert by_id(versioned) == {1: "two"}
    versioned.compact(full=True)
    assert by_id(versioned) == {1: "two"}


def test_a_version_is_required(versioned):
    with refused(sl.Invalid, row=0, column="rev"):
        versioned.upsert([{"id": 1, "name": "x"}])


STEPS = [
    ("upsert", doc(1, 5, "five")),
    ("delete", 1),
    ("upsert", doc(1, 2, "two")),
    ("fold", None),
    ("read", None),
    ("upsert", doc(1, 9, "nine")),
]


def test_every_order_of_changes_folds_and_reads_gives_the_oracles_row(tmp_path):
    """An eighth of all orders of STEPS, each on a table of its own."""
    lake = sl.Lake(tmp_path)
    for number, order in enumerate(list(itertools.permutations(range(len(STEPS))))[::8]):
        table = lake.create_table(f"t{number}", VERSIONED, key=["id"], version="rev", vnodes=1)
        oracle = Oracle(["id"], "rev")
        for at in order:
            verb, argument = STEPS[at]
            if verb == "upsert":
                table.upsert([argument])
                oracle.upsert([argument])
            elif verb == "delete":
                table.delete([argument])
                oracle.delete([{"id": argument}])
            elif verb == "fold":
                table.compact(full=True)
            else:
                assert by_id(table) == {row["id"]: row["name"] for row in oracle.copy()}
        assert by_id(table) == {row["id"]: row["name"] for row in oracle.copy()}, [STEPS[at] for at in order]


def test_a_widened_version_column_still_decides(versioned):
    versioned.upsert([doc(1, 300, "old")])
    assert by_id(versioned) == {1: "old"}
    versioned.evolve(pa.schema([("rev", pa.int64())]))
    versioned.upsert([doc(1, 2**40, "new")])
    assert by_id(versioned) == {1: "new"}
    versioned.upsert([doc(1, 301, "late")])
    versioned.compact(full=True)
    versioned.upsert([doc(1, 302, "late")])
    assert by_id(versioned) == {1: "new"}


def test_a_cached_fold_follows_another_process_that_folds_and_writes(lake, items):
    other = sl.Lake(lake.storage.uri).table("items")
    expected = {}
    for at in range(12):
        writer = (items, other)[at % 2]
        writer.upsert([{"id": at % 5, "name": f"{at}"}])
        expected[at % 5] = f"{at}"
        if at % 4 == 3:
            other.compact(full=True)
        if at % 3 == 0:
            items.delete([at % 5])
            del expected[at % 5]
        assert by_id(items) == by_id(other) == expected


def test_a_cached_fold_survives_a_log_that_was_trimmed_behind_a_newer_baseline(lake, items):
    """The reader's cache ends before the trim; the baseline that replaces it does not."""
    for at in range(5):
        items.upsert([{"id": at, "name": "a"}])
    assert len(by_id(items)) == 5
    other = sl.Lake(lake.storage.uri).table("items")
    for at in range(5, 10):
        other.upsert([{"id": at, "name": "b"}])
    other.compact(full=True)
    trim(other, 8)
    other.upsert([{"id": 100, "name": "c"}])
    assert by_id(items) == by_id(sl.Lake(lake.storage.uri).table("items"))
    assert len(by_id(items)) == 11


def test_reads_at_many_seqs_share_a_bounded_cache(items):
    for at in range(30):
        items.upsert([{"id": at % 4, "name": str(at)}])
    expected = [{n % 4: str(n) for n in range(seq)} for seq in range(31)]
    for seq in [30, 3, 29, 1, 15, 7, 0, 22, 30, 3, 1, 8, 30]:
        assert by_id(items, at=seq) == expected[seq]
    kept = items.duck.table("SELECT count(*) AS n FROM duckdb_tables() WHERE table_name LIKE '_fold_%'")
    assert kept["n"].to_pylist()[0] <= 6


CHANGE = st.tuples(
    st.sampled_from(["upsert", "upsert", "upsert", "delete", "fold", "read"]),
    st.integers(0, 2),
    st.integers(0, 3),
)


@settings(max_examples=40)
@given(st.lists(CHANGE, max_size=14))
def test_with_versions_a_warm_reader_a_cold_reader_and_the_oracle_agree(tmp_path_factory, steps):
    lake = sl.Lake(tmp_path_factory.mktemp("versions"))
    table = lake.create_table("docs", VERSIONED, key=["id"], version="rev", vnodes=2)
    oracle = Oracle(["id"], "rev")
    for at, (verb, key, rev) in enumerate(steps):
        if verb == "upsert":
            table.upsert([doc(key, rev, str(at))])
            oracle.upsert([doc(key, rev, str(at))])
        elif verb == "delete":
            table.delete([key])
            oracle.delete([{"id": key}])
        elif verb == "fold":
            table.compact(full=True)
        else:
            assert by_id(table) == {row["id"]: row["name"] for row in oracle.copy()}
    expected = {row["id"]: row["name"] for row in oracle.copy()}
    assert by_id(table) == expected
    assert by_id(sl.Lake(lake.storage.uri).table("docs")) == expected
