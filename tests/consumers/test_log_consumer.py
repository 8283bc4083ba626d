"""A consumer of a user's own, as docs/extending.md tells how to write one."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import strandline as sl
from forks import Interrupted, at_crash_points
from strandline.consumers.contract import LaneEnd
from strandline.pipeline import commands

DOCUMENT = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.fixture(scope="module")
def example() -> SimpleNamespace:
    """What the document's program defines."""
    program, *_ = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(program.splitlines()) < 60
    names: dict[str, Any] = {"__name__": "pipeline"}
    exec(compile(program, str(DOCUMENT), "exec"), names)
    return SimpleNamespace(**names)


@pytest.fixture
def counted(lake: sl.Lake, items: sl.Table, example: SimpleNamespace) -> sl.Table:
    example.declare(lake)
    return lake.table("counts")


def counts(table: sl.Table) -> int:
    return sum(table.to_arrow(columns=["changes"]).column("changes").to_pylist())


def put(items: sl.Table, *numbers: int) -> None:
    items.upsert([{"id": number, "name": "a"} for number in numbers])


def test_every_change_is_counted_once(lake: sl.Lake, items: sl.Table, counted: sl.Table) -> None:
    put(items, *range(20))
    (report,) = lake.tick(only=["counter"]).consumers
    assert (report.kind, report.error, report.rows_read, report.upto) == ("changes-per-vnode", None, 20, items.head)
    assert counts(counted) == 20 and counted.to_arrow().num_rows == 4
    put(items, 1, 2, 3)
    items.delete([7])
    lake.tick()
    assert counts(counted) == 24
    before = counted.head
    assert lake.tick(only=["counter"]).consumers == ()
    assert counted.head == before


@pytest.mark.parametrize("point", ["marks.intent_saved", "loop.lanes_done", "loop.finished"])
def test_work_that_was_interrupted_is_repeated_and_counts_once(
    lake: sl.Lake, items: sl.Table, counted: sl.Table, point: str
) -> None:
    put(items, *range(20))
    lake.tick()
    put(items, 1, 2, 3)

    def here(name: str) -> None:
        if name == point:
            raise Interrupted

    with at_crash_points(here), pytest.raises(Interrupted):
        lake.tick(only=["counter"])
    put(items, 100)
    (planned,) = [each for each in lake.plan().consumers if each.name == "counter"]
    assert [work.is_replay for work in planned.works] == [True]
    (report,) = lake.tick(only=["counter"]).consumers
    assert (report.replays, report.upto) == (1, items.head)
    assert counts(counted) == 24


def test_an_error_keeps_the_mark_and_stops_no_other_consumer(
    lake: sl.Lake, items: sl.Table, example: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example.declare(lake)
    lake.sink("archive", "items", to=sl.ParquetSink(str(tmp_path / "out")))
    put(items, 1, 2)
    with monkeypatch.context() as patched:
        patched.setattr(example.ChangesPerVnode, "run", lambda self, work: 1 / 0)
        report = lake.tick()
    archive, counter = (next(each for each in report.consumers if each.name == name) for name in ("archive", "counter"))
    assert (archive.rows, archive.error) == (2, None)
    assert isinstance(counter.error, sl.Internal) and "division by zero" in counter.error.message
    assert not report.is_well
    failed = next(each for each in lake.status().consumers if each.name == "counter")
    assert failed.error == counter.error.message and failed.intents == 1
    assert next(each for each in lake.tick().consumers if each.name == "counter").error is None
    assert counts(lake.table("counts")) == 2


def test_status_and_plan_show_it_and_the_log_is_kept_for_it(lake: sl.Lake, items: sl.Table, counted: sl.Table) -> None:
    put(items, 1, 2)
    lake.tick(only=["counter"])
    put(items, 3)
    (status,) = lake.status().marked
    assert (status.name, status.kind, status.destination) == ("counter", "changes-per-vnode", "counts")
    assert (status.lag.rows, status.holds_log, status.is_declared) == (1, True, True)
    assert status.last is not None and status.last.body["rows_read"] == 2
    assert next(each.name for each in lake.plan().consumers) == "counter"
    assert [seq for seq, _ in items.readers.marks()] == [1]


def test_a_program_that_does_not_declare_it_leaves_it_alone(lake: sl.Lake, items: sl.Table, counted: sl.Table) -> None:
    put(items, 1, 2)
    lake.tick(only=["counter"])
    put(items, 3)
    other = sl.Lake(lake.storage.uri)
    assert "counter" not in [each.name for each in other.tick().consumers]
    (status,) = other.status().marked
    assert (status.is_declared, status.lag.rows, status.error) == (False, 1, None)
    assert counts(counted) == 2
    lake.tick()
    assert counts(counted) == 3


def test_it_can_be_retired_and_started_again(lake: sl.Lake, items: sl.Table, counted: sl.Table) -> None:
    put(items, 1, 2)
    lake.tick()
    commands.retire(lake, "counter")
    put(items, 3)
    assert "counter" not in [each.name for each in lake.tick().consumers] and items.readers.marks() == []
    commands.reset(lake, "counter")
    lake.tick()
    assert counts(counted) == 2 + 3


def test_a_name_is_taken_once(lake: sl.Lake, items: sl.Table, counted: sl.Table, tmp_path: Path) -> None:
    with pytest.raises(sl.Invalid, match="counter"):
        lake.sink("counter", "items", to=sl.ParquetSink(str(tmp_path / "out")))
    lake.sink("archive", "items", to=sl.ParquetSink(str(tmp_path / "out")))
    with pytest.raises(sl.Invalid, match="archive"):
        lake.consumer(type(lake.consumers["counter"])("archive", "items", into=counted))  # type: ignore[call-arg]


def test_a_table_that_is_not_there_is_refused(lake: sl.Lake, items: sl.Table, counted: sl.Table) -> None:
    with pytest.raises(sl.NotFound):
        lake.consumer(type(lake.consumers["counter"])("other", "nope", into=counted))  # type: ignore[call-arg]


class Simple(sl.LogConsumer):
    """A consumer that does what a test tells it."""

    kind = "simple"

    def __init__(self, name: str, table: str, act: Any, **options: Any) -> None:
        super().__init__(name, table, **options)
        self.act = act

    @property
    def destination(self) -> str:
        return "nowhere"

    def run(self, work: sl.Work) -> sl.Receipt:
        return self.act(work)


@pytest.mark.parametrize(
    "answer", [None, sl.Receipt(ends={(0,): LaneEnd(error=sl.Unavailable("away"))})], ids=["nothing", "another lane"]
)
def test_a_receipt_that_cannot_be_read_moves_no_mark(lake: sl.Lake, items: sl.Table, answer: Any) -> None:
    lake.consumer(Simple("one", "items", lambda work: answer))
    put(items, 1, 2)
    (report,) = lake.tick(only=["one"]).consumers
    assert isinstance(report.error, sl.Internal) and report.upto is None
    assert set(lake.consumer_state("one").marks.values()) == {0}


@pytest.mark.parametrize("kind", ["http", "compaction", "retention"])
def test_the_kinds_of_strandline_are_taken(lake: sl.Lake, items: sl.Table, kind: str) -> None:
    own = type("Own", (Simple,), {"kind": kind})
    with pytest.raises(sl.Invalid, match=kind):
        lake.consumer(own("one", "items", lambda work: sl.Receipt()))


def test_a_definition_need_not_name_its_start(lake: sl.Lake, items: sl.Table) -> None:
    own = type("Own", (Simple,), {"to_dict": lambda self: {"size": 3}})
    lake.consumer(own("one", "items", lambda work: sl.Receipt(rows=1)))
    put(items, 1)
    assert lake.tick(only=["one"]).consumers[0].error is None
    assert lake.state.registry.get("one").definition == {"size": 3, "start": "backfill"}


def test_work_on_spark_sees_the_rows_that_work_on_the_driver_sees(spark: Any, lake: sl.Lake, items: sl.Table) -> None:
    seen: list[tuple[int, int]] = []

    def compare(work: sl.Work) -> sl.Receipt:
        with work.batches() as batches:
            here = sorted((row["_seq"], row["id"]) for batch in batches for row in batch.to_pylist())
        with work.frame() as frame:
            there = sorted((row["_seq"], row["id"]) for row in frame.collect())
        assert here == there
        seen.append((work.upto, len(here)))
        return sl.Receipt(rows=len(here))

    items.spark = spark
    put(items, *range(10))
    lake.consumer(Simple("whole", "items", compare))
    lake.consumer(Simple("late", "items", compare, start="head"))
    report = lake.tick(only=["whole", "late"])
    assert [each.error for each in report.consumers] == [None, None] and sorted(seen) == [(1, 0), (1, 10)]
    put(items, 3)
    lake.tick(only=["whole", "late"])
    assert sorted(seen)[2:] == [(2, 1), (2, 1)]


def test_progress_ends_at_the_whole_also_when_a_repeated_work_fails_again(lake: sl.Lake, items: sl.Table) -> None:
    def fail(work: sl.Work) -> sl.Receipt:
        raise sl.Unavailable("away")

    lake.consumer(Simple("one", "items", fail))
    put(items, *range(10))
    told: list[tuple[int, int]] = []
    for _ in range(2):
        report = lake.tick(only=["one"], progress=lambda done, whole, what: told.append((done, whole)))
        assert len(report.consumers[0].errors) == 1 and told[-1] == (10, 10)


def test_a_panic_of_a_library_stops_no_other_consumer(lake: sl.Lake, items: sl.Table, counted: sl.Table) -> None:
    class Panic(BaseException):
        pass

    def panic(work: sl.Work) -> sl.Receipt:
        raise Panic("unreachable code")

    lake.consumer(Simple("one", "items", panic))
    put(items, 1, 2)
    report = lake.tick()
    assert {each.name: each.error is None for each in report.consumers if "/" not in each.name} == {
        "counter": True,
        "one": False,
    }
