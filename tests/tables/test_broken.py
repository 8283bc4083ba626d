"""A table that cannot be looked after, for whatever reason: the others are, and its fault is told."""

import json

import pytest

import strandline as sl
from strandline.cli import main
from strandline.consumers import compaction, fold_lane, retention
from strandline.tables.broken import BrokenTable, try_table
from support import ITEMS


class Panic(BaseException):
    """What a library written in Rust raises."""


@pytest.fixture
def three(lake):
    """Three tables with something to fold; the one in the middle will be at fault."""
    for name in ("a", "b", "c"):
        table = lake.create_table(name, ITEMS, key=["id"], vnodes=2, compact_ratio=0)
        table.upsert([{"id": at, "name": name} for at in range(20)])
    return lake


def fail_for_b(monkeypatch, module, name, error):
    """Make a function fail for the table b."""
    real = getattr(module, name)

    def act(table, *args, **options):
        if table.name == "b":
            raise error
        return real(table, *args, **options)

    monkeypatch.setattr(module, name, act)


UNFORESEEN = [
    RuntimeError("no such thing"),
    KeyError("x"),
    Panic("index out of bounds"),
    MemoryError("all"),
    OSError(5, "x"),
]


@pytest.mark.parametrize("error", UNFORESEEN, ids=lambda error: type(error).__name__)
def test_a_table_that_cannot_be_folded_keeps_no_other_from_it(three, monkeypatch, error):
    fail_for_b(monkeypatch, compaction, "fold_on_driver", error)
    a, b, c = three.compact(full=True)
    assert (a.vnodes, c.vnodes) == (2, 2)
    assert isinstance(b, BrokenTable)
    assert (b.name, b.kind) == ("b", "Internal")
    assert type(error).__name__ in b.message


@pytest.mark.parametrize("error", UNFORESEEN, ids=lambda error: type(error).__name__)
def test_a_tick_goes_on_behind_a_table_that_cannot_be_folded(three, monkeypatch, error):
    fail_for_b(monkeypatch, compaction, "fold_on_driver", error)
    report = three.tick()
    told = {each.table: each for each in report.compacted}
    assert (told["a"].facts["vnodes"], told["c"].facts["vnodes"]) == (2, 2)
    assert isinstance(told["b"].error, sl.Internal) and type(error).__name__ in told["b"].error.message
    assert not report.is_well
    assert report.to_dict()["consumers"][1]["error"]["message"] == told["b"].error.message


def test_a_tick_tells_of_a_table_of_which_it_cannot_say_whether_it_is_due(three, monkeypatch):
    fail_for_b(monkeypatch, retention, "due_horizon", ZeroDivisionError("division by zero"))
    report = three.tick()
    assert [each.name for each in report.consumers if each.error] == ["retention/b"]
    assert [each.table for each in report.compacted if each.error is None] == ["a", "b", "c"]
    assert not report.is_well
    assert [each.name for each in three.plan().consumers if each.error] == ["retention/b"]


def test_a_tick_goes_on_behind_a_table_whose_rows_cannot_expire(three, monkeypatch):
    monkeypatch.setattr(retention, "due_horizon", lambda table: 1)
    report = three.tick()
    assert sorted(each.table for each in report.consumers if each.error is not None) == ["a", "b", "c"]
    assert sorted(each.table for each in report.compacted if each.error is None) == ["a", "b", "c"]


def test_a_table_that_cannot_be_vacuumed_keeps_no_other_from_it(three, monkeypatch):
    from strandline.jobs import lake_vacuum

    fail_for_b(monkeypatch, lake_vacuum, "vacuum", RuntimeError("no such thing"))
    found = three.vacuum()
    assert [isinstance(each, BrokenTable) for each in found.tables] == [False, True, False]


@pytest.mark.parametrize("verb", ["compact", "vacuum", "tick", "status", "plan"])
def test_the_command_line_tells_of_every_table_and_ends_with_1(three, monkeypatch, capsys, verb):
    from strandline.jobs import lake_vacuum

    error = RuntimeError("no such thing")
    for module, name in {
        "compact": [(compaction, "fold_on_driver")],
        "vacuum": [(lake_vacuum, "vacuum")],
        "tick": [(compaction, "fold_on_driver")],
        "status": [(sl.Table, "merge")],
        "plan": [(retention, "due_horizon")],
    }[verb]:
        fail_for_b(monkeypatch, module, name, error)
    with pytest.raises(sl.Unavailable):
        three.sql("SELECT count(*) FROM range(1000000000000) t(x) WHERE x % 7 = 3", timeout_s=0.01)
    # Work that was stopped before does not end the process of who calls `main`.
    code = exit_code(["--lake", three.storage.uri, verb, "--json"])
    data = json.loads(capsys.readouterr().out)
    assert code == 1
    assert "RuntimeError: no such thing" in json.dumps(data)
    if verb in ("compact", "vacuum", "status"):
        assert len(data["tables"]) == 3
    exit_code(["--lake", three.storage.uri, verb])
    out = capsys.readouterr().out
    assert "b: Internal" in out and "Traceback" not in out


def exit_code(arguments):
    try:
        main(arguments)
    except SystemExit as ended:
        return ended.code
    return 0


def test_the_true_cause_of_a_failed_fold_is_told(three, monkeypatch):
    """A writer that fails leaves a result open; what DuckDB says of that is not the cause."""

    def fail(part, batches, account):
        next(batches)
        raise LookupError("the true cause")
        yield

    monkeypatch.setattr(fold_lane, "_write_rows", fail)
    (broken,) = three.compact(["b"], full=True)
    assert (broken.kind, "the true cause" in broken.message) == ("Internal", True)
    monkeypatch.undo()
    (report,) = three.compact(["b"], full=True)
    assert report.vnodes == 2, "and DuckDB goes on"


def test_a_commit_that_fails_does_not_hide_why_the_block_did(lake):
    with pytest.raises(LookupError, match="the true cause"), lake.duck.transaction() as cursor:
        cursor.execute("SELECT * FROM range(1000000)")
        raise LookupError("the true cause")
    with pytest.raises(sl.StrandlineError), lake.duck.transaction() as cursor:
        cursor.execute("SELECT error('the true cause')").fetchall()
    assert lake.duck.table("SELECT 1 AS x").to_pylist() == [{"x": 1}]


def test_an_interrupt_is_no_fault_of_a_table():
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        try_table("t", interrupt)
