"""The page `json.md` names the keys of every document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from strandline.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "json.md"

# One evening, verb by verb; each call needs those before it.
CALLS = """
init
ingest items a.jsonl --key id --dry-run
ingest items a.jsonl --key id
query 'SELECT_1'
export items out
sink add archive items --to copy
plan
tick
status
compact
vacuum
doctor
backup other
sink list
sink show archive
sink pause archive
sink resume archive
mark show
mark reset archive --dry-run
mark retire archive --yes
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
table restore items --at 1
table expire visits --before 2024-01-01 --yes
table pin items --name nightly
table pins items
table unpin items nightly
table add-column items note:string
table rename-column items note remark
table drop-column items remark --yes
table purge items 1 --yes
table drop visits --yes
sink remove archive --yes
""".strip().splitlines()


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
    keys, missing = documented(), []
    for line in CALLS:
        words = [word.strip("'").replace("_", " ") if "'" in word else word for word in line.split()]
        done = CliRunner().invoke(app, [*words, "--json"])
        document = json.loads(done.stdout)
        assert done.exit_code == 0, (line, document)
        verb = " ".join(words[:2]) if " ".join(words[:2]) in keys else words[0]
        missing += [f"{verb}: {key}" for key in document if key not in keys[verb]]
    assert missing == []


def test_every_verb_is_on_the_page() -> None:
    known = documented()
    assert [verb for verb in verbs() if verb not in known and verb.partition(" ")[0] not in known] == []
