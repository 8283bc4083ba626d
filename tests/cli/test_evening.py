"""The first evening: the mistakes that people make, and what they are told.

Each mistake ends with an error of the right kind, and a hint that says what to type or what there is. None of them
changes the lake."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import strandline as sl
from strandline.cli import app
from support import files_below

# What is typed, the kind of the error, and a part of its message and of its hint.
MISTAKES: list[tuple[str, str, str, str]] = [
    ("--lake nowhere query 'select 1'", "NotFound", "no lake at", "strandline init nowhere"),
    ("--lake good.csv status", "Invalid", "is a file", "another path"),
    ("ingest new good.csv", "NotFound", "no table 'new'", "--key COLUMN"),
    ("ingest new good.csv --key nope", "Invalid", "'nope'", "Columns: id, name, qty"),
    ("ingest new rows.jsonl --key nope", "Invalid", "'nope'", "Columns: id, name"),
    ("ingest new good.csv --key ''", "Invalid", "--key names no column", "--no-key"),
    ("table create t --schema id:int64 --key ,", "Invalid", "--key names no column", "leave --key out"),
    ("export items out --where 'id = '", "Invalid", "something is missing after '='", "id = 5"),
    ("ingest items bad.csv", "Invalid", "line 3, column 'qty'", "--rejects"),
    ("ingest items missing.csv", "NotFound", "missing.csv", "spelling"),
    ("ingest items 'none*.csv'", "NotFound", "none*.csv", "*"),
    ("ingest items https://host/a.csv", "Invalid", "https:// are not read", "Fetch the file"),
    ("ingest items -", "Invalid", "prints", "into a file"),
    ("ingest items rows.zip", "Invalid", ".zip is not read", "Unpack"),
    ("ingest good.csv items", "Invalid", "'good.csv'", "The table comes first"),
    ("ingest items sheet.xlsx", "Invalid", ".xlsx is not read", "as CSV"),
    ("ingest items good.csv --delimiter tab", "Invalid", "'tab'", "\\t"),
    ("query 'select count(*) form items'", "Invalid", "not SQL", "word before it"),
    ("--state foo status", "Invalid", "not the URL", "--state sqlite:///"),
    ("query 'select t.id from items at (version => 1) t'", "Invalid", "not SQL", "before AT"),
    ("query 'show columns from items'", "Invalid", "not SQL", "SHOW table"),
    ("ingest items good.csv --key name", "Invalid", "another key: id", "Leave the key out"),
    ("ingest items picture.png", "Invalid", "picture.png", "--format"),
    ("ingest items empty.parquet", "Invalid", "empty.parquet", "fetch it again"),
    ("query 'select * from itms'", "NotFound", "'itms'", "items"),
    ("query 'select nme from items'", "Invalid", "nme", 'Did you mean: "name"?'),
    ("query 'delete from items'", "Invalid", "one SELECT", "upsert"),
    ("query 'select * from items where'", "Invalid", "not SQL", "word before it"),
    ("query \"select * from 'good.csv'\"", "NotFound", "good.csv", "items"),
    ("table show itms", "NotFound", "'itms'", "items"),
    ("table create items --schema id:int64 --key id", "Invalid", "exists", "strandline table show items"),
    ("table create t --schema id:integr --key id", "Invalid", "'integr'", "int64"),
    ("table create t --schema id:int64 --key nope", "Invalid", "'nope'", "Columns: id"),
    ("table create 'a b' --schema id:int64 --key id", "Invalid", "'a b'", "letter"),
    ("table set items retention=90", "Invalid", "'90'", "its unit"),
    ("table set items retention=90d", "Invalid", "time column", "time=COLUMN"),
    ("table set items nope=1", "Invalid", "'nope'", "keep"),
    ("table restore items --at 99", "Invalid", "99", "strandline table history items"),
    ("table restore items --at yesterday", "Invalid", "yesterday", "2024-05-31"),
    ("table purge items abc --yes", "Invalid", "'abc'", "id: int64"),
    ("table drop items", "Invalid", "--yes", "--yes"),
    ("table drop-column items id --yes", "Invalid", "key", "another table"),
    ("table expire items --yes", "Invalid", "time column", "time=COLUMN"),
    ("sink add copy itms --to ./out", "NotFound", "'itms'", "items"),
    ("sink add copy items --to ./lake/out", "Invalid", "inside the lake", "outside"),
    ("sink add copy items --to ftp://host/x", "Invalid", "--to", "s3://bucket/prefix"),
    ("tick nope", "NotFound", "'nope'", "compaction/TABLE"),
    ("mark reset nope", "NotFound", "'nope'", "strandline sink add"),
    ("deadletter show 123", "NotFound", "'123'", "strandline deadletter list"),
    ("export items ./lake", "Invalid", "inside the lake", "another|outside"),
    ("export items .", "Invalid", "files", "another destination"),
    ("token add x --role boss", "Invalid", "'boss'", "reader, writer, admin"),
    ("serve --host 0.0.0.0", "Invalid", "no tokens", "strandline token add"),
]
# Words that the command line does not know, and what it says instead.
USAGE: list[tuple[str, str]] = [
    ("tabel list", "table"),
    ("table lst", "list"),
    ("add-column items note:string", "'table add-column'"),
    ("pause copy", "'sink pause'"),
    ("vacuum --keep 1x", "7d"),
    ("query --limit -1 'select 1'", "--limit"),
    ("query select id from items", "in quotes"),
    ("ingest items good.csv --format json", "'--format': 'json' is not one of"),
    ("--log-level loud status", "'loud'"),
    ("ingest items good.csv --key id --no-key", "--no-key"),
]


@pytest.fixture(scope="module")
def _place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evening")
    (folder / "good.csv").write_text("id,name,qty\n1,a,5\n2,b,6\n")
    (folder / "bad.csv").write_text("id,name,qty\n1,a,5\n2,b,six\n")
    (folder / "rows.jsonl").write_text('{"id": 1, "name": "a"}\n')
    (folder / "rows.zip").write_bytes(b"PK")
    (folder / "sheet.xlsx").write_bytes(b"PK")
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
    (folder / "empty.parquet").write_bytes(b"")
    lake = sl.Lake(folder / "lake")
    lake.create_table("items", "id:int64, name:string, qty:int64", key=["id"])
    lake.table("items").upsert([{"id": 1, "name": "a", "qty": 5}, {"id": 2, "name": "b", "qty": 6}])
    return folder


@pytest.fixture(autouse=True)
def _evening(_place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A mistake changes no file of the lake's tables."""
    monkeypatch.chdir(_place)
    monkeypatch.delenv("STRANDLINE_LAKE", raising=False)
    before = files_below(_place / "lake" / "tables")
    yield
    assert files_below(_place / "lake" / "tables") == before
    assert sl.Lake("lake").tables() == ["items"]


def _type(line: str, *more: str) -> Any:
    return CliRunner().invoke(app, [*shlex.split(line), *more])


@pytest.mark.parametrize(("typed", "kind", "message", "hint"), MISTAKES, ids=[each[0] for each in MISTAKES])
def test_a_mistake_is_answered_with_its_kind_and_what_to_do(typed: str, kind: str, message: str, hint: str) -> None:
    said = _type(typed, "--json")
    assert said.exit_code == 1, said.output
    error = json.loads(said.stdout)["error"]
    assert error["kind"] == kind, error
    assert message in error["message"], error
    assert any(part in (error.get("hint") or "") for part in hint.split("|")), error
    assert "Traceback" not in said.output
    for word in ("pyarrow", "duckdb.", "Errno", "<class", "extension<"):
        assert word not in error["message"], error


@pytest.mark.parametrize(("typed", "says"), USAGE, ids=[each[0] for each in USAGE])
def test_a_word_that_does_not_exist_is_a_usage_error_that_names_the_right_one(typed: str, says: str) -> None:
    said = _type(typed)
    assert said.exit_code == 2, said.output
    assert says in said.output
    assert "Traceback" not in said.output
    assert "Value error" not in said.output
