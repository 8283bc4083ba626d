"""A store whose answers get lost: rows neither move to another seq nor double."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.storage import commits as commits_module
from strandline.storage.open import LocalStorage
from strandline.table import Table
from support import ITEMS, by_id, data_files, refused

OK, LOST, UNSENT, STOLEN, ROBBED, SLOW = "ok", "lost", "unsent", "stolen", "robbed", "slow"


class FaultyStorage:
    """A real storage whose `put_new` follows a script, one word a call, and is honest after its end.

    lost: the file lands, the answer does not. unsent: neither. stolen: another writer has the number first.
    robbed: the same, and no answer. slow: neither file nor answer, and the look at what landed fails as well."""

    def __init__(self, real, script=(), steal=None):
        self._real = real
        self.script = list(script)
        self.steal = steal
        self._deaf = 0

    def __getattr__(self, name):
        return getattr(self._real, name)

    def put_new(self, path, data):
        fault = self.script.pop(0) if self.script and path.endswith(".json") else OK
        if fault in (STOLEN, ROBBED):
            self.steal()
        if fault in (UNSENT, SLOW, ROBBED):
            self._deaf = fault == SLOW
            raise sl.Unavailable("the request went nowhere")
        landed = self._real.put_new(path, data)
        if fault == LOST:
            raise sl.Unavailable("the answer went nowhere")
        return landed

    def read(self, path):
        if self._deaf:
            self._deaf = 0
            raise sl.Unavailable("no answer")
        return self._real.read(path)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(commits_module, "_FIRST_WAIT_S", 0.0)


@pytest.fixture
def events(lake):
    return lake.create_table("events", ITEMS, vnodes=2)


def faulty(lake, table, *script):
    """The same table seen through a store with faults; `steal` commits a row of id 99 through the honest one."""
    storage = FaultyStorage(LocalStorage(lake.storage.uri), script)
    storage.steal = lambda: table.append([{"id": 99}])
    return Table(table.entry, storage, lake.duck)


def seqs_of(table):
    """{id: the seqs at which it is}"""
    found = {}
    for change in table.changes().to_pylist():
        found.setdefault(change["id"], []).append(change["_seq"])
    return found


def test_a_commit_whose_answer_was_lost_is_found_again(lake, events):
    assert faulty(lake, events, LOST).append([{"id": 1}]) == sl.Commit(1, 1)
    assert seqs_of(events) == {1: [1]}


def test_a_commit_that_never_left_is_sent_again(lake, events):
    assert faulty(lake, events, UNSENT, UNSENT).append([{"id": 1}]) == sl.Commit(1, 1)
    assert seqs_of(events) == {1: [1]}


def test_a_lost_race_takes_the_next_number(lake, events):
    assert faulty(lake, events, STOLEN, STOLEN).append([{"id": 1}]) == sl.Commit(3, 1)
    assert seqs_of(events) == {99: [1, 2], 1: [3]}


def test_a_lost_race_of_which_we_are_not_told_is_not_taken_for_our_own_commit(lake, events):
    """The number is taken and the answer is lost: the id inside the file decides."""
    assert faulty(lake, events, ROBBED).append([{"id": 1}]) == sl.Commit(2, 1)
    assert seqs_of(events) == {99: [1], 1: [2]}


def test_when_the_store_stays_silent_the_caller_is_told_and_a_token_makes_the_retry_safe(lake, events):
    for script in ([UNSENT] * 5, [LOST] + [SLOW] * 10, [SLOW] * 5):
        token = f"token-{len(script)}-{script[0]}"
        table = faulty(lake, events, *script)
        id_ = hash(token) % 1000 + 1000
        try:
            commit = table.append([{"id": id_}], token=token)
        except sl.Unavailable:
            table.log.storage.script = []
            commit = table.append([{"id": id_}], token=token)
        assert seqs_of(events)[id_] == [commit.seq]


def test_files_of_a_commit_that_may_have_landed_are_never_deleted(lake, events):
    table = faulty(lake, events, *[UNSENT] * 5)
    with refused(sl.Unavailable):
        table.append([{"id": 1}])
    assert len(data_files(events)) == 1
    assert events.to_arrow().num_rows == 0


def test_a_fold_whose_answer_was_lost_happens_once(lake, events):
    events.append([{"id": 1}, {"id": 2}])
    for script in ([LOST], [UNSENT], [LOST, UNSENT]):
        table = faulty(lake, events, *script)
        assert table.compact(full=True).upto == events.head
        assert sorted(events.to_arrow()["id"].to_pylist()) == [1, 2]
    assert events.baseline.refresh().version == 1


def test_a_table_whose_creation_got_no_answer_is_there_once(tmp_path):
    for at, script in enumerate([[LOST], [OK, LOST], [OK, OK, LOST], [OK, OK, OK, LOST], [UNSENT] * 3]):
        lake = sl.Lake(tmp_path / str(at))
        storage = FaultyStorage(lake.storage, script)
        lake.storage = storage
        lake.catalog._commits = commits_module.CommitLog(storage, "catalog")
        lake.create_table("t", ITEMS, key=["id"]).upsert([{"id": 1, "name": "a"}])
        fresh = sl.Lake(tmp_path / str(at))
        assert fresh.tables() == ["t"]
        assert by_id(fresh.table("t")) == {1: "a"}


def test_a_drop_and_a_rename_without_an_answer_happen_once(tmp_path):
    lake = sl.Lake(tmp_path)
    for name in ("one", "two"):
        lake.create_table(name, ITEMS, key=["id"])
    storage = FaultyStorage(lake.storage, [LOST])
    lake.catalog._commits = commits_module.CommitLog(storage, "catalog")
    assert lake.rename("one", "uno").name == "uno"
    storage.script = [LOST]
    lake.drop("two")
    assert sl.Lake(tmp_path).tables() == ["uno"]


@pytest.mark.parametrize("landed", [True, False])
def test_a_local_disk_that_fails_in_a_commit_is_treated_as_any_silent_store(lake, events, landed):
    """Also a file system can fail after the link: the file under the number decides, not the exception."""
    real = LocalStorage(lake.storage.uri)

    class FailingDisk(FaultyStorage):
        def put_new(self, path, data):
            if self.script:
                self.script.pop()
                if landed:
                    self._real.put_new(path, data)
                raise OSError(5, "Input/output error")
            return self._real.put_new(path, data)

    table = Table(events.entry, FailingDisk(real, [1]), lake.duck)
    assert table.append([{"id": 1}]) == sl.Commit(1, 1)
    assert seqs_of(events) == {1: [1]}


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from([OK, LOST, UNSENT, STOLEN, ROBBED, SLOW]), max_size=7), st.booleans()),
        min_size=1,
        max_size=6,
    )
)
def test_under_any_faults_each_acknowledged_row_is_there_once_at_its_seq(tmp_path_factory, calls):
    lake = sl.Lake(tmp_path_factory.mktemp("faults"))
    events = lake.create_table("events", ITEMS, vnodes=2)
    acknowledged, unknown = {}, set()
    for id_, (script, with_token) in enumerate(calls):
        table = faulty(lake, events, *script)
        token = f"t{id_}" if with_token else None
        for _ in range(2):
            try:
                acknowledged[id_] = table.append([{"id": id_}], token=token).seq
                unknown.discard(id_)
                break
            except sl.Unavailable:
                unknown.add(id_)
                if not with_token:
                    break
                table.log.storage.script = []
        if id_ % 3 == 2:
            events.compact(full=True)
    found = seqs_of(events)
    for id_, seq in acknowledged.items():
        assert found[id_] == [seq], "an acknowledged row is at its seq, once"
    for id_ in unknown:
        assert len(found.get(id_, [])) <= 1, "a row that nobody acknowledged is there once or not"
    read = [row["id"] for row in events.to_arrow().to_pylist() if row["id"] != 99]
    assert sorted(read) == sorted(id_ for id_ in found if id_ != 99)
