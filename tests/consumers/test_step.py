"""Fixed points of steps in PySpark: warm or cold, the rows are those of a cold start."""

from __future__ import annotations

import random

import pytest

import strandline as sl
from strandline.engines.choice import DriverLimit
from strandline.pipeline.fixpoints import verify_fixpoint
from support import refused


@pytest.fixture
def lake(spark, tmp_path) -> sl.Lake:
    return sl.Lake(tmp_path / "lake", spark=spark)


@pytest.fixture
def groups(lake) -> sl.Table:
    """Who belongs to which group, and groups to groups."""
    return lake.create_table("groups", "member:string!, of:string!", key=["member", "of"], vnodes=2)


def belongs(rows, inputs):
    """Everything that a member belongs to, through any number of groups."""
    direct = inputs["groups"].select("member", "of")
    nested = rows.join(direct.toDF("of", "outer"), "of").selectExpr("member", "`outer` AS of")
    return direct.union(nested).union(rows.select("member", "of")).distinct()


def declare(lake, step=belongs, kind="monotone", **more):
    options = {"inputs": ["groups"], "key": ["member", "of"], "columns": "member:string!, of:string!", **more}
    return lake.fixpoint("rights", step, kind=kind, vnodes=2, **options)


def put(table, *pairs):
    table.upsert([{"member": member, "of": of} for member, of in pairs])


def drop(table, pair):
    table.delete([dict(zip(("member", "of"), pair, strict=True))])


def rights(lake):
    return sorted((row["member"], row["of"]) for row in lake.table("rights").to_arrow().to_pylist())


def run(lake, name="rights"):
    report = lake.tick(only=[f"fixpoint/{name}"])
    report.raise_for_errors()
    return report.consumers[0] if report.consumers else None


def closure(pairs):
    found = set(pairs)
    while more := {(a, d) for a, b in found for c, d in pairs if b == c} - found:
        found |= more
    return sorted(found)


def test_a_monotone_step_starts_warm_after_additions_and_cold_after_deletes(lake, groups):
    declare(lake)
    put(groups, ("ann", "dev"), ("dev", "staff"))
    first = run(lake)
    assert (first.facts["start"], first.facts["is_converged"], first.facts["why"]) == ("cold", True, "first run")
    assert rights(lake) == [("ann", "dev"), ("ann", "staff"), ("dev", "staff")]
    assert run(lake) is None
    put(groups, ("staff", "all"))
    assert run(lake).facts["start"] == "warm"
    assert rights(lake) == closure([("ann", "dev"), ("dev", "staff"), ("staff", "all")])
    # Two groups in one another hold up each other's rows.
    put(groups, ("all", "staff"))
    run(lake)
    drop(groups, ("dev", "staff"))
    report = run(lake)
    assert report.facts["start"] == "cold" and "1 rows" in report.facts["why"]
    assert rights(lake) == closure([("ann", "dev"), ("staff", "all"), ("all", "staff")])


@pytest.mark.parametrize("seed", range(3))
def test_random_changes_lead_where_a_cold_start_does(lake, groups, seed):
    chance = random.Random(seed)
    declare(lake)
    now: set[tuple[str, str]] = set()
    for _ in range(4):
        more = {(chance.choice("abcdef"), chance.choice("abcdef")) for _ in range(chance.randrange(1, 5))}
        put(groups, *more)
        now |= more
        if chance.random() < 0.4:
            gone = chance.choice(sorted(now))
            drop(groups, gone)
            now -= {gone}
        run(lake)
        assert rights(lake) == closure(now)


def test_a_step_that_is_not_monotone_is_caught_and_nothing_changes(lake, groups):
    def lonely(rows, inputs):
        """Drops a row when another one comes."""
        return inputs["groups"].groupBy("member").agg({"of": "max"}).toDF("member", "of").select("member", "of")

    declare(lake, lonely)
    put(groups, ("a", "x"))
    run(lake)
    put(groups, ("a", "y"))
    report = lake.tick(only=["fixpoint/rights"])
    (error,) = [each.error for each in report.consumers]
    assert isinstance(error, sl.Invalid) and "not monotone" in error.message and "'member': 'a'" in error.message
    assert rights(lake) == [("a", "x")]


def test_a_changed_step_or_kind_is_computed_anew_and_a_renamed_one_is_not(lake, groups):
    declare(lake)
    put(groups, ("ann", "dev"), ("dev", "staff"))
    run(lake)

    def another_name(rows, inputs):
        direct = inputs["groups"].select("member", "of")
        nested = rows.join(direct.toDF("of", "outer"), "of").selectExpr("member", "`outer` AS of")
        return direct.union(nested).union(rows.select("member", "of")).distinct()

    again = sl.Lake(lake.storage.uri, spark=lake.spark)
    declare(again, another_name)
    assert run(again) is None

    def direct_only(rows, inputs):
        return inputs["groups"].select("member", "of")

    other = sl.Lake(lake.storage.uri, spark=lake.spark)
    declare(other, direct_only)
    assert run(other).facts["why"] == "its definition changed"
    assert rights(other) == [("ann", "dev"), ("dev", "staff")]
    declare(other, direct_only, kind="general")
    assert run(other).facts["why"] == "its definition changed"


def test_a_limit_is_a_number_of_applications_and_never_a_warm_start(lake, groups):
    declare(lake, limit=2)
    put(groups, *[(str(at), str(at + 1)) for at in range(6)])
    report = run(lake)
    assert (report.facts["rounds"], report.facts["is_converged"]) == (2, False)
    assert rights(lake) == sorted((str(a), str(b)) for a in range(6) for b in (a + 1, a + 2) if b <= 6)
    assert run(lake) is None
    put(groups, ("6", "7"))
    report = run(lake)
    assert report.facts["start"] == "cold" and "limit" in report.facts["why"]
    declare(lake)
    assert run(lake).facts["is_converged"]
    assert rights(lake) == closure([(str(at), str(at + 1)) for at in range(7)])


def test_a_contraction_starts_warm_and_ends_within_its_tolerance(lake):
    table = lake.create_table("load", "id:int64, base:float64", key=["id"], vnodes=2)
    table.upsert([{"id": 1, "base": 10.0}, {"id": 2, "base": 4.0}])

    def smooth(rows, inputs):
        old = rows.toDF("id", "old")
        return inputs["load"].join(old, "id", "left").selectExpr("id", "base + 0.5 * coalesce(old, 0D) AS value")

    lake.fixpoint(
        "smooth",
        smooth,
        inputs=["load"],
        key=["id"],
        columns="id:int64!, value:float64",
        kind="contraction",
        tolerance=1e-6,
        vnodes=2,
    )
    cold = run(lake, "smooth")
    found = {row["id"]: row["value"] for row in lake.table("smooth").to_arrow().to_pylist()}
    assert found == pytest.approx({1: 20.0, 2: 8.0}, abs=1e-5)
    table.upsert([{"id": 1, "base": 10.001}])
    table.delete([2])
    warm = run(lake, "smooth")
    assert (cold.facts["start"], warm.facts["start"]) == ("cold", "warm")
    assert warm.facts["rounds"] < cold.facts["rounds"]
    (row,) = lake.table("smooth").to_arrow().to_pylist()
    assert row["id"] == 1 and row["value"] == pytest.approx(20.002, abs=1e-5)


def test_a_rowlocal_step_starts_the_changed_keys_anew(lake):
    table = lake.create_table("seeds", "id:int64, n:int64", key=["id"], vnodes=2)
    table.upsert([{"id": id, "n": id} for id in range(1, 30)])

    def collatz(rows, inputs):
        """The number of steps from n down to 1."""
        start = inputs["seeds"].selectExpr("id", "n AS at", "0L AS steps")
        old = rows.toDF("id", "was", "done")
        moved = "CASE WHEN was = 1 THEN 1L WHEN was % 2 = 0 THEN was DIV 2 ELSE 3 * was + 1 END"
        joined = start.join(old, "id", "left")
        return joined.selectExpr(
            "id",
            f"CASE WHEN was IS NULL THEN at ELSE {moved} END AS at",
            "CASE WHEN was IS NULL THEN 0L WHEN was = 1 THEN done ELSE done + 1 END AS steps",
        )

    lake.fixpoint(
        "walks",
        collatz,
        inputs=["seeds"],
        key=["id"],
        columns="id:int64!, at:int64, steps:int64",
        kind="rowlocal",
        vnodes=2,
    )

    def steps_of(n):
        count = 0
        while n != 1:
            n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
        return count

    run(lake, "walks")
    found = {row["id"]: row["steps"] for row in lake.table("walks").to_arrow().to_pylist()}
    assert found == {n: steps_of(n) for n in range(1, 30)}
    table.upsert([{"id": 3, "n": 5}, {"id": 40, "n": 8}])
    table.delete([27])
    report = run(lake, "walks")
    assert report.facts["start"] == "warm" and report.rows == 3
    found = {row["id"]: row["steps"] for row in lake.table("walks").to_arrow().to_pylist()}
    assert found == {**{n: steps_of(n) for n in range(1, 30) if n not in (3, 27)}, 3: 5, 40: 3}


def test_a_rowlocal_step_with_several_inputs_of_which_one_changed(lake):
    one = lake.create_table("one", "id:int32, n:int64", key=["id"], vnodes=2)
    two = lake.create_table("two", "id:int64, m:int64", key=["id"], vnodes=2)
    one.upsert([{"id": id, "n": id} for id in range(5)])
    two.upsert([{"id": id, "m": 10} for id in range(5)])

    def total(rows, inputs):
        return inputs["one"].join(inputs["two"], "id").selectExpr("id", "n + m AS total")

    names = {"inputs": ["one", "two"], "key": ["id"], "columns": "id:int64!, total:int64"}
    lake.fixpoint("totals", total, kind="rowlocal", vnodes=2, **names)
    run(lake, "totals")
    two.upsert([{"id": 3, "m": 20}])
    one.delete([0])
    report = run(lake, "totals")
    assert report.facts["start"] == "warm" and report.rows == 2
    found = {row["id"]: row["total"] for row in lake.table("totals").to_arrow().to_pylist()}
    assert found == {1: 11, 2: 12, 3: 23, 4: 14}
    one.upsert([{"id": 4, "n": 5}])
    run(lake, "totals")
    assert lake.table("totals").to_arrow(where="id = 4")["total"].to_pylist() == [15]


def test_more_changes_than_the_driver_looks_at_are_a_cold_start(lake, groups, monkeypatch):
    declare(lake)
    put(groups, ("a", "b"))
    run(lake)
    monkeypatch.setattr("strandline.consumers.step.CHANGES", DriverLimit(2, 1 << 30))
    put(groups, ("b", "c"), ("c", "d"), ("d", "e"))
    assert "so many changes" in run(lake).facts["why"]
    assert rights(lake) == closure([("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")])


def test_verify_allows_a_contraction_its_tolerance_and_finds_wrong_rows(lake):
    table = lake.create_table("load", "id:int64, base:float64", key=["id"], vnodes=2)
    table.upsert([{"id": 1, "base": 10.0}])

    def slow(rows, inputs):
        old = rows.toDF("id", "old")
        return inputs["load"].join(old, "id", "left").selectExpr("id", "base + 0.85 * coalesce(old, 0D) AS value")

    names = {"inputs": ["load"], "key": ["id"], "columns": "id:int64!, value:float64"}
    lake.fixpoint("slow", slow, kind="contraction", tolerance=1e-2, vnodes=2, **names)
    run(lake, "slow")
    table.upsert([{"id": 1, "base": 9.0}])
    run(lake, "slow")
    assert verify_fixpoint(lake, "slow").is_right
    lake.table("slow").upsert([{"id": 1, "value": 1.0}])
    assert verify_fixpoint(lake, "slow").keys == ({"id": 1},)


def test_a_step_that_never_ends_says_which_keys_move(lake, groups, monkeypatch):
    monkeypatch.setattr("strandline.consumers.step.MOST_ROUNDS", 3)
    table = lake.create_table("one", "id:int64", key=["id"], vnodes=1)
    table.upsert([{"id": 7}])

    def count(rows, inputs):
        return inputs["one"].join(rows, "id", "left").selectExpr("id", "coalesce(n, 0L) + 1 AS n")

    lake.fixpoint("n", count, inputs=["one"], key=["id"], columns="id:int64!, n:int64", kind="general", vnodes=1)
    (error,) = [each.error for each in lake.tick(only=["fixpoint/n"]).consumers]
    assert "does not converge" in error.message and "{'id': 7}" in error.message and "limit" in error.hint


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda rows, inputs: None, "returned NoneType"),
        (lambda rows, inputs: inputs["groups"].select("member"), "no column 'of'"),
        (lambda rows, inputs: inputs["none"], "failed: KeyError"),
        (lambda rows, inputs: rows.union(inputs["groups"].selectExpr("'a'", "'b'")), "2 rows with the key"),
    ],
)
def test_what_a_step_does_wrong_is_said_and_nothing_changes(lake, groups, step, message):
    declare(lake, step, kind="general", limit=1)
    put(groups, ("a", "b"), ("b", "c"))
    (error,) = [each.error for each in lake.tick(only=["fixpoint/rights"]).consumers]
    assert isinstance(error, sl.Invalid) and message in error.message
    assert lake.table("rights").head == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kind": "sorted"}, "expected one of"),
        ({"limit": 0}, "limit"),
        ({"tolerance": 0.1}, "tolerance"),
        ({"kind": "contraction"}, "tolerance"),
        ({"inputs": []}, "no input"),
        ({"inputs": ["rights"]}, "input of itself"),
    ],
)
def test_a_wrong_declaration_is_refused(lake, groups, more, message):
    with refused() as caught:
        declare(lake, **more)
    assert message in caught.value.message


def test_one_fixed_point_is_the_input_of_another(lake, groups):
    declare(lake)

    def count(rows, inputs):
        return inputs["rights"].groupBy("of").count().selectExpr("of", "count AS n")

    lake.fixpoint(
        "sizes", count, inputs=["rights"], key=["of"], columns="of:string!, n:int64", kind="general", vnodes=1
    )
    put(groups, ("ann", "dev"), ("dev", "staff"))
    report = lake.tick()
    report.raise_for_errors()
    sizes = {row["of"]: row["n"] for row in lake.table("sizes").to_arrow().to_pylist()}
    assert sizes == {"dev": 1, "staff": 2}
    assert [each.name for each in report.consumers][:2] == ["fixpoint/rights", "fixpoint/sizes"]
