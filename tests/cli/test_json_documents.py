"""The page `json.md` names the keys of every document."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import strandline as sl
from strandline.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "json.md"

# One evening, verb by verb; each call needs those before it.
CALLS = """
init
ingest items a.jsonl --key id --dry-run
ingest items a.jsonl --key id
ingest items bad.csv --rejects
rejects list
rejects show items
rejects retry items --yes
rejects drop items --yes
query 'SELECT_1'
export items out --dry-run
export items out
table import taken out --key id
sink add archive items --to copy
sink add twin items --kind delta --to mirror
plan
tick --dry-run
tick
status
compact --dry-run
compact
vacuum --dry-run
vacuum
doctor
backup other
--lake third restore other
sink list
sink show archive
sink pause archive
sink resume archive
backfill status
backfill pause archive
backfill resume archive
backfill rate archive 1000
backfill restart archive --dry-run
--app graphs:lake tick fixpoint/parts
--app graphs:lake fixpoint list
--app graphs:lake fixpoint show parts
--app graphs:lake fixpoint verify parts
--app graphs:lake fixpoint rebuild parts
fixpoint drop parts --yes
sink remove twin --dry-run
mark show
mark reset archive --dry-run
mark retire archive --dry-run
mark retire archive --yes
mark reset archive --yes
deadletter list
deadletter replay --all
deadletter drop --all --yes
token add edge --role writer
token list
token revoke edge
table list
table show items
table create events --schema id:int64,at:timestamp --key id --time at
table rename events visits
table history items
table set items keep=7d
table restore items --at 1 --dry-run
table restore items --at 1
table expire visits --before 2024-01-01 --dry-run
table expire visits --before 2024-01-01 --yes
table pin items --name nightly
table pins items
table unpin items nightly
table add-column items note:string
table rename-column items note remark --dry-run
table rename-column items note remark
table drop-column items remark --dry-run
table drop-column items remark --yes
table purge items 1 --dry-run
table purge items 1 --yes
table drop visits --yes
table undrop
table undrop visits
sink remove archive --yes
doctor --adopt-state
demo --rows 200 --no-spark
""".strip().splitlines()


GRAPHS = """
import strandline as sl
lake = sl.Lake("./lake")
lake.create_table("links", "src:int64, dst:int64", if_exists="open")
sl.graph.connected_components(lake, "parts", edges="links")
"""


def documented() -> dict[str, set[str]]:
    """The keys of each verb."""
    found: dict[str, set[str]] = {}
    for line in PAGE.read_text().partition("## Documents")[2].splitlines():
        cells = re.match(r"\| (.+?) \| (.+) \|$", line)
        for verb in re.findall(r"`([a-z -]+)`", cells[1]) if cells else ():
            found[verb] = set(re.findall(r"`([a-z_]+)`", cells[2])) if cells else set()
    return found


def verbs() -> Iterator[str]:
    root = get_command(app)
    for name in root.list_commands(None):  # type: ignore[attr-defined, arg-type]
        command = root.get_command(None, name)  # type: ignore[attr-defined, arg-type]
        inner = getattr(command, "list_commands", None)
        yield from (f"{name} {each}" for each in inner(None)) if inner else [name]


def test_every_key_of_a_document_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text('{"id":1,"name":"one"}\n{"id":2,"name":"two"}\n')
    Path("bad.csv").write_text("id,name\n3,three\nx,four\n")
    Path("graphs.py").write_text(GRAPHS)
    missing: list[str] = []
    called: set[str] = set()
    for line in CALLS:
        words = [word.strip("'").replace("_", " ") if "'" in word else word for word in line.split()]
        if "--adopt-state" in words:
            for part in Path("lake").glob("state.db*"):
                part.unlink()
        done = CliRunner().invoke(app, [*words, "--json"])
        document = json.loads(done.stdout)
        assert not document.get("error"), (line, document)
        verb = find_verb(line)
        called.add(verb)
        missing += missing_keys("plan" if line == "tick --dry-run" else verb, document)
    assert not missing, "\n".join(missing)
    # The first two run until they are stopped. The last one needs a destination that refuses rows.
    assert set(verbs()) - called == {"run", "serve", "deadletter show"}


def find_verb(line: str) -> str:
    words = line.removeprefix("--lake third ").removeprefix("--app graphs:lake ").split()
    return max((verb for verb in verbs() if words[: len(verb.split())] == verb.split()), key=len)


def missing_keys(verb: str, document: dict[str, object]) -> list[str]:
    """The keys of a document that the page does not name."""
    known = documented()
    return [f"{verb}: {key}" for key in document if key not in known[verb]]


@pytest.mark.parametrize(("verb", "more"), [("run", ["--every", "1h"]), ("serve", ["--port", "0"])])
def test_the_keys_of_a_verb_that_runs_on_are_on_the_page(tmp_path: Path, verb: str, more: list[str]) -> None:
    lake = sl.Lake(tmp_path / "lake")
    lake.create_table("items", "id:int64", key=["id"]).upsert([{"id": 1}])
    lake.add_sink(lake.sink("archive", "items", to=sl.ParquetSink(tmp_path / "copy")))
    typed = [sys.executable, "-m", "strandline", "--lake", str(tmp_path / "lake"), verb, *more, "--json"]
    with subprocess.Popen(typed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        first = running.stdout.readline()
        running.send_signal(signal.SIGINT)
    assert missing_keys(verb, json.loads(first)) == []


def test_every_verb_is_on_the_page() -> None:
    known = documented()
    assert [verb for verb in verbs() if verb not in known and verb.partition(" ")[0] not in known] == []
