"""Lake and state belong together: what is lost, foreign or an old copy is noticed, and nothing else is."""

import json
import random
import shutil
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import delete, insert, inspect, make_url, select, update

import consuming
import strandline as sl
from consuming import FACTS, open_intent
from strandline.state import epoch as module
from strandline.state.consumers import Registry
from strandline.state.database import Database, meta, metadata
from strandline.state.epoch import FILE, Epoch, EpochRecord, read_record
from strandline.state.leases import Leases
from strandline.state.marks import Marks
from strandline.storage.open import LocalStorage, open_storage
from support import BUCKET, options_for, refused

state, registry, marks = consuming.state, consuming.registry, consuming.marks


@pytest.fixture
def storage(tmp_path):
    (tmp_path / "lake").mkdir()
    return LocalStorage(str(tmp_path / "lake"))


@pytest.fixture
def bond(storage, state):
    return Epoch(storage, "lake-a", state)


def epochs(state):
    with state.reading() as connection:
        return tuple(connection.execute(select(meta.c.epoch, meta.c.pending)).one())


def copy(source, target):
    """What restoring a backup of one state into another does."""
    with source.reading() as reading, target.transaction() as writing:
        for name in inspect(reading).get_table_names():
            table = metadata.tables[name]
            metadata.create_all(writing, tables=[table])
            writing.execute(delete(table))
            if rows := [dict(row) for row in reading.execute(select(table)).mappings()]:
                writing.execute(insert(table), rows)


def started(state, name="a", seqs=None, **facts):
    """A consumer that works, its fence, and its marks set."""
    consumer = Registry(state).register(name, **FACTS | facts).consumer
    fence = Leases(state).acquire(consumer.lease, "me", 600).fence
    if seqs:
        Marks(state).start(consumer, seqs, fence)
    return consumer, fence


# --- the rule --------------------------------------------------------------------------------------------------


def test_a_new_lake_and_a_new_state_belong_together(bond, storage, state):
    bond.check()
    assert read_record(storage) is None and epochs(state) == (0, 0)


def test_the_lake_is_told_the_epoch_and_the_consumers(bond, storage, state, registry):
    assert bond.renew() == 1 and epochs(state) == (1, 1)
    assert read_record(storage) == EpochRecord("lake-a", 1, state.shown, ())
    registry.register("a", **FACTS)
    registry.register("b", **FACTS | {"definition": {"ключ": ["\ud800", 1.5, None]}})
    registry.register("b", **FACTS | {"destination": "s3://b"})
    registry.retire("a")
    assert bond.renew() == 2
    bond.check()
    assert epochs(state) == (2, 2) and state.lake_id() == "lake-a"
    assert read_record(storage) == EpochRecord("lake-a", 2, state.shown, tuple(registry.all()))
    facts = json.loads(storage.read(FILE))
    assert facts["format"] == 1 and [each["life"] for each in facts["consumers"]] == [1, 2]
    with state.reading() as connection:
        assert connection.execute(select(module.renewals)).all() == []


def test_a_password_is_not_written_into_the_lake(storage, postgres_url):
    with Database(make_url(postgres_url).set(password="hidden-word")) as state:
        Epoch(storage, "lake-a", state).renew()
    assert b"hidden-word" not in storage.read(FILE)


@pytest.mark.parametrize(
    ("epoch", "pending", "told", "is_sound"),
    [
        (0, 0, None, True), (0, 1, None, True), (3, 5, 3, True), (3, 5, 4, True), (3, 5, 5, True), (3, 5, 2, False),
        (3, 5, 6, False), (1, 1, None, False), (0, 0, 1, False),
    ],
)  # fmt: skip
def test_a_record_is_between_what_was_told_and_what_is_about_to_be(
    bond, storage, state, epoch, pending, told, is_sound
):
    with state.transaction() as connection:
        connection.execute(update(meta).values(epoch=epoch, pending=pending))
    if told is not None:
        bond._write_record(EpochRecord("lake-a", told, state.shown, ()))
    before = read_record(storage)
    if is_sound:
        bond.check()
        assert bond.renew() > max(epoch, pending, told or 0)
        bond.check()
        return
    for call in (bond.check, bond.renew):
        with refused(sl.Conflict, epoch=epoch, found=told or 0, state=state.shown, lake="lake-a") as caught:
            call()
        assert "strandline doctor --adopt-state" in caught.value.hint
        assert read_record(storage) == before, "what the lake knows is not written over"


def test_a_trim_that_knows_a_higher_epoch_has_an_older_state(bond):
    bond.renew()
    bond.check(trimmed_epoch=1)
    with refused(sl.Conflict, epoch=1, found=2):
        bond.check(trimmed_epoch=2)


def test_a_state_that_was_lost_is_noticed_and_the_place_where_it_was_is_named(bond, storage, state, new_state_url):
    bond.renew()
    with Database(new_state_url()) as empty:
        with refused(sl.Conflict, epoch=0, found=1) as caught:
            Epoch(storage, "lake-a", empty).check()
        is_elsewhere = empty.shown != state.shown  # PostgreSQL: two schemas of one database look alike
        assert (state.shown in caught.value.hint) == is_elsewhere
        assert ("another" in caught.value.message) == is_elsewhere


def test_a_state_from_an_old_backup_is_noticed(bond, storage, state, new_state_url):
    bond.renew()
    with Database(new_state_url()) as backup:
        copy(state, backup)
        Epoch(storage, "lake-a", backup).check()
        bond.renew()
        with refused(sl.Conflict, epoch=1, found=2):
            Epoch(storage, "lake-a", backup).check()
        bond.check()


def test_a_lake_from_an_old_copy_is_noticed(bond, storage, tmp_path):
    for _ in range(2):
        bond.renew()
    shutil.copytree(storage.uri, tmp_path / "copy")
    bond.renew()
    shutil.rmtree(storage.uri)
    shutil.move(tmp_path / "copy", storage.uri)
    with refused(sl.Conflict, epoch=3, found=2) as caught:
        bond.check()
    assert "older copy" in caught.value.message
    storage.delete([FILE])
    with refused(sl.Conflict, epoch=3, found=0):
        bond.check()


def test_what_is_of_another_lake_is_refused(bond, storage, state, new_state_url):
    bond.renew()
    other = Epoch(storage, "lake-b", state)
    for call in (other.check, other.renew, lambda: other.adopt([])):
        with refused(sl.Conflict, lake="lake-b", found="lake-a"):
            call()
    with Database(new_state_url()) as fresh:
        copied = Epoch(storage, "lake-b", fresh)
        for call in (copied.check, copied.renew):
            with refused(sl.Conflict, lake="lake-b", found="lake-a"):
                call()
        copied.adopt([])
        copied.check()
        assert read_record(storage).lake_id == "lake-b"


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"[]", b"7", b"{}", b"\xff\xfe", b'{"format": 1}',
        b'{"format": 1, "lake_id": "x", "epoch": -1, "state": "", "consumers": []}',
        b'{"format": 1, "lake_id": "x", "epoch": "1", "state": "", "consumers": []}',
        b'{"format": 1, "lake_id": "x", "epoch": 1, "state": "", "consumers": [{}]}',
        b'{"format": 1, "lake_id": "x", "epoch": 1, "state": "", "consumers": 7}',
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_read_is_corrupt_and_left_alone(storage, tmp_path, damage):
    with storage.output(FILE) as stream:
        stream.write(damage)
    with Database(f"sqlite:///{tmp_path / 'state.db'}") as state:
        bond = Epoch(storage, "lake-a", state)
        for call in (bond.check, bond.renew, lambda: bond.adopt([]), lambda: read_record(storage)):
            with refused(sl.Corrupt, path=FILE) as caught:
                call()
            assert "strandline doctor --adopt-state" in caught.value.hint
    assert storage.read(FILE) == damage


def test_a_record_of_a_newer_format_is_refused(storage):
    with storage.output(FILE) as stream:
        stream.write(b'{"format": 2}')
    with refused(sl.Invalid, format=2) as caught:
        read_record(storage)
    assert "Upgrade" in caught.value.hint


def test_the_record_is_kept_in_an_object_store(seaweed, tmp_path):
    storage = open_storage(f"s3://{BUCKET}/{uuid.uuid4().hex}", options_for(seaweed))
    with Database(f"sqlite:///{tmp_path / 'state.db'}") as state:
        bond = Epoch(storage, "lake-a", state)
        assert read_record(storage) is None
        assert [bond.renew() for _ in range(3)] == [1, 2, 3]
        bond.check()
        assert read_record(storage) == EpochRecord("lake-a", 3, state.shown, ())


# --- many at once, and crashes ---------------------------------------------------------------------------------


def test_threads_that_renew_and_check_at_once_all_succeed(bond, storage, state):
    def work(_):
        told = []
        for _ in range(5):
            bond.check()
            told.append(bond.renew())
            bond.check(trimmed_epoch=told[-1])
        return told

    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(work, range(4)))
    assert all(each == sorted(each) for each in told)
    assert epochs(state) == (20, 20) and read_record(storage).epoch == 20


RENEW = """
from strandline.state.epoch import Epoch
from strandline.state.database import Database
from strandline.storage.open import LocalStorage
def work(number, url, folder, rounds):
    with Database(url) as state:
        bond = Epoch(LocalStorage(folder), "lake-a", state)
        for _ in range(int(rounds)):
            bond.check()
            told = bond.renew()
            bond.check(trimmed_epoch=told)
        return told
"""


def test_processes_that_renew_and_check_at_once_all_succeed(bond, storage, state, state_url, in_processes):
    told = [each for _, each in in_processes(RENEW, 3, state_url, storage.uri, "8")]
    assert max(told) == 24
    assert epochs(state) == (24, 24) and read_record(storage).epoch == 24
    bond.check()


POINTS = ["epoch.pending", "epoch.recorded", "state.before_commit:1", "state.committed:1", "state.before_commit:2"]
DOOMED = """
from strandline import crash
from strandline.state.epoch import Epoch
from strandline.state.database import Database
from strandline.storage.open import LocalStorage
def work(number, *arguments):
    url, folder, point, rounds = arguments[4 * number : 4 * number + 4]
    with Database(url) as state:
        bond = Epoch(LocalStorage(folder), "lake-a", state)
        for _ in range(int(rounds)):
            bond.check()
            bond.renew()
        crash._ARMED = point
        bond.renew()
"""


def folder_of(tmp_path, number):
    folder = tmp_path / f"lake-{number}"
    folder.mkdir()
    return str(folder)


def test_a_renewal_that_is_killed_leaves_lake_and_state_together(new_state_url, tmp_path, in_processes):
    places = [(new_state_url(), folder_of(tmp_path, number)) for number in range(len(POINTS))]
    arguments = [word for place, point in zip(places, POINTS, strict=True) for word in (*place, point, "1")]
    answers = in_processes(DOOMED, len(POINTS), *arguments, is_sound=False)
    assert [code for code, _ in answers] == [-9] * len(POINTS)
    for point, (url, folder) in zip(POINTS, places, strict=True):
        with Database(url) as state:
            storage = LocalStorage(folder)
            bond = Epoch(storage, "lake-a", state)
            bond.check()
            is_begun, is_told = point != "state.before_commit:1", point in ("epoch.recorded", "state.before_commit:2")
            assert (epochs(state), read_record(storage).epoch) == ((1, 1 + is_begun), 1 + is_told), point
            assert bond.renew() == 2 + is_begun
            bond.check()
            epoch, pending = epochs(state)
            assert epoch <= read_record(storage).epoch == pending, point


def test_renewals_that_are_killed_while_others_go_on_leave_lake_and_state_together(
    bond, storage, state, state_url, in_processes, monkeypatch
):
    arguments = [word for n, point in enumerate(POINTS) for word in (state_url, storage.uri, point, str(2 * n))]
    answers = in_processes(DOOMED, len(POINTS), *arguments, is_sound=False)
    assert [code for code, _ in answers] == [-9] * len(POINTS)
    bond.check()
    assert read_record(storage).epoch <= bond.renew() == read_record(storage).epoch
    bond.check()
    monkeypatch.setattr(module, "LATE_S", -1.0)
    told = bond.renew()
    assert epochs(state) == (told, told), "nobody can write late any more"


class Slow(LocalStorage):
    """A store that takes its time to write."""

    def __init__(self, root):
        super().__init__(root)
        object.__setattr__(self, "is_writing", threading.Event())
        object.__setattr__(self, "may_write", threading.Event())

    def output(self, path):
        self.is_writing.set()
        assert self.may_write.wait(30)
        return super().output(path)


def test_a_renewal_that_writes_late_does_no_harm(storage, postgres_url, monkeypatch):
    """Its transaction was ended by the server meanwhile, and others have renewed."""
    slow = Slow(storage.uri)
    with Database(postgres_url, timeout_s=0.3) as stalled, Database(postgres_url, timeout_s=20) as state:
        bond, late = Epoch(storage, "lake-a", state), Epoch(slow, "lake-a", stalled)
        bond.renew()
        with ThreadPoolExecutor(1) as pool:
            renewing = pool.submit(late.renew)
            assert slow.is_writing.wait(20)
            time.sleep(0.5)
            assert [bond.renew(), bond.renew()] == [3, 4]
            bond.check()
            slow.may_write.set()
            with refused(sl.Unavailable):
                renewing.result()
        assert read_record(storage).epoch == 2, "the late one"
        assert epochs(state) == (2, 4)
        bond.check()
        assert bond.renew() == 5
        bond.check()
        monkeypatch.setattr(module, "LATE_S", -1.0)
        assert bond.renew() == 6
        assert epochs(state) == (6, 6)


@pytest.mark.parametrize("seed", range(3))
def test_no_loss_is_missed_and_none_is_invented(storage, new_state_url, monkeypatch, seed):
    """Renewals, some of which end half-way, with backups of either side restored in between."""

    class Killed(BaseException):
        pass

    def crash_at(name):
        if name == doom:
            raise Killed

    monkeypatch.setattr(module, "crash_point", crash_at)
    monkeypatch.setattr(module, "LATE_S", -1.0)
    chance, doom = random.Random(seed), None
    with Database(new_state_url()) as state, Database(new_state_url()) as backup:
        bond = Epoch(storage, "lake-a", state)
        renewals, of_backup, of_copy, copied = 0, 0, 0, None
        copy(state, backup)
        for _ in range(25):
            doom = chance.choice([None, None, "epoch.pending", "epoch.recorded"])
            try:
                bond.renew()
                renewals += 1
            except Killed:
                renewals += doom == "epoch.recorded"
            doom = None
            bond.check()
            action = chance.choice(["back up", "copy", "restore backup", "restore copy", "nothing"])
            if action == "back up":
                copy(state, backup)
                of_backup = renewals
            elif action == "copy":
                copied, of_copy = read_record(storage), renewals
            elif action == "restore backup":
                monkeypatch.setattr(bond, "_state", backup)
                if of_backup == renewals:
                    bond.check()
                else:
                    with refused(sl.Conflict) as caught:
                        bond.check()
                    assert caught.value.fields["found"] == read_record(storage).epoch
                monkeypatch.setattr(bond, "_state", state)
            elif action == "restore copy" and copied is not None and of_copy < renewals:
                bond.renew()  # one that was told to its end
                renewals += 1
                kept = read_record(storage)
                bond._write_record(copied)
                with refused(sl.Conflict, found=copied.epoch):
                    bond.check()
                bond._write_record(kept)
            bond.check()


# --- adopting --------------------------------------------------------------------------------------------------


def test_an_empty_state_becomes_the_lakes_with_what_the_destinations_hold(bond, storage, state, new_state_url):
    first, _ = started(state, "a", {0: 3, 1: 4})
    Registry(state).register("b", **FACTS)
    second = Registry(state).register("b", **FACTS | {"destination": "s3://b"}).consumer
    third, _ = started(state, "c")
    for _ in range(4):
        bond.renew()
    record = read_record(storage)
    with Database(new_state_url()) as empty:
        adopting = Epoch(storage, "lake-a", empty)
        registry, marks = Registry(empty), Marks(empty)
        found = {each.name: each for each in record.consumers}
        adopted = adopting.adopt([(found["a"], {0: 7, 1: 5}), (found["c"], {}), (found["b"], None)])
        assert adopted == [first, replace(second, is_retired=True), third] == registry.all()
        assert [marks.load(each) for each in adopted] == [{0: 7, 1: 5}, {}, {}]
        adopting.check(trimmed_epoch=record.epoch)
        assert epochs(empty) == (5, 5) and empty.lake_id() == "lake-a"
        assert read_record(storage).consumers == tuple(adopted)
        assert registry.register("a", **FACTS).is_new is False
    with refused(sl.Conflict, found=5):
        bond.check()


def test_a_state_that_a_trim_shows_to_be_older_is_raised_above_it(bond, state):
    bond.adopt([], trimmed_epoch=9)
    bond.check(trimmed_epoch=9)
    assert epochs(state) == (10, 10)


def test_an_older_state_keeps_its_higher_marks_and_the_intents_that_stand_on_them(bond, storage, state, new_state_url):
    consumer, fence = started(state, "a", dict.fromkeys(range(6), 5))
    marks = Marks(state)
    passed = open_intent(marks, consumer, fence, vnodes=[0, 1], after=5, upto=8, lane="0")
    stands = open_intent(marks, consumer, fence, vnodes=[2, 3], after=5, upto=8, lane="1")
    untold = open_intent(marks, consumer, fence, vnodes=[4], after=5, upto=8, lane="2")
    other, _ = started(state, "other", {0: 1})
    bond.renew()
    with Database(new_state_url()) as backup:
        copy(state, backup)
        adopting, marks = Epoch(storage, "lake-a", backup), Marks(backup)
        bond.renew()
        with refused(sl.Conflict):
            adopting.check()
        (adopted,) = adopting.adopt([(consumer, {0: 8, 1: 5, 2: 5, 3: 5, 5: 3, 6: 2})])
        assert adopted == consumer
        assert marks.load(consumer) == {0: 8, 1: 5, 2: 5, 3: 5, 4: 5, 5: 5, 6: 2}
        assert marks.intents(consumer) == [stands, untold] and passed not in marks.intents(consumer)
        assert marks.load(other) == {0: 1}
        adopting.check()
        moves = {2: (5, 8), 3: (5, 8)}
        marks.advance(consumer, moves, fence=fence, intent=stands)


def test_a_consumer_of_which_nobody_knows_is_retired_with_the_marks_it_had(bond, state, marks):
    consumer, fence = started(state, "a", {0: 5, 1: 5})
    intent = open_intent(marks, consumer, fence, vnodes=[0], after=5, upto=8)
    (retired,) = bond.adopt([(consumer, None)])
    assert retired == replace(consumer, is_retired=True) == Registry(state).get("a")
    assert marks.load(retired) == {0: 5, 1: 5} and marks.intents(retired) == [intent]
    revived = Registry(state).register("a", revive=True, **FACTS)
    assert revived.is_new and marks.load(revived.consumer) == {}


def test_a_life_that_the_state_knows_is_adopted_as_the_lake_tells_it(bond, state, marks, registry):
    consumer, fence = started(state, "a", {0: 5})
    open_intent(marks, consumer, fence, vnodes=[0], after=5, upto=8)
    told = replace(consumer, definition={"where": "y"}, table="renamed", life=7, created_s=0.0)
    (adopted,) = bond.adopt([(told, None)])
    kept = replace(told, life=1, created_s=consumer.created_s)
    assert adopted == replace(kept, is_retired=True) == registry.get("a")
    assert bond.adopt([(told, {0: 8})]) == [kept] == registry.history("a"), "it is not retired any more"
    assert marks.load(kept) == {0: 8} and marks.intents(kept) == []
    marks.advance(kept, {0: (8, 9)}, fence=fence)


def test_a_life_that_the_older_state_does_not_know_takes_the_place_of_the_one_it_knows(bond, state, marks, registry):
    old, _ = started(state, "a", {0: 5})
    new = replace(old, generation="f" * 32, life=2, destination="s3://b")
    assert bond.adopt([(new, {0: 2})]) == [new]
    assert registry.get("a") == new and registry.history("a") == [old, new]
    assert marks.load(new) == {0: 2} and marks.load(old) == {0: 5}
    again = replace(new, generation="e" * 32)
    assert bond.adopt([(again, {})]) == [replace(again, life=3)], "the number was taken"
    assert bond.adopt([(old, {})]) == [old] == [registry.get("a")], "an older life goes on"
    assert registry.register("a", **FACTS).consumer == old
    assert registry.register("a", **FACTS | {"kind": "view"}).consumer.life == 4


def test_marks_beyond_the_heads_of_an_older_lake_are_lowered(bond, storage, state, marks, tmp_path):
    bond.renew()
    shutil.copytree(storage.uri, tmp_path / "copy")
    consumer, fence = started(state, "a", {0: 5, 1: 9, 2: 5})
    beyond = open_intent(marks, consumer, fence, vnodes=[0], after=5, upto=8, lane="0")
    stands = open_intent(marks, consumer, fence, vnodes=[2], after=5, upto=7, lane="1")
    other, _ = started(state, "other", {0: 9}, table_generation="g2")
    unknown, _ = started(state, "unknown", {0: 9}, table_generation="g3")
    bond.renew()
    shutil.rmtree(storage.uri)
    shutil.move(tmp_path / "copy", storage.uri)
    with refused(sl.Conflict, epoch=2, found=1):
        bond.check()
    bond.adopt([(other, {0: 20})], heads={"g1": 7, "g2": 0})
    assert marks.load(consumer) == {0: 5, 1: 7, 2: 5}
    assert marks.intents(consumer) == [stands] and beyond != stands
    assert marks.load(other) == {0: 0}
    assert marks.load(unknown) == {0: 9}
    bond.check()
    assert epochs(state) == (3, 3) and read_record(storage).epoch == 3


@pytest.mark.parametrize("wrong", [{0: -1}, {-1: 0}, {0: "1"}, {0: True}])
def test_positions_that_make_no_sense_change_nothing(bond, state, registry, marks, wrong):
    consumer, _ = started(state, "a", {0: 5})
    with refused(sl.Invalid):
        bond.adopt([(consumer, {0: 9}), (replace(consumer, name="b", generation="f" * 32), wrong)])
    with refused(sl.Invalid):
        bond.adopt([(consumer, {0: 9})], heads={"g1": wrong.get(0, -1)})
    with refused(sl.Conflict):
        bond.adopt([(consumer, {0: 9}), (replace(consumer, name="b"), {})])
    assert registry.all() == [consumer] and marks.load(consumer) == {0: 5} and epochs(state) == (0, 0)


ADOPT = """
from strandline import crash
from strandline.state.epoch import Epoch, read_record
from strandline.state.database import Database
from strandline.storage.open import LocalStorage
def work(number, folder, *arguments):
    url, crash._ARMED = arguments[2 * number : 2 * number + 2]
    storage = LocalStorage(f"{folder}/lake-{number}")
    Epoch(storage, "lake-a", Database(url)).adopt([(each, {0: 7}) for each in read_record(storage).consumers])
"""


def test_an_adoption_that_is_killed_is_done_or_can_be_repeated(
    bond, storage, state, new_state_url, tmp_path, in_processes
):
    consumers = [started(state, name, {0: 5})[0] for name in ("a", "b")]
    bond.renew()
    points = ["state.before_commit:1", "state.committed:1", "epoch.adopted", "epoch.pending", "epoch.recorded"]
    urls = [new_state_url() for _ in points]
    for number, url in enumerate(urls):
        shutil.copy(storage.url(FILE), folder_of(tmp_path, number))
        with Database(url) as fresh:
            Epoch(storage, "lake-a", fresh)  # makes the tables, so that the first commit is the adoption's
    arguments = [word for url, point in zip(urls, points, strict=True) for word in (url, point)]
    answers = in_processes(ADOPT, len(points), str(tmp_path), *arguments, is_sound=False)
    assert [code for code, _ in answers] == [-9] * len(points)
    for number, url in enumerate(urls):
        with Database(url) as fresh:
            place = LocalStorage(str(tmp_path / f"lake-{number}"))
            again, registry, marks = Epoch(place, "lake-a", fresh), Registry(fresh), Marks(fresh)
            if number == 0:
                with refused(sl.Conflict, epoch=0, found=1):
                    again.check()
                assert registry.all() == []
                again.adopt([(each, {0: 7}) for each in read_record(place).consumers])
            again.check()
            again.renew()
            assert registry.all() == consumers, points[number]
            assert [marks.load(each) for each in consumers] == [{0: 7}, {0: 7}]
