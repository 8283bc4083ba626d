"""Dead letters: rows that a receiver refuses are kept by key, and sent again as they are then (lesson 12)."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from foreign_receiver import Endpoint, foreign_receiver
from receiving import served
from strandline.pipeline import commands, redelivery
from strandline.sinks.definition import SinkDef
from support import python


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with foreign_receiver(tmp_path_factory.mktemp("foreign")) as address:
        yield address


@pytest.fixture
def endpoint(foreign: str) -> Endpoint:
    return Endpoint(foreign, f"/{uuid.uuid4().hex}")


def sink_to(endpoint: Endpoint, **options: Any) -> sl.HttpSink:
    return sl.HttpSink(endpoint.url, receiver="any", patience="1s", **options)


def rows(*ids: int, name: str = "n") -> list[dict[str, Any]]:
    return [{"id": id, "name": f"{name}{id}"} for id in ids]


REFUSE = {"column": "name", "value": "bad", "status": 422, "names_row": True}


def test_a_refused_row_becomes_a_dead_letter_and_the_others_arrive(
    lake: sl.Lake, items: sl.Table, endpoint: Endpoint
) -> None:
    endpoint.control(refuse=REFUSE)
    items.upsert([*rows(1, 2), {"id": 3, "name": "bad"}])
    lake.sink("central", "items", to=sink_to(endpoint))
    report = lake.tick(only=["central"])
    assert (report.is_well, report.sinks[0].rows, report.sinks[0].dead) == (False, 2, 1)
    assert sorted(row["id"] for row in endpoint.rows()) == [1, 2]
    (letter,) = lake.state.letters.all()
    assert (letter.rows, letter.status, letter.key_table.to_pylist()) == (1, 422, [{"id": 3}])
    assert lake.status().sinks[0].letters == 1
    assert lake.tick(only=["central"]).is_idle
    items.upsert([{"id": 4, "name": "bad"}])
    report = lake.tick(only=["central"])
    assert report.sinks[0].error is None and report.sinks[0].is_all_refused, "it may be the wrong destination"


def test_a_replay_sends_the_row_as_it_is_now_and_ends_the_letter(
    lake: sl.Lake, items: sl.Table, endpoint: Endpoint
) -> None:
    endpoint.control(refuse=REFUSE)
    items.upsert([{"id": 3, "name": "bad"}])
    lake.sink("central", "items", to=sink_to(endpoint))
    lake.tick(only=["central"])
    (letter,) = lake.state.letters.all()
    (again,) = redelivery.replay(lake, [letter.id[:8]])
    assert again.error is not None and again.error.fields["status"] == 422
    assert lake.state.letters.get(letter.id).attempts == 1
    items.upsert([{"id": 3, "name": "good"}])
    (*_, (_, file)) = items.log.refresh().by_seq
    path = Path(lake.storage.uri) / items.log.folder / file.path
    whole = path.read_bytes()
    # Other rows, and sound pages: only the digest of the file tells.
    rows_ = pq.read_table(path)
    pq.write_table(rows_.set_column(rows_.column_names.index("name"), "name", pa.array(["else"])), path)
    (again,) = redelivery.replay(lake, [letter.id])
    assert isinstance(again.error, sl.Corrupt) and lake.state.letters.get(letter.id).attempts == 1
    path.write_bytes(whole)
    (again,) = redelivery.replay(lake, [letter.id])
    assert (again.rows, again.error) == (1, None)
    assert lake.state.letters.all() == []
    assert [(row["_op"], row["id"], row["name"]) for row in endpoint.rows()] == [("upsert", 3, "good")]


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_token_that_is_put_right_finishes_what_was_begun_with_the_wrong_one(
    lake: sl.Lake, items: sl.Table, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, is_declared: bool
) -> None:
    monkeypatch.setenv("WRONG", "a")
    monkeypatch.setenv("RIGHT", "b")
    endpoint.control(token="b")
    items.upsert(rows(1, 2))

    def use(token: str) -> None:
        sink = lake.sink("central", "items", to=sl.HttpSink(endpoint.url, receiver="any", token=token), where="id > 0")
        if not is_declared:
            del lake.declared["central"]
            commands.add(lake, sink)

    use("env:WRONG")
    assert isinstance(lake.tick(only=["central"]).sinks[0].error, sl.Invalid)
    assert lake.status().sinks[0].intents == 1
    items.upsert(rows(3))
    use("env:RIGHT")
    report = lake.tick(only=["central"]).sinks[0]
    assert (report.error, report.replays, report.rows) == (None, 1, 3)
    assert sorted(row["id"] for row in endpoint.rows()) == [1, 2, 3]


def test_a_replay_asks_a_destination_that_is_away_once(lake: sl.Lake, items: sl.Table, endpoint: Endpoint) -> None:
    endpoint.control(refuse=REFUSE)
    lake.sink("central", "items", to=sl.HttpSink(endpoint.url, receiver="any", patience="0s"))
    for number in range(3):
        items.upsert([{"id": number, "name": "bad"}])
        lake.tick(only=["central"])
    ids = [letter.id for letter in lake.state.letters.all()]
    endpoint.control(refuse=None, script=[{"status": 503}])
    before = len(endpoint.requests())
    replayed = redelivery.replay(lake, ids)
    assert [type(each.error) for each in replayed] == [sl.Unavailable] * 3
    assert len(endpoint.requests()) == before + 1
    assert [each.error for each in redelivery.replay(lake, ids)] == [None] * 3
    assert sorted(row["id"] for row in endpoint.rows()) == [0, 1, 2]


def test_a_replay_of_a_row_that_is_gone_sends_a_delete(lake: sl.Lake, items: sl.Table, endpoint: Endpoint) -> None:
    endpoint.control(refuse=REFUSE)
    items.upsert([{"id": 3, "name": "bad"}])
    lake.sink("central", "items", to=sink_to(endpoint))
    lake.tick(only=["central"])
    items.delete([3])
    (letter,) = lake.state.letters.all()
    shown = redelivery.rows_of(lake, letter)
    assert shown is not None and shown.num_rows == 0
    redelivery.replay(lake, [letter.id])
    assert [(row["_op"], row["id"]) for row in endpoint.rows()] == [("delete", 3)]


def test_a_replay_applies_the_filter_and_the_mask_of_the_sink(
    lake: sl.Lake, items: sl.Table, endpoint: Endpoint
) -> None:
    endpoint.control(refuse={**REFUSE, "value": "***"})
    items.upsert(rows(1, 2))
    lake.sink("central", "items", to=sink_to(endpoint), where="id < 2", mask={"id": "hash", "name": "redact"})
    lake.tick(only=["central"])
    (letter,) = lake.state.letters.all()
    endpoint.control(refuse=None)
    before = endpoint.rows()
    (again,) = redelivery.replay(lake, [letter.id])
    assert again.error is None
    sent = endpoint.rows()[len(before) :]
    assert [(row["_op"], row["name"]) for row in sent] == [("upsert", "***")]
    assert sent[0]["id"] == letter.key_table.to_pylist()[0]["id"]


def test_rows_of_a_table_without_a_key_are_found_again(lake: sl.Lake, endpoint: Endpoint) -> None:
    events = lake.create_table("events", pa.schema([("name", pa.string())]), vnodes=2)
    events.append([{"name": "good"}, {"name": "bad"}])
    endpoint.control(refuse=REFUSE)
    lake.sink("central", "events", to=sink_to(endpoint))
    lake.tick(only=["central"])
    (letter,) = lake.state.letters.all()
    events.compact(full=True)
    endpoint.control(refuse=None)
    redelivery.replay(lake, [letter.id])
    assert [row["name"] for row in endpoint.rows()] == ["good", "bad"]


def test_a_letter_of_an_earlier_life_is_not_sent(lake: sl.Lake, items: sl.Table, endpoint: Endpoint) -> None:
    endpoint.control(refuse=REFUSE)
    items.upsert([{"id": 3, "name": "bad"}])
    lake.sink("central", "items", to=sink_to(endpoint))
    lake.tick(only=["central"])
    (letter,) = lake.state.letters.all()
    commands.reset(lake, "central", "head")
    (again,) = redelivery.replay(lake, [letter.id])
    assert isinstance(again.error, sl.Invalid)


def test_a_replay_for_a_sink_without_deletes_skips_keys_that_are_gone(
    lake: sl.Lake, items: sl.Table, endpoint: Endpoint
) -> None:
    endpoint.control(refuse={**REFUSE, "names_row": False})
    items.upsert([{"id": 3, "name": "bad"}, {"id": 4, "name": "good"}])
    lake.sink("central", "items", to=sink_to(endpoint), deletes=False)
    lake.tick(only=["central"])
    (letter,) = lake.state.letters.all()
    assert letter.rows == 2
    items.delete([3])
    (again,) = redelivery.replay(lake, [letter.id])
    assert (again.rows, again.error) == (1, None)
    assert [(row["_op"], row["id"]) for row in endpoint.rows()] == [("upsert", 4)]
    assert lake.state.letters.all() == []


def test_a_replay_that_finds_nobody_leaves_the_letter_as_it_is(
    lake: sl.Lake, items: sl.Table, endpoint: Endpoint
) -> None:
    endpoint.control(refuse=REFUSE)
    items.upsert([{"id": 3, "name": "bad"}])
    lake.sink("central", "items", to=sl.HttpSink(endpoint.url, receiver="any", patience="0s"))
    lake.tick(only=["central"])
    (letter,) = lake.state.letters.all()
    for status, kind in ((503, sl.Unavailable), (403, sl.Invalid)):
        endpoint.control(script=[{"status": status}])
        (again,) = redelivery.replay(lake, [letter.id])
        assert type(again.error) is kind and again.error.fields["status"] == status
        assert lake.state.letters.all() == [letter]


def test_a_retired_sink_sends_no_letters(lake: sl.Lake, items: sl.Table, endpoint: Endpoint) -> None:
    endpoint.control(refuse=REFUSE)
    items.upsert([{"id": 3, "name": "bad"}])
    lake.sink("central", "items", to=sink_to(endpoint))
    lake.tick(only=["central"])
    (letter,) = lake.state.letters.all()
    commands.retire(lake, "central")
    endpoint.control(refuse=None)
    (again,) = redelivery.replay(lake, [letter.id])
    assert isinstance(again.error, sl.Invalid) and again.error.fields["consumer"] == "central"
    assert endpoint.rows() == []
    assert lake.state.letters.all() == [letter]


def test_a_letter_goes_only_to_the_table_and_the_place_it_was_for(
    lake: sl.Lake, items: sl.Table, endpoint: Endpoint, foreign: str
) -> None:
    endpoint.control(refuse=REFUSE)
    items.upsert([{"id": 3, "name": "bad"}])
    commands.add(lake, SinkDef.declare("central", "items", sink_to(endpoint)))
    lake.tick(only=["central"])
    (letter,) = lake.state.letters.all()
    endpoint.control(refuse=None)
    other = Endpoint(foreign, f"/{uuid.uuid4().hex}")
    lake.sink("central", "items", to=sink_to(other))
    (again,) = redelivery.replay(lake, [letter.id])
    assert other.rows() == []
    assert len(endpoint.rows()) == (1 if again.error is None else 0)


def test_a_letter_of_a_table_that_was_recreated_is_not_sent(lake: sl.Lake, items: sl.Table, endpoint: Endpoint) -> None:
    endpoint.control(refuse=REFUSE)
    items.upsert([{"id": 3, "name": "bad"}])
    lake.sink("central", "items", to=sink_to(endpoint))
    lake.tick(only=["central"])
    (letter,) = lake.state.letters.all()
    endpoint.control(refuse=None)
    schema = items.schema
    lake.drop("items")
    lake.create_table("items", schema, key=["id"], vnodes=2)
    (again,) = redelivery.replay(lake, [letter.id])
    assert isinstance(again.error, sl.Invalid)
    assert endpoint.rows() == []


def test_a_lost_answer_to_a_replay_counts_the_rows_once(lake: sl.Lake, items: sl.Table, endpoint: Endpoint) -> None:
    endpoint.control(refuse=REFUSE)
    items.upsert([{"id": 3, "name": "bad"}])
    lake.sink("central", "items", to=sink_to(endpoint))
    lake.tick(only=["central"])
    (letter,) = lake.state.letters.all()
    endpoint.control(refuse=None, script=[{"lost": True}])
    redelivery.replay(lake, [letter.id])
    assert [row["id"] for row in endpoint.rows()] == [3]


def test_a_strandline_receiver_takes_what_it_refused_before(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> None:
    """A receiver whose column requires a value refuses a row without one; the rest of the chunk arrives."""
    other = sl.Lake(tmp_path / "other")
    key = pa.field("id", pa.int64(), False)
    other.create_table("strict", pa.schema([key, pa.field("n", pa.int64(), False)]), key=["id"], vnodes=2)
    lax = lake.create_table("strict", pa.schema([key, ("n", pa.int64())]), key=["id"])
    lax.upsert([{"id": 1, "n": 1}, {"id": 2, "n": None}, {"id": 3, "n": 3}])
    with served(str(tmp_path / "other")) as receiver:
        lake.sink("central", "strict", to=sl.HttpSink(f"{receiver.url}/ingest/strict", patience="1s"))
        report = lake.tick(only=["central"])
        assert report.sinks[0].error is None and report.sinks[0].dead == 1
        assert {row["id"] for row in other.table("strict").to_arrow().to_pylist()} == {1, 3}
        lax.upsert([{"id": 2, "n": 2}])
        assert lake.tick(only=["central"]).is_well
        (letter,) = lake.state.letters.all()
        (again,) = redelivery.replay(lake, [letter.id])
        assert again.error is None
    assert {row["id"]: row["n"] for row in other.table("strict").to_arrow().to_pylist()} == {1: 1, 2: 2, 3: 3}


def test_a_receiver_whose_column_has_another_type_refuses_all_rows_and_the_sink_goes_on(
    lake: sl.Lake, items: sl.Table, tmp_path: Path
) -> None:
    other = sl.Lake(tmp_path / "other")
    other.create_table("items", pa.schema([pa.field("id", pa.int64(), False), ("qty", pa.string())]), key=["id"])
    items.upsert([{"id": number, "qty": number} for number in range(100)])
    with served(str(tmp_path / "other")) as receiver:
        lake.sink("central", "items", to=sl.HttpSink(f"{receiver.url}/ingest/items", patience="1s"))
        report = lake.tick(only=["central"])
    assert (report.sinks[0].error, report.sinks[0].dead, report.is_well) == (None, 100, False)
    assert set(lake.status().sinks[0].marks.values()) == {items.head}


REPLAY = """
import sys
import strandline as sl
from strandline.pipeline import redelivery
lake = sl.Lake(sys.argv[1])
redelivery.replay(lake, [letter.id for letter in lake.state.letters.all()])
"""


def test_a_process_killed_after_a_replay_was_accepted_counts_it_once(
    lake: sl.Lake, items: sl.Table, endpoint: Endpoint
) -> None:
    endpoint.control(refuse=REFUSE)
    items.upsert([{"id": 3, "name": "bad"}])
    commands.add(lake, SinkDef.declare("central", "items", sink_to(endpoint)))
    lake.tick(only=["central"])
    endpoint.control(refuse=None)
    killed = python(REPLAY, lake.storage.uri, crash="redelivery.sent")
    assert killed.returncode == -signal.SIGKILL
    assert len(lake.state.letters.all()) == 1
    assert python(REPLAY, lake.storage.uri).returncode == 0
    assert lake.state.letters.all() == []
    assert [row["id"] for row in endpoint.rows()] == [3]
