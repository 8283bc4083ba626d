"""The command line: what a person reads, what a program reads, and how it ends."""

from __future__ import annotations

import datetime as dt
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import strandline as sl
from strandline.cli import app
from strandline.cli.table.change import MEANINGS
from strandline.model.settings import TableSettings
from support import environment, files_below

VERBS = [
    ("init",), ("ingest",), ("query",), ("export",), ("status",), ("doctor",), ("demo",), ("compact",),
    ("vacuum",), ("backup",), ("restore",), ("table", "list"), ("table", "show"), ("table", "create"),
    ("table", "import"), ("table", "rename"), ("table", "history"), ("table", "set"), ("table", "restore"),
    ("table", "expire"), ("table", "pin"), ("table", "unpin"), ("table", "pins"), ("table", "add-column"),
    ("table", "rename-column"), ("table", "drop-column"), ("table", "undrop"),
    ("table", "purge"), ("table", "drop"), ("plan",), ("tick",), ("run",), ("serve",), ("sink", "add"),
    ("sink", "list"), ("sink", "show"), ("sink", "pause"), ("sink", "resume"), ("sink", "remove"), ("mark", "show"),
    ("mark", "reset"), ("mark", "retire"), ("deadletter", "list"),
    ("deadletter", "show"), ("deadletter", "replay"), ("deadletter", "drop"), ("token", "add"), ("token", "list"),
    ("backfill", "status"), ("backfill", "pause"), ("backfill", "resume"), ("backfill", "rate"),
    ("backfill", "restart"), ("fixpoint", "list"), ("fixpoint", "show"), ("fixpoint", "verify"),
    ("fixpoint", "rebuild"), ("fixpoint", "drop"),
    ("token", "revoke"), ("rejects", "list"), ("rejects", "show"), ("rejects", "retry"), ("rejects", "drop"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STRANDLINE_LAKE", raising=False)


class Run:
    """Calls the command line in this process."""

    def __call__(self, *words: str, code: int = 0, stdin: str | None = None) -> str:
        result = CliRunner().invoke(app, list(words), input=stdin)
        assert result.exit_code == code, (result.output, result.exception)
        assert "Traceback" not in result.output
        return result.output

    def json(self, *words: str, code: int = 0) -> Any:
        at = words.index("--") if "--" in words else len(words)
        result = CliRunner().invoke(app, [*words[:at], "--json", *words[at:]])
        assert result.exit_code == code, (result.output, result.exception)
        assert all(" warning strandline." in line for line in result.stderr.splitlines()), result.stderr
        return json.loads(result.stdout)


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture
def items_file(tmp_path: Path) -> str:
    (tmp_path / "a.jsonl").write_text('{"id":1,"name":"one"}\n{"id":2,"name":"[two]"}\n')
    return "a.jsonl"


@pytest.fixture
def loaded(run: Run, items_file: str) -> Run:
    run("init")
    run("ingest", "items", items_file, "--key", "id")
    return run


def process(*words: str, timeout_s: float = 60, crash: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "strandline", *words],
        env=environment(**({"STRANDLINE_CRASH": crash} if crash else {})),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_every_verb_has_help_and_json(run: Run, words: tuple[str, ...]) -> None:
    text = run(*words, "--help")
    for option in ("--json", "--debug"):
        assert option in text
    for option in ("--lake", "--app", "--state"):
        assert (option in text) == (words != ("demo",)), "the demo has a folder of its own"


def test_every_verb_is_tested_here(run: Run) -> None:
    from typer.main import get_command

    found = set()
    group = get_command(app)
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        found |= {(name, each) for each in command.commands} if hasattr(command, "commands") else {(name,)}
    assert found == set(VERBS)


@pytest.mark.parametrize("part", ["cli", "cli.table", "cli.ingest", "cli.compact", "cli.doctor", "cli.token"])
def test_starting_loads_no_heavy_library(part: str) -> None:
    code = f"import sys; import strandline.{part}; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert not {"pyspark", "pyarrow", "duckdb", "sqlalchemy", "sqlglot"} & set(ended.stdout.split())


def test_init_says_what_to_do_next_and_a_second_one_that_it_is_there(run: Run, tmp_path: Path) -> None:
    assert "strandline ingest" in run("init")
    assert "already" in run("init")
    assert run.json("init", "other")["is_created"] is True
    second = run.json("init", "other")
    assert (second["is_created"], second["lake"]) == (False, str(tmp_path / "other"))
    assert f"--lake {tmp_path}/third" in run("init", f"{tmp_path}/third")


def test_the_lake_is_named_before_or_after_the_verb_or_by_the_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run("init", "x")
    assert run.json("--lake", "x", "status")["lake"] == str(tmp_path / "x")
    assert json.loads(run("--json", "--lake", "x", "status"))["lake"] == str(tmp_path / "x")
    assert run.json("status", "--lake", "x")["lake"] == str(tmp_path / "x")
    monkeypatch.setenv("STRANDLINE_LAKE", "x")
    assert run.json("status")["lake"] == str(tmp_path / "x")
    run("init", "y")
    assert run.json("--lake", "y", "status")["lake"] == str(tmp_path / "y")


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("ingest", "t", "x.jsonl"),
        ("query", "select 1"),
        ("table", "list"),
        ("doctor",),
        ("rejects", "show", "t"),
        ("compact",),
        ("vacuum",),
        ("backup", "there"),
        ("export", "t", "there"),
        ("table", "set", "t"),
        ("table", "purge", "t", "1", "--yes"),
    ],
    ids=" ".join,
)
def test_a_lake_that_is_not_there_is_not_made_by_a_typing_error(
    run: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    error = run.json(*words, code=1)["error"]
    assert error["kind"] == "NotFound"
    assert "strandline init" in error["hint"]
    assert list(tmp_path.iterdir()) == []


def test_ingest_makes_the_table_loads_and_remembers(run: Run, items_file: str) -> None:
    run("init")
    error = run.json("ingest", "items", items_file, code=1)["error"]
    assert (error["kind"], error["table"]) == ("NotFound", "items")
    assert "--key" in error["hint"]
    said = run("ingest", "items", items_file, "--key", "id")
    assert "Loaded 2 rows from 1 file" in said and "Made the table items" in said
    assert "Nothing new" in run("ingest", "items", items_file)
    with open(items_file, "a") as file:
        file.write('{"id":3,"name":"three"}\n')
    assert "Would load 1 file" in run("ingest", "items", items_file, "--dry-run")
    done = run.json("ingest", "items", items_file)
    assert (done["rows"], done["seqs"], done["files"][0]["action"]) == (1, [2], "continue")
    assert run.json("query", "select count(*) as n from items")["rows"] == [{"n": 3}]


def test_new_tables_take_their_options(run: Run, items_file: str) -> None:
    run("init")
    run("ingest", "a", items_file, "--key", "id, name", "--cluster-by", "name", "--vnodes", "4")
    shown = run.json("table", "show", "a")
    assert (shown["key"], shown["cluster_by"], shown["vnodes"]) == (["id", "name"], ["name"], 4)
    run("ingest", "b", items_file, "--key", "name", "--version-column", "id")
    assert run.json("table", "show", "b")["version"] == "id"
    run("ingest", "c", items_file, "--no-key")
    assert run.json("table", "show", "c")["key"] == []
    for words in (("--key", "id", "--no-key"), ("--vnodes", "4")):
        run("ingest", "d", items_file, *words, code=2)


def test_a_bad_line_is_named_and_with_rejects_kept(loaded: Run, tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('{"id":7}\n{"id":"x","name":"[bold]"}\n')
    error = loaded.json("ingest", "items", "b.jsonl", code=1)["error"]
    assert (error["kind"], error["line"], error["column"]) == ("Invalid", 2, "id")
    assert error["file"] == str(tmp_path / "b.jsonl")
    result = CliRunner().invoke(app, ["ingest", "items", "b.jsonl"])
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.startswith(f"Invalid: {tmp_path}/b.jsonl, line 2, column 'id': 'x' is not int64")
    assert "--rejects" in result.stderr
    said = loaded("ingest", "items", "b.jsonl", "--rejects")
    assert "1 row did not fit" in said and "strandline rejects show items" in said
    assert "[bold]" in loaded("rejects", "items")
    listed = loaded.json("rejects", "items")
    assert (listed["count"], listed["rejects"][0]["line"], listed["rejects"][0]["column"]) == (1, 2, "id")
    assert loaded.json("rejects", "items", "--limit", "0")["rejects"] == []
    status = loaded.json("status", code=1)
    assert (status["tables"][0]["rejects"], status["attention"][0]["cause"]) == (1, "rejects")
    assert "table items: 1 row was refused by ingest\n    strandline rejects show items\n" in loaded("status", code=1)
    assert "refused by ingest" in loaded("tick", code=1) and "refused by ingest" in loaded("doctor", code=1)


def test_an_unfinished_line_is_told(run: Run, tmp_path: Path) -> None:
    run("init")
    (tmp_path / "a.csv").write_text("id,name\n1,aaa\n2,bb")
    assert "1 unfinished line left for later" in run("ingest", "t", "a.csv", "--no-key", "--last-line", "wait")
    assert "1 unfinished line left for later" in run("ingest", "t", "a.csv", "--last-line", "wait")
    (tmp_path / "a.csv").write_text("id,name\n1,aaa\n2,bbbb\n3,c\n")
    assert "unfinished" not in run("ingest", "t", "a.csv")
    assert run.json("query", "select count(*) as n from t")["rows"] == [{"n": 3}]


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("a.json", "[1, 2]\n", "object"),
        ("a.json", '"text"\n', "object"),
    ],
)
def test_a_first_file_that_does_not_fit_is_refused_with_a_way_on(
    run: Run, tmp_path: Path, name: str, text: str, word: str
) -> None:
    run("init")
    (tmp_path / name).write_text(text)
    error = run.json("ingest", "t", name, "--key", "id", code=1)["error"]
    assert (error["kind"], error["file"]) == ("Invalid", str(tmp_path / name))
    assert word in error["hint"]
    assert run.json("table", "list")["tables"] == []


def test_what_is_asked_of_a_table_or_file_that_is_not_so_has_a_hint(loaded: Run) -> None:
    assert loaded.json("ingest", "items", "a.jsonl", "--key", "name", code=1)["error"]["hint"]
    for files in ("none.jsonl", "none*.jsonl"):
        error = loaded.json("ingest", "items", files, code=1)["error"]
        assert error["kind"] == "NotFound" and error["hint"]
    for words in (("create", "items", "--schema", "id:int64"), ("import", "items", "nowhere")):
        error = loaded.json("table", *words, code=1)["error"]
        assert (error["kind"], error["table"]) == ("Invalid", "items")
        assert "strandline table show items" in error["hint"]


def test_a_lake_is_named_once_and_is_a_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for words in (("init", "file"), ("status", "--lake", "file"), ("doctor", "--lake", "file")):
        error = run.json(*words, code=1)["error"]
        assert (error["kind"], error["path"]) == ("Invalid", "file")
    run("init", "--lake", "a", "b", code=2)
    run("--lake", "a", "init", "b", code=2)
    assert not (tmp_path / "b").exists()
    assert "strandline init 'my lake'" in run("status", "--lake", "my lake", code=1)
    assert "--lake 'my lake'" in run("init", "my lake")


def test_rejects_of_a_clean_table_are_none(loaded: Run) -> None:
    assert "No row of items was refused" in loaded("rejects", "items")
    assert loaded.json("rejects", "items") == {"table": "items", "count": 0, "rejects": []}


def test_query_shows_prints_and_refuses(loaded: Run) -> None:
    shown = loaded("query", "select * from items order by id")
    assert shown.splitlines()[0].split() == ["id", "name"]
    assert "[two]" in shown and "2 rows" in shown
    assert "the first 1 shown" in loaded("query", "select * from items", "--limit", "1")
    csv = loaded("query", "select id, name, id > 1 as big, null as none from items order by id", "--csv")
    assert csv == "id,name,big,none\n1,one,false,\n2,[two],true,\n"
    document = loaded.json(
        "query", "select id, date '2024-01-31' as day, 1.5::decimal(3,1) as d from items where id = 1"
    )
    assert document["rows"] == [{"id": 1, "day": "2024-01-31", "d": "1.5"}]
    assert [column["name"] for column in document["columns"]] == ["id", "day", "d"]
    assert "1 row" in loaded("query", "-", stdin="select 1")
    late = "select [date '12000-01-01']"
    assert "12000" in loaded("query", f"{late}::varchar")
    loaded("query", late, "--csv", code=1)
    for sql, kind in (
        ("drop table items", "Invalid"), ("select * from nope", "NotFound"), ("selec", "Invalid"), (late, "Invalid"),
        ("select 'infinity'::date", "Invalid"),
    ):  # fmt: skip
        assert loaded.json("query", sql, code=1)["error"]["kind"] == kind
    loaded("query", "select 1", "--csv", "--json", code=2)
    for words, way in (
        (["show databases"], "SHOW TABLES"), ([""], "the query is empty"),
        (["select * from items", "--max-rows", "1"], "(--max-rows)"),
    ):  # fmt: skip
        assert way in loaded("query", *words, code=1)


def test_status_gives_the_numbers_and_says_when_they_are_bounds(loaded: Run, tmp_path: Path) -> None:
    (table,) = loaded.json("status")["tables"]
    assert (table["name"], table["rows"], table["is_exact"]) == ("items", 2, True)
    assert [table[name] for name in ("head", "commits", "compacted_to", "lag_commits", "lag_rows")] == [1, 1, 0, 1, 2]
    sl.Lake("lake").table("items").upsert([{"id": 2, "name": "again"}])
    (table,) = loaded.json("status")["tables"]
    assert (table["rows"], table["is_exact"]) == (3, False)
    assert "≤ 3" in loaded("status")
    (table,) = loaded.json("status", "--exact")["tables"]
    assert (table["rows"], table["is_exact"]) == (2, True)
    loaded("compact", "items", "--all")
    (table,) = loaded.json("status")["tables"]
    assert (table["rows"], table["is_exact"], table["compacted_to"], table["lag_commits"]) == (2, True, 2, 0)
    assert table["baseline_files"] == 2 and table["baseline_bytes"] > 0 and table["log_files"] == 2


def test_a_broken_table_does_not_hide_the_others(loaded: Run, tmp_path: Path) -> None:
    loaded("ingest", "other", "a.jsonl", "--key", "id")
    folder = Path("lake") / loaded.json("table", "show", "other")["folder"]
    (folder / "log/_delta_log" / f"{0:020d}.json").write_text("garbage")
    tables = loaded.json("status", code=1)["tables"]
    assert [(t["name"], t.get("error", {}).get("kind")) for t in tables] == [("items", None), ("other", "Corrupt")]
    assert "strandline doctor" in loaded("status", code=1)
    assert loaded.json("doctor", code=1)["is_well"] is False
    said = loaded("doctor", code=1)
    assert "wrong" in said and "back from a backup; then: strandline compact" in said


def test_doctor_finds_everything_in_order_and_says_what_waits(loaded: Run) -> None:
    said = loaded("doctor", "--deep")
    assert "Everything holds" in said and "due to be compacted" in said
    assert "strandline compact items" in said and "Put files" not in said
    loaded("compact")
    assert loaded.json("doctor", "--deep")["findings"] == []


def test_tables_are_made_shown_renamed_and_dropped(run: Run) -> None:
    run("init")
    schema = (
        "id:int64, name:string!, at:timestamp, local:timestamp_ntz, doc:json, price:decimal(10,2), tags:list<string>"
    )
    assert "Made the table t" in run("table", "create", "t", "--schema", schema, "--key", "id", "--vnodes", "2")
    shown = run.json("table", "show", "t")
    assert ", ".join(f"{c['name']}:{c['type']}" for c in shown["columns"]) == schema.replace("!", "")
    assert [c["nullable"] for c in shown["columns"]] == [False, False, True, True, True, True, True]
    assert "required" in run("table", "show", "t")
    assert run("table", "list") == "t\n"
    assert run.json("table", "rename", "t", "u") == {"table": "u", "was": "t"}
    assert [c["operation"] for c in run.json("table", "history", "u")["commits"]] == ["CREATE TABLE"]
    assert "CREATE TABLE" in run("table", "history", "u")
    error = run.json("table", "drop", "u", code=1)["error"]
    assert (error["kind"], error["table"]) == ("Invalid", "u")
    assert "Aborted" in run("table", "drop", "u", code=1, stdin="n\n")
    assert run.json("table", "list")["tables"] == ["u"]
    assert "strandline vacuum" in run("table", "drop", "u", stdin="y\n")
    assert run.json("table", "list")["tables"] == []
    assert run.json("table", "drop", "u", "--yes", code=1)["error"]["kind"] == "NotFound"


@pytest.mark.parametrize("schema", ["id", "id:", ":int64", "id:int65", "id:decimal(99,1)", "id:list<int65>", ""])
def test_a_schema_that_is_none_is_refused(run: Run, schema: str) -> None:
    run("init")
    assert run.json("table", "create", "t", "--schema", schema, code=1)["error"]["kind"] == "Invalid"


def test_an_existing_table_is_imported(run: Run, tmp_path: Path) -> None:
    run("init")
    pq.write_table(pa.table({"id": [1, 2, 2], "v": [1, 2, 3]}), tmp_path / "a.parquet")
    error = run.json("table", "import", "t", "a.parquet", "--key", "id", code=1)["error"]
    assert (error["kind"], error["key"]) == ("Invalid", {"id": 2})
    assert "--order-by" in error["hint"]
    done = run.json("table", "import", "t", "a.parquet", "--key", "id", "--order-by", "v")
    assert (done["rows"], done["seq"]) == (2, 1)
    assert "Imported 3 rows" in run("table", "import", "u", "a.parquet")


# --- how tables are looked after ---------------------------------------------------------------------------------


def snapshot() -> dict[str, tuple[int, int]]:
    """Every file of the lake with its size and time of change."""
    return {name: ((at := Path("lake", name).stat()).st_size, at.st_mtime_ns) for name in files_below("lake")}


def rows() -> dict[int, str]:
    return {row["id"]: row["name"] for row in sl.Lake("lake").table("items").to_arrow().to_pylist()}


@pytest.fixture
def folded(run: Run) -> Run:
    """A lake with the table items of 100 folded rows, two changes after that, and what a crash left behind."""
    run("init")
    run("table", "create", "items", "--schema", "id:int64, name:string, at:timestamp", "--key", "id", "--vnodes", "2")
    items = sl.Lake("lake").table("items")
    items.upsert([{"id": n, "name": "a", "at": dt.datetime(2024, 1 + n % 12, 5, tzinfo=dt.UTC)} for n in range(100)])
    run("compact", "items")
    items.upsert([{"id": 1, "name": "b"}], missing="null")
    items.delete([2])
    return run


def test_compact_says_what_is_due_and_why_and_folds_it(loaded: Run) -> None:
    before = snapshot()
    said = loaded("compact", "--dry-run")
    assert "items: would compact 8 of 16 vnodes up to seq 1; 2 changes wait." in said
    assert "against 0 compacted rows" in said and "Nothing was written" in said
    document = loaded.json("compact", "items", "--dry-run")
    (plan,) = document["tables"]
    assert (document["is_dry_run"], plan["table"], plan["upto"], len(plan["due"])) == (True, "items", 1, 8)
    assert snapshot() == before
    assert "items: compacted 8 vnodes up to seq 1: 2 rows in 2 new files" in loaded("compact")
    before = snapshot()
    assert "items: everything is compacted, up to seq 1." in loaded("compact")
    (report,) = loaded.json("compact", "items", "items")["tables"]
    assert (report["table"], report["vnodes"], report["degraded"]) == ("items", 0, [])
    assert snapshot() == before


def test_compact_leaves_alone_what_is_not_due_unless_asked(folded: Run) -> None:
    before = snapshot()
    for words in (("compact",), ("compact", "items"), ("compact", "--dry-run")):
        said = folded(*words)
        assert "items: nothing is due; 2 changes wait." in said
        assert "strandline compact items --all" in said
    assert folded.json("compact")["tables"][0]["waiting_rows"] == 2
    assert "asked for" in folded("compact", "--all", "--dry-run")
    assert snapshot() == before
    (report,) = folded.json("compact", "--all")["tables"]
    assert (report["upto"], report["rows"], report["waiting_rows"], report["engine"]) == (3, 99, 0, "driver")
    assert folded.json("status")["tables"][0]["compacted_to"] == 3


def test_no_tables_are_no_error(run: Run) -> None:
    run("init")
    for words in (("compact",), ("compact", "--dry-run")):
        assert "There are no tables yet" in run(*words)
    assert "nothing to vacuum" in run("vacuum")
    assert run.json("compact")["tables"] == run.json("vacuum")["tables"] == []


@pytest.mark.parametrize("verb", ["compact", "vacuum"])
def test_a_table_that_is_not_there_is_not_found(folded: Run, verb: str) -> None:
    error = folded.json(verb, "items", "nope", code=1)["error"]
    assert (error["kind"], error["table"]) == ("NotFound", "nope")


def test_a_damaged_file_is_named_and_the_rest_is_done(folded: Run, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    folded("ingest", "other", "a.csv", "--key", "id")
    table = sl.Lake("lake").table("items")
    lost = next(file for file in table.baseline.refresh().files() if file.partition["_vnode"] == "0")
    path = tmp_path / "lake" / table.baseline.folder / lost.path
    path.rename(tmp_path / "saved")
    said = folded("compact", "--all", code=1)
    assert f"items: not compacted: vnode 0: the file is missing: {path}" in said
    assert "strandline compact items --all" in said
    assert "items: compacted 1 vnode up to seq 3" in said and "other: compacted" in said
    (report, other) = folded.json("compact", "--all", code=1)["tables"]
    assert [(each["vnode"], each["path"]) for each in report["degraded"]] == [(0, str(path))]
    assert other["degraded"] == []
    for words in (("status",), ("table", "show", "items")):
        assert str(path) in folded(*words, code=1 if words == ("status",) else 0)
    assert str(path) in folded.json("status", code=1)["tables"][0]["degraded"][0]
    (tmp_path / "saved").rename(path)
    assert "compacted 1 vnode" in folded("compact", "items", "--all")
    assert folded.json("status")["tables"][0]["degraded"] == []


@pytest.mark.parametrize("words", [("compact",), ("compact", "--dry-run"), ("vacuum",), ("vacuum", "--dry-run")])
def test_a_broken_table_is_told_and_the_others_are_done(folded: Run, words: tuple[str, ...]) -> None:
    folded("table", "create", "broken", "--schema", "id:int64")
    folder = Path("lake") / folded.json("table", "show", "broken")["folder"]
    (folder / "log/_delta_log" / f"{0:020d}.json").write_text("garbage")
    said = folded(*words, code=1)
    assert "broken: Corrupt: " in said and "strandline doctor" in said and "items: " in said
    tables = folded.json(*words, code=1)["tables"]
    assert [(t["table"], t.get("error", {}).get("kind")) for t in tables] == [("broken", "Corrupt"), ("items", None)]


def test_vacuum_trims_deletes_and_says_who_holds_the_rest(folded: Run) -> None:
    assert "Readable from seq 0 on; keep (1d) keeps it so." in folded("vacuum")
    before = snapshot()
    said = folded("vacuum", "--keep", "0s", "--dry-run")
    assert "items: would trim the log to seq 1 (1 file)." in said and "Nothing was written" in said
    (report,) = folded.json("vacuum", "items", "--keep", "0s", "--dry-run")["tables"]
    assert (report["trimmed_to"], report["trimmed_files"], report["is_dry_run"]) == (1, 1, True)
    assert snapshot() == before
    said = folded("vacuum", "--keep", "0s", "--yes")
    assert "items: trimmed the log to seq 1 (1 file)." in said
    assert "deleted by a vacuum 1h or more later" in said
    assert "strandline compact items --all" in said
    before = snapshot()
    assert "items: would delete 1 file" in folded("vacuum", "--keep", "0s", "--grace", "0s", "--dry-run")
    assert snapshot() == before
    (report,) = folded.json("vacuum", "--keep", "0s", "--grace", "0s", "--yes")["tables"]
    assert (report["deleted_files"], report["deleted_bytes"] > 0, report["is_dry_run"]) == (1, True, False)
    assert len(before) == len(snapshot()) + 1
    assert folded.json("status")["tables"][0]["oldest_seq"] == 1
    error = folded.json("table", "restore", "items", "--at", "0", code=1)["error"]
    assert (error["kind"], error["oldest"]) == ("NotRetained", 1)
    assert "oldest seq that can be read is 1" in error["hint"]
    for words in (("--keep", "soon"), ("--grace", "-1s")):
        assert "length of time" in folded("vacuum", *words, code=2)


def test_vacuum_without_names_also_clears_what_lies_outside_of_tables(folded: Run) -> None:
    folded("table", "create", "gone", "--schema", "id:int64")
    folded("table", "drop", "gone", "--yes")
    assert "gone" not in folded("vacuum")
    before = snapshot()
    assert "gone" not in folded("vacuum", "items", "--grace", "0s", "--dry-run")
    assert "gone: would delete 3 files of a dropped table" in folded("vacuum", "--grace", "0s", "--dry-run")
    assert snapshot() == before
    document = folded.json("vacuum", "--grace", "0s", "--yes")
    assert [(f["table"], f["files"], f["is_deletable"]) for f in document["leftovers"]] == [("gone", 3, True)]
    assert document["leftover_files"] == 3
    assert not [name for name in files_below("lake") if "/gone/" in name]


def test_a_folder_that_the_catalog_does_not_know_is_told_and_stays(folded: Run) -> None:
    shutil.copytree(next(Path("lake/tables/items").iterdir()), f"lake/tables/lost/{'0' * 32}")
    before = snapshot()
    said = folded("vacuum", "--grace", "0s", "--dry-run")
    assert "lost: a folder of" in said and f"lake/tables/lost/{'0' * 32}" in said
    assert folded.json("vacuum", "--grace", "0s")["leftovers"][0]["is_deletable"] is False
    assert before.items() <= snapshot().items()


def test_a_lake_is_backed_up_and_restored(folded: Run, tmp_path: Path) -> None:
    said = folded("backup", "copy")
    assert f"Copied 1 table to {tmp_path / 'copy'}" in said and "strandline --lake copy status" in said
    assert "Nothing is new" in folded("backup", "copy")
    again = folded.json("backup", "copy")
    assert (again["tables"], again["files_copied"]) == ([{"name": "items", "seq": 3}], 0)
    assert folded.json("--lake", "copy", "status")["tables"] == folded.json("status")["tables"]
    assert f"Restored 1 table to {tmp_path / 'new'}" in folded("--lake", "new", "restore", "copy")
    assert folded.json("--lake", "newer", "restore", "copy")["files_copied"] > 0
    assert folded.json("--lake", "new", "query", "select count(*) as n from items")["rows"] == [{"n": 99}]
    before = files_below(tmp_path)
    error = folded.json("restore", "copy", code=1)["error"]
    assert error["kind"] == "Invalid" and error["hint"]
    error = folded.json("--lake", "empty", "restore", "nowhere", code=1)["error"]
    assert error["kind"] == "NotFound" and error["hint"]
    for dest in ("lake/inside", "."):
        assert folded.json("backup", dest, code=1)["error"]["kind"] == "Invalid"
    assert files_below(tmp_path) == before


def test_a_table_is_exported_whole_or_by_its_changes(folded: Run, tmp_path: Path) -> None:
    assert "Wrote 99 rows of items, at seq 3" in folded("export", "items", "out")
    assert sum(pq.read_metadata(path).num_rows for path in tmp_path.glob("out/*.parquet")) == 99
    error = folded.json("export", "items", "out", code=1)["error"]
    assert error["kind"] == "Invalid" and "--overwrite" in error["hint"]
    said = folded("export", "items", "out", "--overwrite", "--changes", "1..", "--dry-run")
    assert "Would write 2 rows at most" in said and "Nothing was written." in said
    done = folded.json("export", "items", "out", "--overwrite", "--changes", "1..", "--columns", "name")
    assert (done["after"], done["seq"], done["rows"], done["engine"]) == (1, 3, 2, "driver")
    (path,) = tmp_path.glob("out/*.parquet")
    found = pq.read_table(path).sort_by("_seq").to_pylist()
    assert found == [
        {"_op": "upsert", "_seq": 2, "id": 1, "name": "b"},
        {"_op": "delete", "_seq": 3, "id": 2, "name": None},
    ]
    done = folded.json("export", "items", "then", "--at", "1", "--where", "id < 5")
    assert (done["seq"], done["rows"]) == (1, 5)
    assert "no rows" in folded("export", "items", "none", "--where", "id < 0")


def test_an_export_that_makes_no_sense_is_refused_and_writes_nothing(folded: Run, tmp_path: Path) -> None:
    for words, code in (
        (("export", "items", "out", "--changes", "1-2"), 2),
        (("export", "items", "out", "--changes", "9.."), 1),
        (("export", "items", "out", "--changes", "1..", "--at", "2"), 1),
        (("export", "items", "out", "--columns", "nope"), 1),
        (("export", "items", "out", "--where", "nope > 1"), 1),
        (("export", "nothing", "out"), 1),
        (("export", "items", "lake/out"), 1),
        (("export", "items", "lake"), 1),
    ):
        folded(*words, code=code)
        folded(*words, "--dry-run", code=code)
    assert not (tmp_path / "out").exists() and not (tmp_path / "lake" / "out").exists()


def test_settings_are_shown_and_changed(folded: Run) -> None:
    shown = folded("table", "set", "items")
    assert [line.split()[:2] for line in shown.splitlines()[1:]] == [
        ["compact_ratio", "0.2"], ["compact_files", "32"], ["compact_age", "7d"], ["keep", "1d"], ["grace", "1h"],
        ["retention", "none"], ["time", "none"],
    ]  # fmt: skip
    assert "items: keep is 7d (was 1d)." in folded("table", "set", "items", "keep=7d")
    assert "items: keep is 7d (as before)." in folded("table", "set", "items", "keep=7d")
    error = folded.json("table", "set", "items", "retention=90d", code=1)["error"]
    assert "strandline table set items time=COLUMN retention=90d" in error["hint"]
    done = folded.json("table", "set", "items", "time=at", "retention=90d", "compact_ratio=0.5", "--yes")
    assert sorted(done["changed"]) == ["compact_ratio", "retention", "time"]
    assert done["settings"] == folded.json("table", "set", "items")["settings"]
    document = folded.json("table", "show", "items")
    assert (document["time"], document["settings"]["retention"]) == ("at", 90 * 86400.0)
    assert "keep 7d" in folded("table", "show", "items")
    assert "strandline table expire items" in folded("table", "set", "items", "retention=80d", "--yes")
    head = folded.json("status")["tables"][0]["head"]
    for setting in ("kep=7d", "keep=soon", "self=1", "compact_files=0", "time=name", "retention=0s"):
        error = folded.json("table", "set", "items", setting, code=1)["error"]
        assert error["kind"] == "Invalid"
    for words in (("keep",), ("keep=",), ("=7d",), ("keep=1d", "keep=2d")):
        folded("table", "set", "items", *words, code=2)
    assert folded.json("status")["tables"][0]["head"] == head


def test_every_setting_has_a_meaning() -> None:
    assert set(MEANINGS) == {field.name for field in fields(TableSettings)} | {"time"}


def test_a_table_is_made_with_its_settings(run: Run) -> None:
    run("init")
    words = ("--schema", "id:int64, day:date", "--key", "id", "--time", "day", "--set", "retention=30d")
    made = run.json("table", "create", "t", *words, "--set", "keep=7d")
    assert (made["time"], made["settings"]["retention"], made["settings"]["keep"]) == ("day", 30 * 86400, 7 * 86400)
    for more in (("--set", "time=id"), ("--set", "keep")):
        run("table", "create", "u", *words, *more, code=2)
    for more in (("--set", "key=day"), ("--set", "keep=x")):
        assert run.json("table", "create", "u", *words, *more, code=1)["error"]["kind"] == "Invalid"
    assert run.json("table", "list")["tables"] == ["t"]


def test_a_table_is_made_again_what_it_was(folded: Run) -> None:
    then = rows()
    assert (then[1], 2 in then) == ("b", False)
    said = folded("table", "restore", "items", "--at", "1")
    assert "items is set back to seq 1: 2 changes, seq 4." in said
    assert "strandline table restore items --at 3" in said
    assert rows() == dict.fromkeys(range(100), "a")
    assert "nothing was written" in folded("table", "restore", "items", "--at", "4")
    assert folded.json("table", "restore", "items", "--at", "3") == {"table": "items", "at": 3, "seq": 5, "changes": 2}
    assert rows() == then
    at = folded.json("table", "history", "items")["commits"][1]["at"]
    assert folded.json("table", "restore", "items", "--at", at)["at"] == 1
    for when, kind in (("99", "Invalid"), ("soon", "Invalid"), ("2020-01-01", "NotRetained")):
        assert folded.json("table", "restore", "items", "--at", when, code=1)["error"]["kind"] == kind
    folded("table", "restore", "items", code=2)


def test_rows_expire_by_retention_or_before_a_given_time(folded: Run) -> None:
    error = folded.json("table", "expire", "items", code=1)["error"]
    assert "strandline table set items time=COLUMN" in error["hint"]
    folded("table", "set", "items", "time=at")
    error = folded.json("table", "expire", "items", code=1)["error"]
    assert "retention=90d" in error["hint"] and "--before" in error["hint"]
    before = snapshot()
    assert folded.json("table", "expire", "items", "--before", "2024-03-01", code=1)["error"]["kind"] == "Invalid"
    assert "Aborted" in folded("table", "expire", "items", "--before", "2024-03-01", code=1, stdin="n\n")
    error = folded.json("table", "expire", "items", "--before", "2999-01-01", code=1)["error"]
    assert "future" in error["message"]
    folded("table", "expire", "items", "--before", "soon", "--yes", code=2)
    assert snapshot() == before
    count = len(rows())
    said = folded("table", "expire", "items", "--before", "2024-03-01", "--yes")
    hidden = count - len(rows())
    assert f"Hid {hidden} of {count} rows of items, whose at lies before 2024-03-01 00:00:00 UTC, from seq 5 on" in said
    assert 0 < hidden < count
    again = folded.json("table", "expire", "items", "--before", "2024-02-01", "--yes")
    assert (again["seq"], again["before"]) == (None, "2024-03-01T00:00:00+00:00")
    assert "hidden already" in folded("table", "expire", "items", "--before", "2024-02-01", "--yes")
    assert "expired row" in folded("compact")
    assert "stay hidden" in folded("table", "restore", "items", "--at", "4")
    folded("table", "set", "items", "retention=1d", "--yes")
    done = folded.json("table", "expire", "items", "--yes")
    assert (done["seq"], done["time"]) == (7, "at")
    assert list(rows().values()) == ["b"], "a row without a time stays"


def test_pins_are_set_listed_and_ended(folded: Run) -> None:
    assert "Nothing is pinned" in folded("table", "pins", "items")
    said = folded("table", "pin", "items", "--at", "1", "--name", "nightly", "--for", "2h", "--why", "a copy")
    assert "Pin nightly keeps items readable from seq 1 on" in said
    assert "strandline table unpin items nightly" in said
    document = folded.json("table", "pin", "items")
    assert document["seq"] == 3
    pins = folded.json("table", "pins", "items")["pins"]
    assert [(p["seq"], p["why"], p["is_live"]) for p in sorted(pins, key=lambda p: p["seq"])] == [
        (1, "a copy", True),
        (3, "asked for", True),
    ]
    assert "nightly" in folded("table", "pins", "items")
    assert folded.json("status")["tables"][0]["pins"] == 2
    for words in (("status",), ("table", "show", "items")):
        assert "strandline table pins items" in folded(*words)
    folded("compact", "--all")
    assert "Readable from seq 1 on; pin nightly (a copy, " in folded("vacuum", "--keep", "0s", "--yes")
    assert folded.json("table", "unpin", "items", "nightly") == {"table": "items", "pin": "nightly", "seq": 1}
    assert f"Pin {document['pin']} of items is gone" in folded("table", "unpin", "items", document["pin"])
    error = folded.json("table", "unpin", "items", "nightly", code=1)["error"]
    assert (error["kind"], error["pin"]) == ("NotFound", "nightly")
    assert folded.json("vacuum", "--keep", "0s", "--yes")["tables"][0]["trimmed_to"] >= 3
    assert folded.json("table", "pin", "items", "--at", "1", code=1)["error"]["kind"] == "NotRetained"
    assert folded.json("table", "pin", "items", "--name", "a b", code=1)["error"]["kind"] == "Invalid"
    for length in ("soon", "0s"):
        folded("table", "pin", "items", "--for", length, code=2)


def test_a_column_is_dropped_for_good(folded: Run) -> None:
    for column, kind in (("id", "Invalid"), ("nope", "NotFound")):
        error = folded.json("table", "drop-column", "items", column, "--yes", code=1)["error"]
        assert (error["kind"], error["column"]) == (kind, column)
    assert folded.json("table", "drop-column", "items", "at", code=1)["error"]["kind"] == "Invalid"
    assert "Aborted" in folded("table", "drop-column", "items", "at", code=1, stdin="n\n")
    said = folded("table", "drop-column", "items", "at", stdin="y\n")
    assert "Dropped the column at of items; it keeps id, name." in said
    assert "strandline compact items --all" in said
    assert folded.json("table", "drop-column", "items", "name", "--yes")["columns"] == ["id"]
    folded("compact", "--all")
    assert folded.json("doctor", "--deep")["is_well"] is True


def test_rows_are_erased_by_key(folded: Run) -> None:
    before = snapshot()
    assert folded.json("table", "purge", "items", "1", code=1)["error"]["kind"] == "Invalid"
    assert "Aborted" in folded("table", "purge", "items", "1", code=1, stdin="n\n")
    for key in ("x", "", "1.5", "9999999999999999999"):
        error = folded.json("table", "purge", "items", "1", key, "--yes", code=1)["error"]
        assert (error["kind"], error["column"], error["key"]) == ("Invalid", "id", key)
    folded("table", "purge", "items", "--yes", code=2)
    assert snapshot() == before
    said = folded("table", "purge", "items", "1", "2", "01", stdin="y\n")
    assert "Erase 2 keys of items for good?" in said
    assert "Erased 2 keys from items, seq 4: 4 rows of the log, 2 rows of the baseline." in said
    assert "first vacuum after" in said and "strandline vacuum items" in said
    assert set(rows()) == set(range(100)) - {1, 2}
    done = folded.json("table", "purge", "items", "--yes", "--", "-5")
    assert (done["keys"], done["log_rows"], done["baseline_rows"]) == (1, 0, 0)
    assert "Nothing in items had that key" in folded("table", "purge", "items", "--yes", "1")
    folded("table", "pin", "items")
    assert "A pin holds the past" in folded("table", "purge", "items", "--yes", "3")
    assert folded.json("doctor", "--deep")["is_well"] is True


KEYS = [
    ("string", 'it\'s "it", [a]\nb', 'it\'s "it", [a]\nb'),
    ("string", "", ""),
    ("string", "007", "007"),
    ("int8", "-7", -7),
    ("int64", "9223372036854775807", 9223372036854775807),
    ("bool", "true", True),
    ("date", "2024-01-31", dt.date(2024, 1, 31)),
    ("timestamp", "2024-01-31T12:00:00.123456Z", dt.datetime(2024, 1, 31, 12, 0, 0, 123456, dt.UTC)),
    ("timestamp", "2024-01-31T12:00:00+02:00", dt.datetime(2024, 1, 31, 10, tzinfo=dt.UTC)),
    ("timestamp_ntz", "2024-01-31 12:00:00", dt.datetime(2024, 1, 31, 12)),
    ("binary", "ab", b"ab"),
]


@pytest.mark.parametrize(("kind", "text", "value"), KEYS)
def test_a_key_is_taken_in_the_type_of_its_column(run: Run, kind: str, text: str, value: object) -> None:
    run("init")
    run("table", "create", "one", "--schema", f"id:{kind}", "--key", "id")
    run("table", "create", "two", "--schema", f"id:{kind}, n:int64", "--key", "id,n")
    lake = sl.Lake("lake")
    lake.table("one").upsert([{"id": value}])
    lake.table("two").upsert([{"id": value, "n": 1}])
    assert run.json("table", "purge", "one", "--yes", "--", text)["log_rows"] == 1
    said = value if kind.startswith("int") or kind == "bool" else text
    assert run.json("table", "purge", "two", "--yes", json.dumps({"n": 1, "id": said}, indent=1))["log_rows"] == 1


@pytest.mark.parametrize(
    ("key", "column"),
    [
        ("1", None), ("x", None), ("{", None), ("", None), ("null", None), ('{"a": 1}', "b"),
        ('{"a": "x", "b": "y"}', "a"), ('{"a": 1, "b": "y", "c": 1}', "c"), ('{"a": 1, "a": 1, "b": "y"}', "a"),
    ],
)  # fmt: skip
def test_a_key_of_several_columns_that_is_none_is_refused(run: Run, key: str, column: str | None) -> None:
    run("init")
    run("table", "create", "t", "--schema", "a:int64, b:string, c:int64", "--key", "a,b")
    error = run.json("table", "purge", "t", "--yes", key, code=1)["error"]
    assert (error["kind"], error.get("column")) == ("Invalid", column)
    assert '{"a": "…", "b": "…"}' in error["hint"]
    assert sl.Lake("lake").table("t").head == 0


def test_a_table_without_a_key_is_not_purged_by_key(run: Run) -> None:
    run("init")
    run("table", "create", "t", "--schema", "a:int64")
    assert run.json("table", "purge", "t", "--yes", "1", code=1)["error"]["kind"] == "Invalid"


def test_a_fault_of_ours_is_told_without_a_stack_trace_unless_asked(
    loaded: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr(sl.Lake, "sql", fail)
    assert loaded.json("query", "select 1", code=1)["error"]["kind"] == "Internal"
    assert "RuntimeError: surprise" in loaded("query", "select 1", code=1)
    result = CliRunner().invoke(app, ["--debug", "query", "select 1"])
    assert "Traceback" in result.stderr and result.exit_code == 1


# --- real processes ----------------------------------------------------------------------------------------------


def test_a_process_prints_its_answer_on_stdout_and_nothing_else() -> None:
    assert process("init").returncode == 0
    done = process("status", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["tables"] == []


@pytest.mark.parametrize(
    "words", [("nope",), ("ingest",), ("ingest", "t"), ("status", "--nope"), ("rejects", "show")], ids=" ".join
)
def test_a_wrong_call_ends_with_2_and_is_json_if_asked(words: tuple[str, ...]) -> None:
    plain = process(*words)
    assert plain.returncode == 2 and plain.stdout == "" and "Traceback" not in plain.stderr
    asked = process(*words, "--json")
    assert asked.returncode == 2
    assert json.loads(asked.stdout)["error"]["kind"] == "Usage"
    assert process("--json", *words).stdout == asked.stdout


def test_no_arguments_show_the_verbs() -> None:
    shown = process()
    assert "ingest" in shown.stdout + shown.stderr


def test_a_reader_that_stops_early_is_no_error(tmp_path: Path) -> None:
    lake = sl.Lake("lake")
    lake.create_table("t", pa.schema([("x", pa.string())])).append([{"x": "y" * 1000}] * 2000)
    command = f"{sys.executable} -m strandline query 'select * from t' --csv | head -1"
    done = subprocess.run(command, shell=True, env=environment(), capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("x\n", "")


def test_an_ingest_that_was_killed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text(
            "id,v\n" + "".join(f"{number * 10 + i},x\n" for i in range(10)) + "bad,x\n"
        )
    process("init")
    words = ("ingest", "t", "*.csv", "--no-key", "--rejects", "--json")
    process("table", "create", "t", "--schema", "id:int64,v:string")
    for point in ("rejects.committed", "ingest.before_commit", "log.file_written"):
        assert process(*words, crash=point).returncode == -9
    assert json.loads(process(*words).stdout)["rows"] == 30
    assert json.loads(process(*words).stdout)["rows"] == 0
    lake = sl.Lake("lake")
    assert sorted(lake.table("t").to_arrow().column("id").to_pylist()) == list(range(30))
    assert lake.status().tables[0].rejects == 3


def _terminal(words: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    main, other = pty.openpty()
    started = subprocess.Popen(
        [sys.executable, "-m", "strandline", *words],
        env=environment(TERM="xterm"),
        stdout=subprocess.PIPE,
        stderr=other,
    )
    os.close(other)
    return started, main


def _all_of(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(descriptor, 65536)
        except OSError:
            return
        if not data:
            return
        yield data


def test_long_work_draws_a_bar_on_a_terminal_only(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id":1}\n')
    process("init")
    started, terminal = _terminal(["ingest", "t", "a.jsonl", "--key", "id", "--json"])
    drawn = b"".join(_all_of(terminal))
    out, _ = started.communicate(timeout=60)
    assert started.returncode == 0
    assert b"Loading t" in drawn
    assert json.loads(out)["rows"] == 1
    assert process("ingest", "t", "a.jsonl", "--again").stderr == ""
    for words, said, told in (
        (["compact", "--json"], b"Compacting", "tables"),
        (["backup", "copy", "--json"], b"Copying", "tables"),
        (["export", "t", "out", "--json"], b"Exporting t", "files"),
    ):
        started, terminal = _terminal(words)
        assert said in b"".join(_all_of(terminal))
        out, _ = started.communicate(timeout=60)
        assert started.returncode == 0 and json.loads(out)[told]
    assert process("compact").stderr == ""


def test_stopping_it_by_hand_leaves_nothing_half_done(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"id":{i}}}\n' for i in range(2_000_000)))
    process("init")
    process("table", "create", "t", "--schema", "id:int64")
    before = files_below("lake")
    started = subprocess.Popen(
        [sys.executable, "-m", "strandline", "ingest", "t", "a.jsonl"], env=environment(), stderr=subprocess.PIPE
    )
    deadline_s = time.monotonic() + 60
    while files_below("lake") == before and started.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.02)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert started.returncode in (0, 130), said
    assert b"Traceback" not in said
    assert sl.Lake("lake").table("t").to_arrow().num_rows in (0, 2_000_000)


def test_demo_runs_without_spark_and_replaces_only_a_demo_and_only_if_asked(run: Run, tmp_path: Path) -> None:
    document = json.loads(run("--json", "demo", "--rows", "600", "--no-spark"))
    found = {step["what"]: step["rows"] for step in document["steps"]}
    assert list(found)[:4] == ["Make JSON lines", "Load them", "Mirror in Delta", "Load them again"]
    assert [found[what] for what in list(found)[:4]] == [600, 600, 600, 0]
    assert found["Mirror the changes"] == found["Correct some rows"] > 0
    assert found["Load a messy CSV"] == 3
    error = run.json("demo", "--rows", "500", "--no-spark", code=1)["error"]
    assert error["kind"] == "Invalid" and "--dir" in error["hint"] and "--fresh" in error["hint"]
    assert run.json("--lake", "demo-lake", "query", "select count(*) as n from messages")["rows"]
    run("demo", "--no-spark", "--lake", "other", code=2)
    run("--lake", "other", "demo", "--no-spark", code=2)
    said = run("demo", "--rows", "500", "--no-spark", "--fresh")
    assert "nothing new" in said and "strandline --lake demo-lake status" in said
    found = run.json("--lake", "demo-lake", "doctor", "--deep", code=1)["findings"]
    assert [finding["command"] for finding in found] == ["rejects show orders"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    assert run.json("demo", "--dir", "mine", "--no-spark", "--fresh", code=1)["error"]["kind"] == "Invalid"
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_the_whole_demo_ends_by_itself() -> None:
    done = process("demo", "--rows", "2000", "--json", timeout_s=200)
    assert done.returncode == 0, done.stderr
    steps = {step["what"]: step for step in json.loads(done.stdout)["steps"]}
    on_spark = [what for what, step in steps.items() if step["engine"] == "spark"]
    assert on_spark == ["Start Spark", "Load them", "Ask Spark", "Compact the logs", "Export as Parquet"]
    assert {steps[what]["rows"] for what in ("Load them", "Ask Spark", "Export as Parquet")} == {2000}


def test_functions_that_show_need_no_terminal(loaded: Run, tmp_path: Path) -> None:
    """A pipe has no width: nothing is cut or folded there."""
    wide: Callable[[str], str] = lambda text: f"select '{text}' as a, '{text}' as b, '{text}' as c"  # noqa: E731
    line = loaded("query", wide("x" * 60)).splitlines()[1]
    assert line.split() == ["x" * 60] * 3


@pytest.mark.parametrize(
    ("words", "said", "data"),
    [
        (
            ("purge", "items", "5", "777"),
            "erase 2 keys from items; it has 1 row of them now",
            {"keys": 2, "present": 1},
        ),
        (("restore", "items", "--at", "1"), "set items back to seq 1", {"at": 1}),
        (("drop-column", "items", "name"), "drop the column name of items", {"table": "items"}),
        (
            ("expire", "items", "--before", "2024-01-31"),
            "hide 9 of 99 rows of items, whose at lies before",
            {"rows": 9, "is_exact": True},
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_dry_run_of_a_table_verb_says_what_would_happen_and_does_nothing(
    folded: Run, words: tuple[str, ...], said: str, data: dict[str, Any]
) -> None:
    if words[0] == "expire":
        folded("table", "set", "items", "time=at")
    before = snapshot()
    text = folded("table", *words, "--dry-run")
    assert f"Would {said}" in text and "Nothing was written." in text
    found = folded.json("table", *words, "--dry-run")
    assert found["is_dry_run"] is True and data.items() <= found.items()
    assert snapshot() == before
