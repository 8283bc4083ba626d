"""All that a lake's state holds, opened together and bound to the lake."""

import uuid

import pytest

import strandline as sl
from consuming import FACTS
from strandline.state.database import Database
from strandline.state.epoch import read_record
from strandline.state.intents import IntentDraft
from strandline.state.state import State, open_database
from strandline.storage.local import LocalStorage
from strandline.storage.open import S3Storage
from support import BUCKET, options_for, refused


def test_a_local_lake_has_its_state_beside_it(tmp_path):
    folder = tmp_path / "a b?c%20d#e"
    folder.mkdir()
    with Database.for_lake(str(folder), True) as state:
        state.bind("here")
    assert (folder / "state.db").is_file()
    with Database.for_lake("s3://bucket/lake", False, f"sqlite:///{tmp_path / 'other.db'}") as other:
        assert other.lake_id() is None


def test_a_lake_elsewhere_needs_a_state():
    with refused(sl.Invalid) as caught:
        Database.for_lake("s3://bucket/lake", False)
    assert "state=" in caught.value.hint


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(str(tmp_path / "lake"))


def test_a_state_is_of_one_lake(storage, state_url):
    with Database(state_url) as database:
        State.of(database, storage, "lake-a")
        assert State.of(database, storage, "lake-a").database.lake_id() == "lake-a"
        with refused(sl.Conflict):
            State.of(database, storage, "lake-b")


def test_intents_are_begun_together_or_not_at_all_and_the_lake_is_told(storage, state_url):
    with Database(state_url) as database:
        state = State.of(database, storage, "lake-a")
        state.epoch.check()
        consumer = state.registry.register("a", **FACTS).consumer
        fence = state.leases.acquire(consumer.lease, "me", 600).fence
        state.marks.start(consumer, {0: 0, 1: 0}, fence)
        state.epoch.renew()
        before = read_record(storage).epoch
        good = IntentDraft("0", (0,), 0, 5, 0)
        with refused(sl.Conflict):
            state.begin(consumer, [good, IntentDraft("1", (1,), 3, 5, 0)], fence)
        assert state.marks.intents(consumer) == []
        assert read_record(storage).epoch == before
        begun = state.begin(consumer, [good, IntentDraft("1", (1,), 0, 5, 0)], fence)
        assert [intent.lane for intent in begun] == ["0", "1"]
        assert set(state.marks.intents(consumer)) == set(begun)
        assert read_record(storage).epoch > before


def test_a_lake_in_a_bucket_says_where_its_state_was(seaweed, tmp_path):
    storage = S3Storage(BUCKET, uuid.uuid4().hex, options_for(seaweed))
    with refused(sl.Invalid):
        open_database(storage, None)
    url = f"sqlite:///{tmp_path / 'state.db'}"
    with open_database(storage, url) as database:
        state = State.of(database, storage, "lake-a")
        state.registry.register("a", **FACTS)
        state.epoch.renew()
    with refused(sl.Invalid, state=url):
        open_database(storage, None)
