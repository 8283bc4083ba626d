"""A lake in a bucket, for someone who may only read and list: everything can be looked at, and nothing is written."""

import uuid

import pytest
from typer.testing import CliRunner

import strandline as sl
from strandline.cli import app
from strandline.storage import s3
from support import BUCKET, ITEMS, READER, SECRET, options_for, refused


@pytest.fixture
def place(seaweed):
    """The storage of a lake with two commits, one of them folded."""
    lake = sl.Lake(f"s3://{BUCKET}/{uuid.uuid4().hex}", storage_options=options_for(seaweed))
    items = lake.create_table("items", ITEMS, key=["id"], vnodes=2)
    items.upsert([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    items.compact(full=True)
    items.upsert([{"id": 3, "name": "c"}])
    return lake.storage


def paths(storage):
    return sorted(info.path for info in storage.list(""))


def test_a_reader_opens_queries_and_looks_at_everything(place, seaweed):
    before = paths(place)
    lake = sl.Lake(place.uri, storage_options={**options_for(seaweed), "access_key_id": READER})
    items = lake.table("items")
    assert lake.tables() == ["items"] and lake.exists
    assert items.to_arrow().num_rows == 3 and items.to_arrow(at=1).num_rows == 2
    assert sum(batch.num_rows for batch in items.to_batches()) == 3
    assert lake.sql("SELECT count(*) AS n FROM items").to_pylist() == [{"n": 3}]
    assert items.changes(1).num_rows == 1 and [entry.seq for entry in items.history()] == [0, 1, 2]
    status = lake.status()
    assert (status.is_healthy, status.tables[0].head) == (True, 2)
    assert lake.plan().consumers and lake.vacuum(dry_run=True).is_dry_run
    assert items.plan_compaction().upto == 2
    with pytest.raises(sl.Unavailable) as caught:
        items.upsert([{"id": 4, "name": "d"}])
    assert caught.value.fields["refusal"] == "EACCES"
    with refused(sl.Unavailable):
        lake.drop("items")
    assert paths(place) == before


def test_a_reader_uses_the_command_line(place, seaweed, monkeypatch):
    for name, value in (
        ("AWS_ENDPOINT_URL", seaweed),
        ("AWS_ACCESS_KEY_ID", READER),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    before = paths(place)
    for words in (
        ["status"],
        ["plan"],
        ["doctor"],
        ["query", "SELECT count(*) FROM items"],
        ["table", "list"],
        ["table", "show", "items"],
        ["table", "history", "items"],
        ["table", "pins", "items"],
        ["vacuum", "--dry-run"],
        ["compact", "--dry-run"],
    ):
        ended = CliRunner().invoke(app, ["--lake", place.uri, *words])
        assert ended.exit_code == 0, (words, ended.output)
    ended = CliRunner().invoke(app, ["--lake", place.uri, "table", "drop", "items", "--yes"])
    assert ended.exit_code == 1 and "no permission" in ended.output
    assert paths(place) == before


def test_the_store_is_put_to_the_test_before_the_first_write_and_once(seaweed, monkeypatch):
    tests = []
    plain = s3.S3Storage.check_put_new
    monkeypatch.setattr(s3.S3Storage, "check_put_new", lambda self: (tests.append(self.uri), plain(self))[1])
    uri = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    lake = sl.Lake(uri, storage_options=options_for(seaweed))
    assert not lake.exists and tests == []
    lake.create_table("items", ITEMS, key=["id"])
    sl.Lake(uri, storage_options=options_for(seaweed)).table("items").upsert([{"id": 1}])
    assert tests == [uri]
