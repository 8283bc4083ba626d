"""A fixed point as a consumer: what makes it due, and rivals and crashes in between."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pyarrow as pa
import pytest

import strandline as sl
from folding import fold_vnodes
from forks import Interrupted, at_crash_points
from strandline import graph
from strandline.consumers.fixpoint import Computed, Fixpoint
from strandline.consumers.fixpoint_facts import read_facts
from strandline.model.definition import TableDef
from support import refused


class Doubled:
    """The method of these tests: each id with twice its number."""

    definition = TableDef.declare("id:int64!, twice:int64", key=["id"], vnodes=2)

    engine = "driver"

    def __init__(self, fingerprint="one"):
        self.fingerprint = fingerprint
        self.runs = []
        self.meanwhile = lambda: None

    def to_dict(self):
        return {"step": "doubled"}

    def compute(self, run):
        self.runs.append((run.why, [(each.after, each.upto) for each in run.inputs]))
        (source,) = run.inputs
        rows = source.table.to_arrow(at=source.upto)
        kept = run.kept.to_arrow(columns=["id"])["id"].to_pylist()
        ids = rows["id"].to_pylist()
        self.meanwhile()
        upserts = pa.table({"id": rows["id"], "twice": [2 * n for n in rows["n"].to_pylist()]})
        deletes = pa.table({"id": pa.array([id for id in kept if id not in ids], pa.int64())})
        return Computed([1], True, is_warm=not run.why, upserts=upserts, deletes=deletes)


@pytest.fixture
def numbers(lake):
    table = lake.create_table("numbers", "id:int64, n:int64", key=["id"], vnodes=2)
    table.upsert([{"id": 1, "n": 5}])
    return table


def declare(lake, method):
    lake.fixpoints["doubled"] = Fixpoint(lake, "doubled", ("numbers",), method)
    return lake.fixpoints["doubled"]


def tick(lake):
    report = lake.tick(only=["fixpoint/doubled"])
    report.raise_for_errors()
    return report.consumers


def doubled(lake):
    return {row["id"]: row["twice"] for row in lake.table("doubled").to_arrow().to_pylist()}


def test_rows_and_facts_are_of_one_commit(lake, numbers):
    method = Doubled()
    declare(lake, method)
    (plan,) = lake.plan(only=["fixpoint/doubled"]).consumers
    assert (plan.kind, plan.table, plan.rows, plan.works[0].why) == ("fixpoint", "numbers", 1, "first run")
    (report,) = tick(lake)
    assert (report.rows, report.upto, report.facts["start"]) == (1, 1, "cold")
    log = lake.table("doubled").log.refresh()
    facts = read_facts(log)
    assert facts.seq == log.head == 1 and facts.inputs == {numbers.entry.generation: 1} and facts.is_converged
    assert tick(lake) == () and method.runs == [("first run", [(None, 1)])]
    numbers.upsert([{"id": 2, "n": 1}])
    (plan,) = lake.plan(only=["fixpoint/doubled"]).consumers
    assert plan.works[0].why == "numbers: 1 changes"
    (report,) = tick(lake)
    assert report.facts["start"] == "warm" and method.runs[-1] == ("", [(1, 2)])
    numbers.delete([1])
    tick(lake)
    assert doubled(lake) == {2: 2}


def test_a_change_that_changes_no_row_is_noted_too(lake, numbers):
    declare(lake, Doubled())
    tick(lake)
    numbers.upsert([{"id": 9, "n": 9}])
    numbers.delete([9])
    tick(lake)
    assert tick(lake) == ()


def test_facts_outlast_a_new_column_and_a_compaction(lake, numbers):
    method = Doubled()
    declare(lake, method)
    tick(lake)
    table = lake.table("doubled")
    table.compact(full=True)
    assert tick(lake) == ()
    table.configure(keep="1h")
    assert tick(lake) == () and len(method.runs) == 1


def test_a_new_table_of_the_same_name_is_computed_anew(lake, numbers):
    method = Doubled()
    declare(lake, method)
    tick(lake)
    lake.drop("numbers")
    lake.create_table("numbers", "id:int64, n:int64", key=["id"], vnodes=2).upsert([{"id": 3, "n": 3}])
    tick(lake)
    assert doubled(lake) == {3: 6} and "not known" in method.runs[-1][0]


@pytest.mark.parametrize("act", ["expire", "restore", "purge", "drop_column"])
def test_what_is_no_change_of_rows_starts_cold_or_warm_and_is_right(lake, act):
    columns = "id:int64, n:int64, at:timestamp, more:string"
    table = lake.create_table("numbers", columns, key=["id"], vnodes=2, time="at")
    for id in range(4):
        table.upsert([{"id": id, "n": id, "at": dt.datetime(2020 + id, 1, 1, tzinfo=dt.UTC), "more": "m"}])
    method = Doubled()
    declare(lake, method)
    tick(lake)
    if act == "expire":
        table.expire(dt.datetime(2021, 6, 1, tzinfo=dt.UTC))
    elif act == "restore":
        table.restore(2)
    elif act == "purge":
        table.purge([0])
    else:
        table.drop_column("more")
    tick(lake)
    assert doubled(lake) == {row["id"]: 2 * row["n"] for row in table.to_arrow().to_pylist()}


def test_of_two_runs_at_once_the_later_one_is_planned_again(lake, numbers):
    slow, quick = Doubled(), Doubled()
    other = sl.Lake(lake.storage.uri)
    declare(lake, slow)
    declare(other, quick)
    tick(lake)
    numbers.upsert([{"id": 2, "n": 2}])

    def meanwhile():
        slow.meanwhile = lambda: None
        numbers.upsert([{"id": 3, "n": 3}])
        tick(other)

    slow.meanwhile = meanwhile
    tick(lake)
    assert doubled(lake) == {1: 10, 2: 4, 3: 6}
    assert lake.table("doubled").head == 2


def test_rows_that_somebody_writes_during_a_run_are_noticed(lake, numbers):
    method = Doubled()
    declare(lake, method)
    tick(lake)
    numbers.upsert([{"id": 2, "n": 2}])

    def meanwhile():
        method.meanwhile = lambda: None
        lake.table("doubled").upsert([{"id": 77, "twice": 7}])

    method.meanwhile = meanwhile
    tick(lake)
    assert doubled(lake) == {1: 10, 2: 4} and "someone else" in method.runs[-1][0]


def test_names_that_two_inputs_swapped_are_noticed(lake, numbers):
    other = lake.create_table("other", "id:int64, n:int64", key=["id"], vnodes=2)
    other.upsert([{"id": 5, "n": 5}])

    class First(Doubled):
        def compute(self, run):
            return super().compute(replace(run, inputs=run.inputs[:1]))

    method = First()
    lake.fixpoints["doubled"] = Fixpoint(lake, "doubled", ("numbers", "other"), method)
    tick(lake)
    for old, new in (("numbers", "spare"), ("other", "numbers"), ("spare", "other")):
        lake.rename(old, new)
    tick(lake)
    assert doubled(lake) == {5: 10}


def test_a_past_that_vacuum_gave_up_in_one_vnode_is_a_cold_start(lake):
    table = lake.create_table("numbers", "id:int64, n:int64", key=["id"], vnodes=4)
    method = Doubled()
    declare(lake, method)
    table.upsert([{"id": id, "n": id} for id in range(8)])
    table.compact(full=True)
    table.upsert([{"id": id, "n": 1} for id in range(8)])
    tick(lake)
    after = table.head
    table.upsert([{"id": id, "n": 2} for id in range(8)])
    fold_vnodes(table, [0])
    table.vacuum(keep=0, grace=0)
    # The log reaches back to the last run, and the table as it was then is gone.
    assert table.log.refresh().trimmed_to <= after < table.oldest
    tick(lake)
    assert doubled(lake) == dict.fromkeys(range(8), 4) and "not known" in method.runs[-1][0]


def test_settings_that_hide_rows_of_the_result_are_refused(lake, numbers):
    declare(lake, Doubled())
    lake.create_table("doubled", "id:int64!, twice:int64", key=["id"], vnodes=2, version="twice")
    with refused(sl.Conflict):
        tick(lake)


def test_another_table_of_its_name_and_other_columns_are_refused(lake, numbers):
    lake.create_table("doubled", "id:int64!, twice:int64", key=["id"], vnodes=2).upsert([{"id": 7, "twice": 1}])
    declare(lake, Doubled())
    with refused(sl.Conflict):
        tick(lake)
    assert doubled(lake) == {7: 1}
    lake.drop("doubled")
    tick(lake)
    method = Doubled()
    method.definition = TableDef.declare("id:int64!, twice:string", key=["id"], vnodes=2)
    declare(lake, method)
    with refused(sl.Conflict):
        tick(lake)


def test_fixed_points_that_need_one_another_are_refused(lake, numbers):
    for name, other in (("a", "b"), ("b", "a")):
        lake.fixpoints[name] = Fixpoint(lake, name, (other,), Doubled())
    with refused(sl.Invalid):
        lake.tick()


def test_a_name_that_nobody_declared_is_an_error(lake, numbers):
    declare(lake, Doubled())
    for act in (lake.tick, lake.plan):
        with refused(sl.NotFound) as caught:
            act(only=["fixpoint/none"])
        assert "fixpoint/doubled" in caught.value.hint


def test_an_error_of_one_stops_no_other(lake, numbers):
    class Broken(Doubled):
        def compute(self, run):
            raise ZeroDivisionError("no")

    declare(lake, Doubled())
    lake.fixpoints["broken"] = Fixpoint(lake, "broken", ("numbers",), Broken())
    report = lake.tick()
    errors = {each.name: each.error for each in report.consumers}
    assert errors["fixpoint/doubled"] is None and isinstance(errors["fixpoint/broken"], sl.Internal)
    assert doubled(lake) == {1: 10}


@pytest.mark.parametrize("point", ["fixpoint.computed", "log.file_written", "log.committed"])
def test_a_kill_leaves_the_earlier_rows_or_the_later_ones(lake, numbers, point):
    graph.connected_components(lake, "parts", edges="numbers", src="id", dst="n")
    lake.tick(only=["fixpoint/parts"]).raise_for_errors()
    numbers.upsert([{"id": 2, "n": 1}])

    def here(name):
        if name == point:
            raise Interrupted

    with at_crash_points(here), pytest.raises(Interrupted):
        lake.tick(only=["fixpoint/parts"])
    again = sl.Lake(lake.storage.uri)
    graph.connected_components(again, "parts", edges="numbers", src="id", dst="n")
    facts = read_facts(again.table("parts").log.refresh())
    rows = {row["node"]: row["component"] for row in again.table("parts").to_arrow().to_pylist()}
    assert rows == ({1: 1, 5: 1} if facts.seq == 1 else {1: 1, 2: 1, 5: 1})
    again.tick(only=["fixpoint/parts"]).raise_for_errors()
    rows = {row["node"]: row["component"] for row in again.table("parts").to_arrow().to_pylist()}
    assert rows == {1: 1, 2: 1, 5: 1}
