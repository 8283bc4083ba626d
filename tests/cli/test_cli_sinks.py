"""The command line for sinks: what a person reads, what a program reads, and what a signal does."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_cli import Run, process
from typer.testing import CliRunner

import strandline as sl
from foreign_receiver import Endpoint, foreign_receiver
from strandline.cli import app
from strandline.cli.sinks import length, marks_text
from strandline.cli.verb import Call
from strandline.pipeline.redelivery import ReplayReport
from strandline.sinks.definition import KINDS
from strandline.state.leases import this_worker
from support import environment, files_below, python

ITEMS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("email", pa.string())])


def sinks_in(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The sinks among the consumers of a plan, a tick or a status."""
    return [each for each in document["consumers"] if each["kind"] in KINDS]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for name in ("LAKE", "APP", "STATE"):
        monkeypatch.delenv(f"STRANDLINE_{name}", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    # Programs of other tests have the same names.
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture
def items() -> sl.Table:
    table = sl.Lake("lake").create_table("items", ITEMS, key=["id"], vnodes=4)
    table.upsert(rows(*range(10)))
    return table


@pytest.fixture
def archive(run: Run, items: sl.Table) -> Run:
    """A sink that has sent one commit."""
    run("sink", "add", "archive", "items", "--to", "out")
    run("tick")
    return run


def rows(*ids: int, name: str = "n") -> list[dict[str, Any]]:
    return [{"id": id, "name": f"{name}{id}", "email": f"{id}@x"} for id in ids]


def sent(place: str = "out") -> list[dict[str, Any]]:
    """What a Parquet sink's manifests name."""
    found: list[dict[str, Any]] = []
    for manifest in Path(place).glob("_strandline/**/*.json"):
        for file in json.loads(manifest.read_text())["files"]:
            found += pq.read_table(Path(place) / file["path"]).to_pylist()
    return sorted(found, key=lambda row: (row["_seq"], row["id"]))


def write_app(name: str, text: str) -> None:
    Path(f"{name}.py").write_text(f"import strandline as sl\nlake = sl.Lake('lake')\n{text}\n")


def test_the_examples_of_sinks_print_what_the_page_says() -> None:
    text = (Path(__file__).parents[2] / "docs" / "sinks.md").read_text()
    ended = python("\n".join(re.findall(r"```python\n(.*?)```", text, re.S)))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "".join(re.findall(r"```text\n(.*?)```", text, re.S))


# --- plan and tick ----------------------------------------------------------------------------------------------


def test_a_sink_is_added_planned_sent_and_then_up_to_date(run: Run, items: sl.Table, tmp_path: Path) -> None:
    assert "strandline sink add NAME TABLE --to DEST" in run("plan")
    assert run("sink", "list") == "There are no sinks. Add one: strandline sink add NAME TABLE --to DEST\n"
    said = run("sink", "add", "archive", "items", "--to", "out")
    assert f"Added the sink archive: items → {tmp_path}/out; the table as it is, about 10 rows, is sent first." in said
    assert "strandline tick archive" in said
    (planned,) = sinks_in(run.json("plan"))
    assert (planned["name"], planned["table"], planned["rows"]) == ("archive", "items", 10)
    assert [planned["works"][0][each] for each in ("after", "upto", "source", "engine")] == [0, 1, "snapshot", "driver"]
    assert "0 → 1" in run("plan") and "sends the table as it is" in run("plan")
    assert not Path("out").exists()
    said = run("tick")
    assert f"archive: sent the table items to {tmp_path}/out: 10 rows, " in said and "seq 0 → 1" in said
    assert "items: compacted 4 vnodes up to seq 1" in said
    assert len(sent()) == 10
    assert run("tick") == "Everything is up to date.\n"
    assert "up to date" in run("plan")
    items.upsert(rows(3, 4))
    (done,) = sinks_in(run.json("tick"))
    assert [done[each] for each in ("name", "rows", "after", "upto", "error")] == ["archive", 2, 1, 2, None]
    assert len(sent()) == 12


def test_a_dry_run_shows_the_plan_and_does_nothing(archive: Run, items: sl.Table) -> None:
    items.upsert(rows(1))
    archive("sink", "add", "other", "items", "--to", "other")
    before = files_below(".")
    found = archive.json("tick", "--dry-run")
    assert [(sink["name"], sink["rows"]) for sink in sinks_in(found)] == [("archive", 1), ("other", 11)]
    assert found["is_dry_run"] is True
    assert "Nothing was written." in archive("tick", "--dry-run")
    (only,) = sinks_in(archive.json("tick", "archive", "--dry-run"))
    assert only["name"] == "archive"
    assert {name for name in files_below(".") ^ before if "state.db" not in name} == set()


def test_single_sinks_are_ticked_by_name(archive: Run, items: sl.Table) -> None:
    archive("sink", "add", "other", "items", "--to", "other", "--start", "head")
    assert "other: at seq 1; nothing had to be sent." in archive("tick", "other")
    items.upsert(rows(1))
    assert [sink["name"] for sink in sinks_in(archive.json("tick", "archive", "archive"))] == ["archive"]
    for words in (("tick", "nope"), ("tick", "nope", "--dry-run"), ("sink", "show", "nope"), ("mark", "show", "nope")):
        error = archive.json(*words, code=1)["error"]
        assert (error["kind"], error["consumer"]) == ("NotFound", "nope")
        assert "archive, other" in error["hint"]


def test_a_tick_without_sinks_cares_for_the_tables(run: Run, items: sl.Table) -> None:
    assert "compaction/items" in run("plan")
    assert "items: compacted 4 vnodes" in run("tick")
    said = run("tick")
    assert said.startswith("Everything is up to date.\n") and "strandline sink add" in said


def test_a_sink_that_fails_is_told_and_stops_no_other(archive: Run, items: sl.Table) -> None:
    archive("sink", "add", "other", "items", "--to", "other")
    for manifest in Path("out").glob("_strandline/**/*.json"):
        manifest.unlink()
    items.upsert(rows(1))
    failed, other = sinks_in(archive.json("tick", code=1))
    assert (failed["name"], failed["error"]["kind"], other["rows"]) == ("archive", "Conflict", 10)
    said = archive("tick", code=1)
    assert "archive: Conflict: sink 'archive' delivered up to seq 1" in said
    assert "strandline mark reset archive" in said
    said = archive("status", code=1)
    assert "archive failed: sink 'archive' delivered up to seq 1" in said
    assert sinks_in(archive.json("status", code=1))[0]["error"]
    assert "strandline --lake ./lake/ mark reset archive" in archive("--lake", "./lake/", "tick", code=1)
    (finding,) = [each for each in archive.json("doctor", code=1)["findings"] if each["severity"] == "wrong"]
    assert (finding["table"], finding["command"]) == ("items", "tick archive")
    said = archive("doctor", code=1)
    assert "wrong    items: sink archive failed: sink 'archive' delivered up to seq 1" in said
    assert "Everything holds" not in said and "Put files" not in said


def test_what_is_said_of_a_sink_stands_below_its_own_line(archive: Run, items: sl.Table) -> None:
    archive("sink", "add", "web", "items", "--to", "https://example.org/x", "--token", "env:NOT_SET")
    archive("mark", "retire", "archive", "--yes")
    write_app("pipeline", "lake.sink('mine', 'items', to=sl.HttpSink('https://example.org/x', token='env:NOT_SET'))")
    said = archive("--app", "pipeline", "tick", "mine", "web", code=1).splitlines()
    assert said[0].startswith("mine: Invalid: ")
    notes = said[1 : next(at for at, line in enumerate(said) if line.startswith("web: Invalid: "))]
    assert notes[-1] == "  new: registered for the first time"
    assert all(line.startswith("  ") for line in notes)


def test_a_destination_that_was_away_is_a_note_of_the_doctors(run: Run, items: sl.Table) -> None:
    run("sink", "add", "web", "items", "--to", "http://127.0.0.1:9/x")
    run("tick", code=1)
    (finding,) = [each for each in run.json("doctor")["findings"] if each["command"] == "tick web"]
    assert finding["severity"] == "note" and "the next tick tries again" in finding["what"]


def test_a_sink_that_another_works_on_is_left_to_it(archive: Run, items: sl.Table) -> None:
    items.upsert(rows(1))
    lake = sl.Lake("lake")
    with lake.state.leases.hold("consumer/archive", this_worker()):
        (report,) = sinks_in(archive.json("tick"))
        assert report["is_busy"] is True
        assert "archive: left to another runner: " in archive("tick")
        assert f"working ({os.uname().nodename}:{os.getpid()})" in archive("status")
    assert sinks_in(archive.json("tick"))[0]["rows"] == 1


def test_what_a_killed_tick_began_is_repeated_once(run: Run, items: sl.Table) -> None:
    run("sink", "add", "archive", "items", "--to", "out")
    assert process("tick", crash="sink.published").returncode == -9
    items.upsert(rows(10))
    assert "repeats what an earlier run began" in run("plan")
    assert "repeated 1 batch begun earlier" in run("tick")
    assert [row["id"] for row in sent()] == list(range(11))


# --- the program ------------------------------------------------------------------------------------------------


def test_a_program_says_which_lake_and_which_sinks(run: Run, items: sl.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    write_app("pipeline", "lake.sink('mine', 'items', to=sl.ParquetSink('mine'), where='id < 3')")
    assert sinks_in(run.json("--app", "pipeline:lake", "plan"))[0]["why"]
    assert "never ran" in run("sink", "list", "--app", "pipeline")
    shown = run.json("sink", "show", "mine", "--app", "pipeline")
    assert (shown["definition"]["where"], shown["life"], shown["lives"]) == ("id < 3", 0, [])
    monkeypatch.setenv("STRANDLINE_APP", "pipeline:lake")
    assert sinks_in(run.json("tick"))[0]["rows"] == 3
    assert sinks_in(run.json("status"))[0]["is_declared"] is True
    assert sinks_in(run.json("--lake", "lake", "status"))[0]["is_declared"] is False, "what is said counts first"
    error = run.json("sink", "add", "mine", "items", "--to", "elsewhere", code=1)["error"]
    assert (error["kind"], error["consumer"]) == ("Invalid", "mine")
    assert "strandline --app pipeline:lake table show items" in run(
        "table", "create", "items", "--schema", "a:int64", code=1
    )


def test_what_a_program_prints_is_not_part_of_an_answer(items: sl.Table) -> None:
    write_app("pipeline", "print('hello')")
    result = CliRunner().invoke(app, ["--app", "pipeline", "status", "--json"])
    assert json.loads(result.stdout)["tables"] and result.stderr == "hello\n"


BAD_APPS = [
    ("nowhere", "", {}, "PYTHONPATH"),
    ("bad.py", "", {}, "--app bad:lake"),
    ("a-b", "", {}, "--app pipeline:lake"),
    ("bad:tank", "", {}, "--app bad:lake"),
    ("bad:other", "other = 1", {}, "--app pipeline:lake"),
    ("bad", "lake.sink('a', 'nope', to=sl.ParquetSink('out'))", {"file": "bad.py", "line": 3}, "Tables: items"),
    ("bad", "1 / 0", {"file": "bad.py", "line": 3}, "--debug"),
    ("bad", "import nowhere", {"file": "bad.py", "line": 3}, "--debug"),
    ("bad", "x = (", {"file": "bad.py", "line": 3}, "--debug"),
    ("bad", "raise SystemExit", {"file": "bad.py", "line": 3}, "__main__"),
]


@pytest.mark.parametrize(
    ("app", "text", "fields", "hint"), BAD_APPS, ids=[f"{a} {t}".strip() for a, t, _, _ in BAD_APPS]
)
def test_a_program_that_is_not_as_it_should_be_is_told(
    run: Run, items: sl.Table, app: str, text: str, fields: dict[str, Any], hint: str
) -> None:
    write_app("bad", text)
    error = run.json("--app", app, "status", code=1)["error"]
    assert (error["kind"], error["app"]) == ("Invalid", app)
    assert fields.items() <= error.items()
    assert hint in error["hint"]
    assert "Invalid: " in run("--app", app, "status", code=1)


def test_the_lake_the_program_and_the_state_do_not_contradict(
    run: Run, items: sl.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_app("pipeline", "")
    for words in (
        ("--app", "pipeline", "--lake", "lake", "status"),
        ("--app", "pipeline", "status", "--lake", "lake"),
        ("--app", "pipeline", "--state", "sqlite:///x.db", "status"),
        ("--app", "pipeline", "demo"),
        ("--state", "sqlite:///x.db", "demo"),
    ):
        run(*words, code=2)
    monkeypatch.setenv("STRANDLINE_APP", "pipeline")
    run("status", "--state", "sqlite:///x.db", code=2)
    monkeypatch.setenv("STRANDLINE_STATE", "sqlite:///x.db")
    run("status")
    monkeypatch.setenv("STRANDLINE_LAKE", "lake")
    run("status", code=2)
    run("status", "--app", "pipeline")
    run("status", "--lake", "lake")


def test_a_state_elsewhere_is_named_before_or_after_the_verb_or_by_the_environment(
    run: Run, items: sl.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/elsewhere.db"
    run("--state", url, "sink", "add", "archive", "items", "--to", "out")
    assert sinks_in(run.json("tick", "--state", url))[0]["rows"] == 10
    assert (tmp_path / "elsewhere.db").exists() and not (tmp_path / "lake" / "state.db").exists()
    assert run.json("status", code=1)["state_fault"], "the lake knows that its state is another one"
    monkeypatch.setenv("STRANDLINE_STATE", url)
    assert sinks_in(run.json("status"))[0]["name"] == "archive"


def test_a_password_is_not_repeated_in_a_command() -> None:
    for url in ("postgresql://me:secret@host/db", "postgresql://host/db?user=me&password=secret&x=1"):
        command = Call("./lake", False, False, state=url, is_state_given=True).command("tick")
        assert "secret" not in command and "***" in command and command.endswith(" tick")


# --- sinks ------------------------------------------------------------------------------------------------------


def test_a_sink_takes_a_filter_columns_masks_and_a_start(
    run: Run, items: sl.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SALT", "pepper")
    words = ("--where", "id >= 8", "--columns", "email", "--mask", "email=hash", "--salt", "env:SALT", "--no-deletes")
    done = run.json("sink", "add", "a", "items", "--to", "out", *words, "--start", "0")
    assert done["definition"] == {
        "to": {"kind": "parquet", "uri": done["destination"], "options": None},
        "where": "id >= 8",
        "columns": ["email"],
        "mask": {"email": "hash"},
        "salt": "env:SALT",
        "deletes": False,
        "start": 0,
    }
    run("tick")
    assert [(row["id"], len(row["email"])) for row in sent()] == [(8, 64), (9, 64)]
    said = run("sink", "show", "a")
    for fact in ("id >= 8", "email=hash", "env:SALT", "not sent", "with what comes after seq 0", "seq 1"):
        assert fact in said
    assert "pepper" not in said


def test_the_kind_of_a_sink_is_guessed_or_said(run: Run, items: sl.Table, tmp_path: Path) -> None:
    catalog = ("type=sql", f"uri=sqlite:///{tmp_path}/catalog.db", f"warehouse=file://{tmp_path}/warehouse")
    for name, words in {
        "http": ("--to", "https://example.org/ingest/items", "--token", "env:TOKEN", "--receiver", "any"),
        "parquet": ("--to", "out"),
        "delta": ("--to", "mirror", "--kind", "delta"),
        "iceberg": ("--to", "ns.items", "--kind", "iceberg", *(w for each in catalog for w in ("--catalog", each))),
    }.items():
        assert run.json("sink", "add", name, "items", *words)["kind"] == name
    assert [sink["kind"] for sink in run.json("sink", "list")["sinks"]] == ["delta", "http", "iceberg", "parquet"]
    assert "env:TOKEN" in run("sink", "show", "http")
    for words in (
        ("--to", "out", "--token", "env:X"),
        ("--to", "out", "--receiver", "any"),
        ("--to", "out", "--catalog", "type=rest"),
        ("--to", "ns.items", "--kind", "iceberg"),
        ("--to", "ns.items", "--kind", "iceberg", "--catalog", "type"),
        ("--to", "out", "--mask", "email"),
        ("--to", "out", "--mask", "email=hash", "--mask", "email=null"),
        ("--to", "out", "--start", "tomorrow"),
        ("--to", "out", "--kind", "carrier-pigeon"),
        (),
    ):
        run("sink", "add", "x", "items", *words, code=2)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("x", "items", "--to", "http://127.0.0.1:9/x", "--token", "plain"), "Invalid"),
        (("x", "items", "--to", "out", "--mask", "email=hash", "--salt", "plain"), "Invalid"),
        (("x", "items", "--to", "out", "--mask", "nope=hash"), "Invalid"),
        (("x", "items", "--to", "out", "--where", "nope = 1"), "Invalid"),
        (("x", "items", "--to", "out", "--start", "99"), "Invalid"),
        (("x", "items", "--to", "lake/below"), "Invalid"),
        (("a b", "items", "--to", "out"), "Invalid"),
        (("x", "nope", "--to", "out"), "NotFound"),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_sink_that_could_not_work_is_not_added(run: Run, items: sl.Table, words: tuple[str, ...], kind: str) -> None:
    assert run.json("sink", "add", *words, code=1)["error"]["kind"] == kind
    assert run.json("sink", "list")["sinks"] == []


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("token", ("--to", "https://example.org/x", "--token", "hunter2-plain")),
        ("salt", ("--to", "out", "--mask", "email=hash", "--salt", "hunter2-plain")),
        ("uri", ("--catalog", "type=sql", "--catalog", "uri=postgresql://me:hunter2-plain@127.0.0.1:1/cat")),
        ("uri", ("--catalog", "type=sql", "--catalog", "uri=postgresql://h:1/cat?password=hunter2-plain")),
        ("uri", ("--catalog", "type=rest", "--catalog", "uri=http://me:hunter2-plain@127.0.0.1:1/cat")),
        ("warehouse", ("--catalog", "type=rest", "--catalog", "warehouse=s3://key:hunter2-plain@bucket/wh")),
        ("credential", ("--catalog", "type=rest", "--catalog", "credential=me:hunter2-plain")),
        ("s3.secret-access-key", ("--catalog", "type=rest", "--catalog", "s3.secret-access-key=hunter2-plain")),
        (None, ("--to", "https://me:hunter2-plain@example.org/x")),
        (None, ("--to", "https://example.org/x?code=hunter2-plain")),
        (None, ("--to", "s3://key:hunter2-plain@bucket/x")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_secret_that_would_be_left_out_is_refused_with_the_way_to_name_it(
    run: Run, items: sl.Table, setting: str | None, words: tuple[str, ...]
) -> None:
    kind = ("--to", "ns.items", "--kind", "iceberg") if words[0] == "--catalog" else ()
    error = run.json("sink", "add", "x", "items", *kind, *words, code=1)["error"]
    assert (error["kind"], error.get("setting")) == ("Invalid", setting)
    assert "hunter2" not in json.dumps(error)
    assert setting is None or "env:NAME" in error["hint"]
    assert run.json("sink", "list")["sinks"] == []


def test_changing_a_sink_says_what_changes_and_asks(archive: Run, items: sl.Table, tmp_path: Path) -> None:
    assert "Sink archive is unchanged." in archive("sink", "add", "archive", "items", "--to", "out")
    words = ("sink", "add", "archive", "items", "--mask", "email=null")
    assert archive.json(*words, "--to", "out", code=1)["error"]["kind"] == "Invalid"
    said = archive(*words, "--to", "out", code=1, stdin="n\n")
    assert "It continues from its mark, with mask: none → email=null. Go on?" in said
    assert "Sink archive continues from its mark, with mask: none → email=null.\n" in archive(
        *words, "--to", "out", "--yes"
    )
    assert "Sink archive continues from its mark, with mask: email=null → email=redact.\n" in archive(
        "sink", "add", "archive", "items", "--mask", "email=redact", "--to", "out", stdin="y\n"
    )
    said = archive(*words, "--to", "other", code=1, stdin="n\n")
    assert f"Destination changed from {tmp_path}/out to {tmp_path}/other: it starts again" in said
    assert archive.json("sink", "show", "archive")["life"] == 1
    said = archive(*words, "--to", "other", "--yes")
    assert f"starts again as a new generation (destination changed from {tmp_path}/out to {tmp_path}/other): " in said
    assert archive.json("sink", "show", "archive")["life"] == 2
    assert [life["life"] for life in archive.json("sink", "show", "archive")["lives"]] == [1, 2]
    archive("tick")
    assert [row["email"] for row in sent("other")] == [None] * 10


def test_another_sink_with_the_same_destination_is_named(archive: Run, items: sl.Table, tmp_path: Path) -> None:
    said = archive("sink", "add", "second", "items", "--to", "out")
    assert f"Sink archive goes to {tmp_path}/out as well: the rows of both will be there" in said
    archive("mark", "retire", "archive", "--yes")
    assert archive.json("sink", "add", "third", "items", "--to", "out")["shared_with"] == ["second"]
    assert archive.json("sink", "add", "other", "items", "--to", "other")["shared_with"] == []


@pytest.mark.parametrize("to", ["htp://host/x", "localhost:8701/ingest/items", "127.0.0.1:8701", "ftp://me:key@host"])
def test_what_looks_like_a_server_is_no_folder(run: Run, items: sl.Table, to: str) -> None:
    error = run.json("sink", "add", "x", "items", "--to", to, code=1)["error"]
    assert error["kind"] == "Invalid" and "http(s)://" in error["hint"]
    assert "key" not in error["message"] + error["hint"]


def test_names_that_no_sink_can_have_are_told_as_such(run: Run, items: sl.Table) -> None:
    error = run.json("sink", "add", "a b", "items", "--to", "out", code=1)["error"]
    assert (error["kind"], error["consumer"]) == ("Invalid", "a b")
    assert "sink" in error["message"] and "letters" in error["hint"]


# --- marks ------------------------------------------------------------------------------------------------------


def test_marks_show_how_far_a_sink_is(archive: Run, items: sl.Table) -> None:
    (mark,) = archive.json("mark", "show")["consumers"]
    assert (mark["marks"], mark["lag"]["commits"]) == ({"0": 1, "1": 1, "2": 1, "3": 1}, 0)
    items.upsert(rows(1))
    items.upsert(rows(2, 3))
    said = archive("mark", "show", "archive")
    assert re.search(r"mark +seq 1\nlag +2 commits, 3 rows, \d+ s\nunder way +nothing", said)
    assert re.search(r"last +10 rows, [\d.]+ k?B, 20\d\d-", said)
    assert archive.json("mark", "show", "archive")["consumers"][0]["lag"]["rows"] == 3


def test_texts_of_marks_and_lengths() -> None:
    assert marks_text({}) == "none: it has not started"
    assert marks_text({0: 1200, 1: 1200}) == "seq 1,200"
    assert marks_text({0: 5, 1: 5, 2: 7, 3: 5, 5: 5}) == (
        "vnodes 0-1 at seq 5, vnode 2 at seq 7, vnode 3 at seq 5, vnode 5 at seq 5"
    )
    assert [length(each) for each in (0.4, 119, 300, 9000, 400_000)] == ["0 s", "119 s", "5 min", "2 h", "5 d"]


def test_a_reset_says_what_it_causes_asks_and_sends_again(archive: Run, items: sl.Table, tmp_path: Path) -> None:
    items.upsert(rows(20))
    assert archive.json("mark", "reset", "archive", code=1)["error"]["kind"] == "Invalid"
    said = archive("mark", "reset", "archive", code=1, stdin="n\n")
    assert f"the table items as it is, about 11 rows, will be sent to {tmp_path}/out again." in said
    assert "What is there stays there. Go on?" in said
    for words, text in (
        ((), "about 11 rows"),
        (("--head",), "What was not sent, 1 commit (1 row), never will be."),
        (("--to", "0"), "the changes of items after seq 0, about 11 rows"),
        (("--to", "2"), "What was not sent up to seq 2 never will be."),
    ):
        said = archive("mark", "reset", "archive", *words, "--dry-run")
        assert text in said and said.endswith("Nothing was written.\n")
    assert archive.json("mark", "show")["consumers"][0]["life"] == 1
    archive("mark", "reset", "archive", "--to", "1", "--head", code=2)
    assert archive.json("mark", "reset", "archive", "--to", "9", "--yes", code=1)["error"]["kind"] == "Invalid"
    done = archive.json("mark", "reset", "archive", "--yes")
    assert (done["life"], done["rows"], done["was"]) == (2, 11, {"0": 1, "1": 1, "2": 1, "3": 1})
    assert sinks_in(archive.json("tick"))[0]["rows"] == 11
    assert "Sink archive is in generation 3 now." in archive("mark", "reset", "archive", "--head", stdin="y\n")
    assert sinks_in(archive.json("tick"))[0]["rows"] == 0
    assert len(sent()) == 21


def test_a_retired_sink_sends_nothing_until_it_is_started_again(archive: Run, items: sl.Table) -> None:
    items.upsert(rows(20))
    text = "What was not sent, 1 commit (1 row), never will be; the log is no longer kept for it."
    assert text in archive("mark", "retire", "archive", "--dry-run")
    assert archive.json("mark", "retire", "archive", code=1)["error"]["kind"] == "Invalid"
    assert "Aborted" in archive("mark", "retire", "archive", code=1, stdin="n\n")
    said = archive("mark", "retire", "archive", stdin="y\n")
    assert text in said and "strandline mark reset archive" in said
    assert sinks_in(archive.json("tick")) == []
    assert archive("tick") == "Everything is up to date.\n"
    named = archive("--lake", "./lake/", "tick", "archive", code=1)
    assert named == "archive is retired; to use it again: strandline --lake ./lake/ mark reset archive\n"
    assert archive.json("tick", "archive", code=1)["retired"] == ["archive"]
    assert "1 retired sink is not shown" in archive("status") and "retired" in archive("status", "--all")
    assert "archive" not in archive("plan") and "retired" in archive("plan", "--all")
    error = archive.json("mark", "retire", "archive", "--yes", code=1)["error"]
    assert (error["kind"], error["consumer"]) == ("Invalid", "archive")
    assert "begins a new generation and works again" in archive("mark", "reset", "archive", "--dry-run")
    assert archive.json("sink", "add", "archive", "items", "--to", "out")["life"] == 2
    assert sinks_in(archive.json("tick"))[0]["rows"] == 11


# --- dead letters -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with foreign_receiver(tmp_path_factory.mktemp("foreign")) as address:
        yield address


@pytest.fixture
def central(run: Run, items: sl.Table, receiver: str, tmp_path: Path) -> Endpoint:
    """A receiver that has refused the rows 5 and 600 of a sink."""
    endpoint = Endpoint(receiver, f"/{tmp_path.name}")
    endpoint.control(refuse={"column": "name", "value": "bad", "names_row": True})
    items.upsert([{"id": id, "name": "bad", "email": "x"} for id in (5, 600)])
    run("sink", "add", "central", "items", "--to", endpoint.url, "--receiver", "any")
    said = run("tick", code=1)
    assert "9 rows, " in said and "2 rows refused" in said and "strandline deadletter list central" in said
    return endpoint


def test_dead_letters_are_listed_and_shown(run: Run, items: sl.Table, central: Endpoint) -> None:
    found = run.json("deadletter", "list", "central")["deadletters"]
    assert [(letter["rows"], letter["status"], letter["attempts"]) for letter in found] == [(1, 422, 0)] * 2
    said = run("deadletter", "list", "--all")
    assert all(letter["id"][:8] in said and letter["id"] not in said for letter in found)
    assert "more: --limit 2" in run("deadletter", "list", "--all", "--limit", "1")
    (group,) = run.json("deadletter", "list")["groups"]
    assert (group["letters"], group["rows"], group["status"]) == (2, 2, 422)
    assert sorted(key["id"] for key in group["keys"]) == [5, 600]
    said = run("deadletter", "list")
    assert "central: 2 rows of items in 2 dead letters" in said and "strandline deadletter replay --all central" in said
    said = run("status", code=1)
    assert "central: 2 dead letters\n    strandline deadletter list central" in said
    assert run("doctor", code=1).count("2 dead letters") == 1
    assert run.json("tick", code=1)["attention"][0]["cause"] == "letters"
    by_key = {}
    for letter in found:
        shown = run.json("deadletter", "show", letter["id"][:8])
        assert shown["now"][0]["name"] == "bad"
        by_key[shown["keys"][0]["id"]] = letter["id"]
    assert set(by_key) == {5, 600}
    items.delete([600])
    assert "1 row is not there any more, or not to be sent: a replay sends deletes." in run(
        "deadletter", "show", by_key[600]
    )
    assert run.json("deadletter", "show", by_key[600])["now"] == []
    said = run("deadletter", "show", by_key[5][:8])
    assert "422 'bad' is not welcome" in said and by_key[5] in said and "upsert" in said
    for words in (("show", "zz"), ("replay", "zz"), ("drop", "zz", "--yes")):
        assert run.json("deadletter", *words, code=1)["error"]["kind"] == "NotFound"
    assert run.json("deadletter", "list", "nope", code=1)["error"]["kind"] == "NotFound"


def test_a_replay_sends_what_each_key_is_now(run: Run, items: sl.Table, central: Endpoint) -> None:
    first = run.json("deadletter", "list")["deadletters"][0]["id"]
    (again,) = run.json("deadletter", "replay", first[:8], code=1)["replayed"]
    assert (again["id"], again["error"]["kind"]) == (first, "Invalid")
    assert "0 of 1 arrived" in run("deadletter", "replay", first, code=1)
    assert run.json("deadletter", "show", first)["attempts"] == 2
    items.upsert([{"id": 5, "name": "good", "email": "x"}])
    items.delete([600])
    assert run("deadletter", "replay", "--all", "central").count("sent, 1 row.") == 2
    assert [(row["id"], row["_op"]) for row in central.rows()[9:]] in (
        [(5, "upsert"), (600, "delete")],
        [(600, "delete"), (5, "upsert")],
    )
    assert run("deadletter", "list") == "There are no dead letters.\n"
    assert run("deadletter", "replay", "--all") == "There are no dead letters.\n"
    run("deadletter", "replay", code=2)


def test_a_token_that_is_not_accepted_is_named_by_its_place(
    run: Run, items: sl.Table, receiver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = Endpoint(receiver, f"/{tmp_path.name}")
    endpoint.control(token="good")
    monkeypatch.setenv("TOKEN", "s3cret")
    run("sink", "add", "web", "items", "--to", endpoint.url, "--receiver", "any")
    said = run("tick", code=1)
    assert "has no token" in said and "strandline sink add … --token env:NAME" in said and "HttpSink(url, " in said
    run("sink", "add", "other", "items", "--to", endpoint.url, "--receiver", "any", "--token", "env:TOKEN")
    said = run("tick", "other", code=1)
    assert "read from env:TOKEN is not accepted" in said and "s3cret" not in said


def test_a_table_that_the_receiver_lacks_is_told_with_the_way_to_make_it(run: Run, items: sl.Table) -> None:
    run("init", "central")
    with start_run("--lake", "central", "serve", "--port", "0", "--json") as serving:
        assert serving.stdout is not None
        url = json.loads(serving.stdout.readline())["url"]
        run("sink", "add", "web", "items", "--to", f"{url}/ingest/items")
        said = run("tick", code=1)
        serving.send_signal(signal.SIGINT)
        assert serving.wait(20) == 0
    assert "strandline table create items --schema … --key …" in said and "strandline ingest items" in said
    assert "--receiver" not in said


def test_letters_that_were_not_tried_are_counted(run: Run, central: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def replay(lake: sl.Lake, ids: list[str], **_: object) -> list[ReplayReport]:
        away = sl.Unavailable("nobody is there")
        return [ReplayReport(id, "central", 1, away) for id in ids]

    monkeypatch.setattr("strandline.pipeline.redelivery.replay", replay)
    said = run("deadletter", "replay", "--all", code=1)
    assert said.count("Unavailable: nobody is there") == 1
    assert "  1 more letter of central: not tried.\n" in said and "0 of 2 arrived" in said


def test_dropping_dead_letters_asks(run: Run, central: Endpoint) -> None:
    first, second = (letter["id"] for letter in run.json("deadletter", "list")["deadletters"])
    assert run.json("deadletter", "drop", "--all", code=1)["error"]["kind"] == "Invalid"
    assert "Forget 2 dead letters (2 rows) of central?" in run("deadletter", "drop", "--all", code=1, stdin="n\n")
    assert run.json("deadletter", "drop", first[:8], "--yes") == {"dropped": [first], "count": 1}
    assert "Dropped 1 dead letter (1 row)." in run("deadletter", "drop", second, stdin="y\n")
    assert run.json("deadletter", "drop", "--all", "central")["count"] == 0


def test_a_lake_that_never_had_a_sink_has_no_dead_letters(run: Run, items: sl.Table) -> None:
    before = files_below("lake")
    assert run("deadletter", "list") == "There are no dead letters.\n"
    run("status")
    run("plan")
    assert files_below("lake") == before, "looking makes no state"


# --- status -----------------------------------------------------------------------------------------------------


def test_status_shows_sinks_below_the_tables(archive: Run, items: sl.Table) -> None:
    assert re.search(r"^CONSUMER .*\narchive .* none .* ok *\n\nAll is well\.$", archive("status"), re.M)
    items.upsert(rows(1, 2))
    line = archive("status").splitlines()[-3]
    assert re.search(r"^archive +items +\S+/out +2 rows, \d+ s +\d{4}-.* ok *$", line), line
    archive("sink", "add", "new", "items", "--to", "new")
    assert re.search(r"^new .* never ran *$", archive("status"), re.M)


def test_status_says_what_retention_waits_for(run: Run) -> None:
    lake = sl.Lake("lake")
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    table = lake.create_table("events", schema, key=["id"], time="at", retention="1d")
    run("sink", "add", "archive", "events", "--to", "out")
    table.upsert([{"id": 1, "at": dt.datetime(2024, 1, 31, tzinfo=dt.UTC)}])
    assert "events: rows past their retention stay, because of consumer 'archive'" in run("status")
    run("tick")
    assert "retention" not in run("status")


def test_a_state_that_was_lost_is_told_with_the_way_on(archive: Run) -> None:
    for file in Path("lake").glob("state.db*"):
        file.unlink()
    said = archive("status", code=1)
    assert "state: " in said and "strandline doctor --adopt-state" in said
    for words in (("tick",), ("plan",), ("tick", "--dry-run"), ("mark", "show"), ("sink", "list")):
        error = archive.json(*words, code=1)["error"]
        assert error["kind"] == "Conflict" and "doctor --adopt-state" in error["hint"]
    said = archive("doctor", code=1)
    assert "strandline doctor --adopt-state" in said and "Put files" not in said


def test_sinks_that_go_on_and_sinks_that_are_retired_are_counted_apart(archive: Run, items: sl.Table) -> None:
    archive("sink", "add", "other", "items", "--to", "other")
    for file in Path("lake").glob("state.db*"):
        file.unlink()
    said = archive("doctor", "--adopt-state", "--skip", "other")
    assert "1 sink goes on, 1 retired." in said
    assert "tokens" in said and "strandline token add NAME --role writer" in said


def test_a_sink_that_nobody_knows_the_place_of_waits_and_every_verb_says_so(archive: Run, items: sl.Table) -> None:
    archive("sink", "add", "foreign", "items", "--to", "http://127.0.0.1:9/x", "--receiver", "any", "--start", "head")
    for file in Path("lake").glob("state.db*"):
        file.unlink()
    said = archive("doctor", "--adopt-state", code=1)
    assert "1 sink goes on, 0 retired, 1 waiting for you." in said and "strandline mark reset foreign" in said
    said = archive("status", code=1)
    assert "waits for you" in said and "strandline mark reset foreign" in said and "mark retire foreign" in said
    assert "strandline mark reset foreign" in archive("tick", code=1)
    assert "strandline mark reset foreign" in archive("doctor", code=1)
    (report,) = [sink for sink in sinks_in(archive.json("tick", code=1)) if sink["name"] == "foreign"]
    assert report["error"]["kind"] == "Conflict"
    archive("mark", "retire", "foreign", "--yes")
    for words in (("status",), ("tick",), ("doctor",)):
        archive(*words)


# --- run --------------------------------------------------------------------------------------------------------


def start_run(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "strandline", *words],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(is_so: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_run_says_what_happens_and_ends_at_a_signal(archive: Run, items: sl.Table) -> None:
    items.upsert(rows(0))
    with contextlib.ExitStack() as both:
        other = both.enter_context(start_run("run", "--every", "0.1s", "--json"))
        assert other.stdout is not None
        documents = [other.stdout.readline()]
        running = both.enter_context(start_run("run", "--every", "0.1s"))
        assert running.stdout is not None
        assert "every 0.1s" in running.stdout.readline()
        said = running.stdout.readline()
        while not said.endswith("  Up to date\n"):
            said += running.stdout.readline()
        items.upsert(rows(1))
        wait_until(lambda: len(sent()) == 12)
        time.sleep(0.5)
        for each, number in ((running, signal.SIGTERM), (other, signal.SIGINT)):
            each.send_signal(number)
        (rest, err), (more, _) = running.communicate(timeout=60), other.communicate(timeout=60)
    assert (running.returncode, other.returncode) == (0, 0), err
    assert "Traceback" not in err
    done = [json.loads(line) for line in [*documents, *more.splitlines()]]
    told = [sink for tick in done for sink in sinks_in(tick) if sink["rows"]]
    lines = [line for line in f"{said}{rest}".splitlines() if "archive: 1 row, " in line]
    assert len(lines) + len(told) == 2, "each row was sent by one of the two"
    assert all(tick["at"] for tick in done)


SLOW = """
import os, time

class Slow(sl.ParquetSink):
    def open(self, producer):
        open("begun", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.02)
        return super().open(producer)

lake.sink("slow", "items", to=Slow("out"))
"""


def test_a_tick_that_is_interrupted_does_not_wait_for_its_sinks(items: sl.Table) -> None:
    write_app("pipeline", SLOW)
    with start_run("--app", "pipeline", "tick") as ticking:
        wait_until(Path("begun").exists)
        ticking.send_signal(signal.SIGINT)
        _, err = ticking.communicate(timeout=20)
    assert (ticking.returncode, sent()) == (130, [])
    assert "Stopped: on your request" in err
    Path("go").touch()
    with start_run("--app", "pipeline", "tick") as ticking:
        assert ticking.wait(60) == 0
    assert len(sent()) == items.to_arrow().num_rows


def test_an_interrupt_that_comes_twice_is_one(items: sl.Table) -> None:
    write_app("pipeline", SLOW)
    with start_run("--app", "pipeline", "tick") as ticking:
        wait_until(Path("begun").exists)
        for _ in range(20):
            ticking.send_signal(signal.SIGINT)
            time.sleep(0.0005)
        _, err = ticking.communicate(timeout=20)
    assert (ticking.returncode, err.count("Stopped: on your request")) == (130, 1)
    assert "Traceback" not in err and "the next run continues" in err


def test_a_later_interrupt_ends_a_process_that_does_not_obey(items: sl.Table) -> None:
    deaf = "import time\ntry:\n    open('begun', 'w').close(); time.sleep(60)\nfinally:\n    time.sleep(60)"
    write_app("pipeline", deaf)
    with start_run("--app", "pipeline", "tick") as ticking:
        wait_until(Path("begun").exists)
        ticking.send_signal(signal.SIGINT)
        time.sleep(0.8)
        assert ticking.poll() is None
        ticking.send_signal(signal.SIGINT)
        assert ticking.wait(20) == 130


def test_the_first_signal_lets_a_tick_end_and_the_second_does_not(items: sl.Table) -> None:
    write_app("pipeline", SLOW)
    with start_run("--app", "pipeline", "run") as running:
        wait_until(Path("begun").exists)
        running.send_signal(signal.SIGINT)
        running.send_signal(signal.SIGINT)
        time.sleep(0.8)
        assert running.poll() is None, "what comes at once is the same signal"
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 128 + signal.SIGINT
    assert sent() == []
    Path("begun").unlink()
    with start_run("--app", "pipeline", "run", "--every", "1h") as running:
        wait_until(Path("begun").exists)
        running.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        Path("go").touch()
        out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert "Stopping when the tick under way is done" in err
    assert "slow: 10 rows" in out
    assert [row["id"] for row in sent()] == list(range(10))


def test_run_does_not_call_a_lake_up_to_date_while_a_sink_works(items: sl.Table) -> None:
    write_app("pipeline", SLOW)
    with start_run("--app", "pipeline", "run", "--every", "0.1s") as running:
        assert running.stdout is not None
        assert any("still at work: slow" in line for line in running.stdout)
        time.sleep(0.5)
        Path("go").touch()
        wait_until(lambda: len(sent()) == 10)
        time.sleep(0.5)
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    told = [line for line in out.splitlines() if "still at work" not in line]
    assert [line.split("  ")[1].split(", ")[0] for line in told] == [
        "slow: 10 rows",
        "Up to date",
    ]


def test_run_takes_a_length_of_time_and_a_lake_that_is_there(run: Run, items: sl.Table) -> None:
    for every in ("soon", "0s"):
        run("run", "--every", every, code=2)
    assert run.json("run", "--lake", "nowhere", code=1)["error"]["kind"] == "NotFound"


def test_to_drop_a_column_that_a_condition_needs_names_the_sink_and_later_ticks_say_why_nothing_leaves(
    run: Run, items: sl.Table
) -> None:
    run("sink", "add", "some", "items", "--to", "out", "--where", "email <> ''")
    run("sink", "add", "all", "items", "--to", "whole", "--where", "id >= 0")
    run("tick")
    assert run.json("table", "drop-column", "items", "email", "--dry-run")["sinks"] == ["some"]
    assert "they will send nothing: some." in run("table", "drop-column", "items", "email", stdin="y\n")
    items.upsert([{"id": 77, "name": "late"}])
    said = run("tick")
    assert "some: sent changes of items" in said and "Its condition needs email, which items has no more" in said
    assert 77 in [row["id"] for row in sent("whole")] and 77 not in [row["id"] for row in sent()]
