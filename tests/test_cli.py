"""The command line: what a person reads, what a program reads, and how it ends."""

from __future__ import annotations

import json
import os
import pty
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
from typer.testing import CliRunner

import strandline as sl
from strandline.cli import app
from support import environment

VERBS = [
    ("init",), ("ingest",), ("rejects",), ("query",), ("status",), ("doctor",), ("demo",), ("table", "list"),
    ("table", "show"), ("table", "create"), ("table", "import"), ("table", "rename"), ("table", "fold"),
    ("table", "history"), ("table", "drop"),
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
        result = CliRunner().invoke(app, [*words, "--json"])
        assert result.exit_code == code, (result.output, result.exception)
        assert result.stderr == ""
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
    assert ("--lake" in text) == (words != ("demo",)), "the demo has a folder of its own"


def test_every_verb_is_tested_here(run: Run) -> None:
    from typer.main import get_command

    root = get_command(app)
    found = {(name,) for name in root.commands if name != "table"}
    found |= {("table", name) for name in root.commands["table"].commands}
    assert found == set(VERBS)


def test_starting_does_not_import_spark() -> None:
    code = "import sys; import strandline.cli; sys.exit(any(m.startswith('pyspark') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], env=environment(), check=False).returncode == 0


def test_init_says_what_to_do_next_and_a_second_one_that_it_is_there(run: Run, tmp_path: Path) -> None:
    assert "strandline ingest" in run("init")
    assert "already" in run("init")
    assert run.json("init", "other")["created"] is True
    second = run.json("init", "other")
    assert (second["created"], second["lake"]) == (False, str(tmp_path / "other"))
    assert f"--lake {tmp_path}/third" in run("init", f"{tmp_path}/third")


def test_the_lake_is_named_before_or_after_the_verb_or_by_the_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run("init", "x")
    assert run.json("--lake", "x", "status")["lake"] == str(tmp_path / "x")
    assert run.json("status", "--lake", "x")["lake"] == str(tmp_path / "x")
    monkeypatch.setenv("STRANDLINE_LAKE", "x")
    assert run.json("status")["lake"] == str(tmp_path / "x")
    run("init", "y")
    assert run.json("--lake", "y", "status")["lake"] == str(tmp_path / "y")


@pytest.mark.parametrize(
    "words",
    [("status",), ("ingest", "t", "x.jsonl"), ("query", "select 1"), ("table", "list"), ("doctor",), ("rejects", "t")],
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
    assert "1 row did not fit" in said and "strandline rejects items" in said
    assert "[bold]" in loaded("rejects", "items")
    listed = loaded.json("rejects", "items")
    assert (listed["count"], listed["rejects"][0]["line"], listed["rejects"][0]["column"]) == (1, 2, "id")
    assert loaded.json("rejects", "items", "--limit", "0")["rejects"] == []
    assert loaded.json("status")["tables"][0]["rejects"] == 1


def test_an_unfinished_line_is_told(run: Run, tmp_path: Path) -> None:
    run("init")
    (tmp_path / "a.csv").write_text("id,name\n1,aaa\n2,bb")
    assert "1 unfinished line left for later" in run("ingest", "t", "a.csv", "--no-key")
    assert "1 unfinished line left for later" in run("ingest", "t", "a.csv")
    (tmp_path / "a.csv").write_text("id,name\n1,aaa\n2,bbbb\n3,c\n")
    assert "unfinished" not in run("ingest", "t", "a.csv")
    assert run.json("query", "select count(*) as n from t")["rows"] == [{"n": 3}]


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("a.csv", "id;name\n1;x\n", "--delimiter ';'"),
        ("a.csv", "id\tname\n1\tx\n", "--delimiter $'\\t'"),
        ("a.csv", "id,first name\n1,x\n", "Rename"),
        ("a.json", '[{"id": 1}]\n', "One JSON object a line"),
        ("a.json", '{\n  "id": 1\n}\n', "One JSON object a line"),
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
    for sql, kind in (("drop table items", "Invalid"), ("select * from nope", "NotFound"), ("selec", "Invalid")):
        assert loaded.json("query", sql, code=1)["error"]["kind"] == kind
    loaded("query", "select 1", "--csv", "--json", code=2)


def test_status_gives_the_numbers_and_says_when_they_are_bounds(loaded: Run, tmp_path: Path) -> None:
    (table,) = loaded.json("status")["tables"]
    assert (table["name"], table["rows"], table["is_exact"]) == ("items", 2, True)
    assert [table[name] for name in ("head", "commits", "folded_to", "lag_commits", "lag_rows")] == [1, 1, 0, 1, 2]
    sl.Lake("lake").table("items").upsert([{"id": 2, "name": "again"}])
    (table,) = loaded.json("status")["tables"]
    assert (table["rows"], table["is_exact"]) == (3, False)
    assert "≤ 3" in loaded("status")
    (table,) = loaded.json("status", "--exact")["tables"]
    assert (table["rows"], table["is_exact"]) == (2, True)
    loaded("table", "fold", "items")
    (table,) = loaded.json("status")["tables"]
    assert (table["rows"], table["is_exact"], table["folded_to"], table["lag_commits"]) == (2, True, 2, 0)
    assert table["baseline_files"] == 2 and table["baseline_bytes"] > 0 and table["log_files"] == 2


def test_a_broken_table_does_not_hide_the_others(loaded: Run, tmp_path: Path) -> None:
    loaded("ingest", "other", "a.jsonl", "--key", "id")
    folder = Path("lake") / loaded.json("table", "show", "other")["folder"]
    (folder / "log/_delta_log" / f"{0:020d}.json").write_text("garbage")
    tables = loaded.json("status", code=1)["tables"]
    assert [(t["name"], t.get("error", {}).get("kind")) for t in tables] == [("items", None), ("other", "Corrupt")]
    assert "strandline doctor" in loaded("status", code=1)
    assert loaded.json("doctor", code=1)["is_sound"] is False
    assert "wrong" in loaded("doctor", code=1)


def test_doctor_finds_everything_in_order_and_clears_leftovers(loaded: Run) -> None:
    assert "Everything holds" in loaded("doctor", "--deep")
    loaded("table", "drop", "items", "--yes")
    assert "--grace 0s" in loaded("doctor", "--grace", "0s")
    assert loaded.json("doctor", "--grace", "0s", "--repair")["findings"][0]["is_repaired"] is True
    loaded("doctor", "--grace", "soon", code=2)


def test_tables_are_made_shown_renamed_folded_and_dropped(run: Run) -> None:
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
    assert "Nothing to fold" in run("table", "fold", "u")
    assert [c["operation"] for c in run.json("table", "history", "u")["commits"]] == ["CREATE TABLE"]
    assert "CREATE TABLE" in run("table", "history", "u")
    assert run.json("table", "drop", "u", code=1)["error"]["kind"] == "Invalid"
    assert "Aborted" in run("table", "drop", "u", code=1, stdin="n\n")
    assert run.json("table", "list")["tables"] == ["u"]
    assert "Dropped u" in run("table", "drop", "u", stdin="y\n")
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
    "words", [("nope",), ("ingest",), ("ingest", "t"), ("status", "--nope"), ("rejects",)], ids=" ".join
)
def test_a_wrong_call_ends_with_2_and_is_json_if_asked(words: tuple[str, ...]) -> None:
    plain = process(*words)
    assert plain.returncode == 2 and plain.stdout == "" and "Traceback" not in plain.stderr
    asked = process(*words, "--json")
    assert asked.returncode == 2
    assert json.loads(asked.stdout)["error"]["kind"] == "Usage"


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


def test_stopping_it_by_hand_leaves_nothing_half_done(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"id":{i}}}\n' for i in range(2_000_000)))
    process("init")
    process("table", "create", "t", "--schema", "id:int64")
    started = subprocess.Popen(
        [sys.executable, "-m", "strandline", "ingest", "t", "a.jsonl"], env=environment(), stderr=subprocess.PIPE
    )
    time.sleep(1.2)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert started.returncode in (0, 130), said
    assert b"Traceback" not in said
    assert sl.Lake("lake").table("t").to_arrow().num_rows in (0, 2_000_000)


def test_demo_runs_without_spark_and_replaces_only_a_demo_and_only_if_asked(run: Run, tmp_path: Path) -> None:
    document = run.json("demo", "--rows", "600", "--no-spark")
    assert [step["what"] for step in document["steps"]][:3] == ["Make JSON lines", "Load them", "Load them again"]
    assert [step["rows"] for step in document["steps"]][:3] == [600, 600, 0]
    error = run.json("demo", "--rows", "500", "--no-spark", code=1)["error"]
    assert error["kind"] == "Invalid" and "--dir" in error["hint"] and "--fresh" in error["hint"]
    assert run.json("--lake", "demo-lake", "query", "select count(*) as n from messages")["rows"]
    run("demo", "--no-spark", "--lake", "other", code=2)
    run("--lake", "other", "demo", "--no-spark", code=2)
    said = run("demo", "--rows", "500", "--no-spark", "--fresh")
    assert "nothing new" in said and "strandline --lake demo-lake status" in said
    assert run.json("--lake", "demo-lake", "doctor", "--deep", "--grace", "0s")["findings"] == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    assert run.json("demo", "--dir", "mine", "--no-spark", "--fresh", code=1)["error"]["kind"] == "Invalid"
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_the_whole_demo_ends_by_itself() -> None:
    done = process("demo", "--rows", "2000", "--json", timeout_s=200)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout)["steps"][-1]
    assert (last["what"], last["rows"]) == ("Ask Spark", 2000)


def test_functions_that_show_need_no_terminal(loaded: Run, tmp_path: Path) -> None:
    """A pipe has no width: nothing is cut or folded there."""
    wide: Callable[[str], str] = lambda text: f"select '{text}' as a, '{text}' as b, '{text}' as c"  # noqa: E731
    line = loaded("query", wide("x" * 60)).splitlines()[1]
    assert line.split() == ["x" * 60] * 3
