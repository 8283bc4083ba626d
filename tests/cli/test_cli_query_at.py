"""`strandline query --at`, and questions about the tables themselves."""

import json

import pytest

import strandline as sl
from strandline.cli import main


def ask(lake: sl.Lake, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    with pytest.raises(SystemExit):
        main(["--lake", lake.storage.uri, "query", *words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_query_is_answered_as_of_a_seq_or_a_time(lake, items, capsys):
    for n in range(3):
        items.upsert([{"id": n}])
    count = "SELECT count(*) AS n FROM items"
    at = items.history()[2].at.isoformat()
    assert [ask(lake, capsys, count, "--at", when)["rows"] for when in ("1", at)] == [[{"n": 1}], [{"n": 2}]]
    assert ask(lake, capsys, count, "--at", "2999-01-01")["error"]["kind"] == "Invalid"
    assert ask(lake, capsys, "SHOW TABLES")["rows"] == [{"name": "items"}]
