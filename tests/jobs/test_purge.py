"""A purged row is nowhere: not on disk, not in refused rows, and no fold brings it back."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from folding import NOW, again, fill
from strandline.storage.commits import CommitLog
from strandline.tables.rejects import Rejects
from support import ITEMS, by_id, claimed_files, data_files, files_below, refused, rows_of


def ingest(lake, tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    lake.ingest("items", [str(path)], rejects=True)


SECRET = "Zebulon-4711"
SECRETS = pa.schema([("id", pa.string()), ("note", pa.string()), ("qty", pa.int64()), ("doc", pa.json_(pa.string()))])


def mentions(root, *needles):
    """The files that hold one of the texts, as they are or inside Parquet."""
    found = set()
    for name in files_below(root):
        path = Path(root) / name
        data = path.read_bytes()
        if path.suffix == ".parquet":
            data += repr(pq.read_table(path).to_pylist()).encode()
        found |= {name for needle in needles if needle.encode() in data}
    return found


@pytest.fixture
def secrets(lake, tmp_path):
    """A table whose row SECRET lies in the log, the baseline, older versions of both, checkpoints and refused rows."""
    table = lake.create_table("secrets", SECRETS, key=["id"], vnodes=4)
    others = [{"id": f"other{n}", "note": "harmless", "qty": n, "doc": {"a": 1}} for n in range(20)]
    table.upsert([*others, {"id": SECRET, "note": "payload-1", "qty": 1, "doc": {"b": "payload-1"}}])
    table.compact(full=True)
    table.upsert(
        [{"id": SECRET, "note": "payload-2", "qty": 2}, {"id": "other3", "note": "changed", "qty": 3}], missing="null"
    )
    table.compact(full=True)
    table.log.delta.checkpoint()
    table.baseline.delta.checkpoint()
    table.upsert([{"id": SECRET, "note": "payload-3", "qty": 3}], missing="null")
    table.upsert([{"id": "other4", "note": "changed", "qty": 4}], missing="null")
    for name, text in {
        "a.jsonl": f'{{"id": "{SECRET}", "qty": "payload-4"}}\n{{"id": "other5", "qty": "bad5"}}\n',
        "b.jsonl": f'{{"id": "{SECRET}", "note": "payload-5\n{{"id": "other6", "note": "torn\n',
        "c.csv": f"id,note,qty\n{SECRET},payload-6,bad\nother7,harmless,bad7\n",
    }.items():
        path = tmp_path / name
        path.write_text(text)
        lake.ingest("secrets", [str(path)], rejects=True)
    assert Rejects(lake.storage, table.entry).count() == 6
    return table


def test_a_purged_row_is_nowhere_on_the_disk(secrets, unrested):
    root = secrets.log.storage.uri
    expected = {seq: rows_of(secrets.to_arrow(at=seq, where=f"id <> '{SECRET}'")) for seq in range(secrets.head + 1)}
    found = mentions(root, SECRET, "payload-")
    assert any("_delta_log" in name for name in found)
    assert any("/rejects/" in name for name in found)
    report = secrets.purge([SECRET])
    assert (report.keys, report.rejects, report.is_delete_kept) == (1, 3, False)
    for table in (secrets, again(secrets)):
        assert rows_of(table.to_arrow(where=f"id = '{SECRET}'")) == []
        for seq in range(table.oldest, report.seq):
            assert rows_of(table.to_arrow(at=seq)) == expected[seq]
        assert SECRET not in table.changes(table.log.refresh().trimmed_to)["id"].to_pylist()
    secrets.vacuum(**NOW)
    assert mentions(root, SECRET, "payload-") == set()
    fresh = again(secrets)
    assert rows_of(fresh.to_arrow()) == expected[report.seq - 1]
    texts = [row["text"] for row in Rejects(fresh.log.storage, fresh.entry).latest(100)]
    assert sorted(texts) == [
        "other7,harmless,bad7",
        '{"id": "other5", "qty": "bad5"}',
        '{"id": "other6", "note": "torn',
    ]
    secrets.compact(full=True)
    assert rows_of(again(secrets).to_arrow()) == expected[report.seq - 1]


def test_a_purge_within_the_grace_time_takes_effect_for_every_read_at_once(secrets):
    report = secrets.purge([SECRET, "other1"])
    assert report.keys == 2
    for table in (secrets, again(secrets)):
        for seq in range(table.oldest, table.head + 1):
            assert not {SECRET, "other1"} & set(table.to_arrow(at=seq)["id"].to_pylist())
    assert secrets.oldest <= 3


def test_a_purge_of_one_key_leaves_refused_rows_of_others(lake, items, tmp_path):
    ingest(
        lake,
        tmp_path,
        "a.jsonl",
        '{"id": 2, "qty": "bad"}\n{"id": 3, "name": "2", "qty": "bad"}\n{"id": 22, "qty": "x"}\n',
    )
    ingest(lake, tmp_path, "b.csv", "id,name,qty\n2,a,bad\n3,2,bad\n22,a,bad\n")
    assert items.purge([2]).rejects == 2
    texts = {row["text"] for row in Rejects(lake.storage, items.entry).latest(100)}
    assert texts == {'{"id": 3, "name": "2", "qty": "bad"}', '{"id": 22, "qty": "x"}', "3,2,bad", "22,a,bad"}


def test_a_purge_reads_refused_rows_of_any_shape(lake, items, tmp_path):
    """Fields of several lines, very long ones, numbers in other spellings."""
    ingest(lake, tmp_path, "a.csv", 'id,name,qty\n2,"two\nlines",bad\n3,' + "y" * 200_000 + ",bad\n4,x,bad\n")
    ingest(lake, tmp_path, "b.jsonl", '{"id": 2.0, "qty": "bad"}\n{"id": "2", "qty": "bad"}\n[2]\n"2"\n')
    before = Rejects(lake.storage, items.entry).count()
    items.purge([2])
    left = [row["text"] for row in Rejects(lake.storage, items.entry).latest(100)]
    assert before == 7
    assert not [text for text in left if text.startswith('2,"two') or '"id": 2' in text or '"id": "2"' in text]
    assert any(text.startswith("3,yyy") for text in left)
    assert "4,x,bad" in left


def test_a_row_written_after_a_purge_is_a_new_one(make_table):
    """Also in a table with a version column, and for a handle that read before."""
    for version in (None, "qty"):
        table = make_table(ITEMS, key=["id"], version=version, vnodes=2)
        table.upsert([{"id": 1, "name": "old", "qty": 5}])
        table.upsert([{"id": 2, "name": "b", "qty": 5}])
        reader = again(table)
        assert len(by_id(table)) == len(by_id(reader)) == 2
        table.purge([1])
        table.upsert([{"id": 1, "name": "new", "qty": 1}])
        for handle in (table, reader, again(table)):
            assert by_id(handle) == {1: "new", 2: "b"}


@pytest.mark.parametrize("racer", ["fold", "purge"])
def test_a_purge_and_a_fold_at_once_never_bring_the_row_back(items, racer):
    fill(items, 3)
    items.compact(full=True)
    fill(items, 3, start=1)
    other = again(items)
    handle = items if racer == "fold" else other
    name = "commit_fold" if racer == "fold" else "commit_purge"
    commit = getattr(handle.baseline, name)
    raced = []

    def overtaken(*args, **options):
        if not raced:
            raced.append(True)
            (other.purge([2]) if racer == "fold" else items.compact(full=True))
        return commit(*args, **options)

    setattr(handle.baseline, name, overtaken)
    if racer == "fold":
        items.compact(full=True)
    else:
        other.purge([2])
    assert raced
    delattr(handle.baseline, name)
    for _ in range(2):
        for table in (items, other, again(items)):
            assert 2 not in by_id(table)
            assert set(by_id(table)) == {-1, 0, 1, 3}
            for seq in range(table.oldest, table.head + 1):
                assert 2 not in by_id(table, at=seq)
        items.compact(full=True)
        items.vacuum(**NOW)
    assert data_files(items) == claimed_files(items)


def test_at_no_moment_of_a_purge_is_the_row_back(items, monkeypatch):
    """Read, by a handle that knows the table and by a new one, after every commit that a purge makes."""
    fill(items, 3)
    items.compact(full=True)
    fill(items, 2, start=1)
    reader = again(items)
    assert 2 in by_id(reader)
    create = CommitLog.create
    seen = []

    def watched(self, version, actions, commit_id, previous):
        landed = create(self, version, actions, commit_id, previous)
        seen.append((2 in by_id(reader), 2 in by_id(again(items))))
        return landed

    monkeypatch.setattr(CommitLog, "create", watched)
    items.purge([2])
    monkeypatch.undo()
    assert len(seen) >= 3
    assert not any(any(pair) for pair in seen)


def test_a_purge_behind_a_pin_keeps_the_delete_for_who_has_yet_to_see_it(items):
    fill(items, 3)
    with items.pin(3):
        report = items.purge([1])
    assert report.is_delete_kept
    found = items.changes(3).to_pylist()
    assert [(row["_seq"], row["_op"], row["id"]) for row in found] == [(report.seq, "delete", 1)]
    assert set(by_id(again(items))) == {-1, 0, 2}


def test_purging_nothing_and_a_table_without_a_key_are_refused(items, make_table):
    with refused(sl.Invalid):
        items.purge([])
    with refused(sl.Invalid):
        make_table(ITEMS).purge([1])


def test_a_fold_that_a_purge_overtakes_does_not_bring_back_a_row_that_was_only_in_the_log(items):
    fill(items, 3)
    other, commit = again(items), items.baseline.commit_fold

    def overtaken(*args, **options):
        del items.baseline.commit_fold
        other.purge([1])
        return commit(*args, **options)

    items.baseline.commit_fold = overtaken
    items.compact(full=True)
    for table in (items, other, again(items)):
        assert 1 not in by_id(table)


def test_a_pin_does_not_keep_what_was_purged(secrets, unrested):
    with secrets.pin(3, length="7d"):
        secrets.purge([SECRET])
        secrets.compact(full=True)
        secrets.vacuum(**NOW)
        assert {name for name in mentions(secrets.log.storage.uri, "payload-")} == set()


def test_a_refused_row_is_purged_however_its_key_is_written(lake, items, tmp_path):
    lines = ["007,a,bad", " 7,b,bad", "+7,c,bad", "7.0,d,bad", "70,e,bad", "8,7,bad"]
    ingest(lake, tmp_path, "a.csv", "id,name,qty\n" + "\n".join(lines) + "\n")
    ingest(lake, tmp_path, "b.jsonl", '{"id": "007", "qty": "x"}\n{"id": 7.0, "qty": "x"}\n{"id": 77, "qty": "x"}\n')
    items.purge([7])
    left = {row["text"] for row in Rejects(lake.storage, items.entry).latest(100)}
    assert left == {"70,e,bad", "8,7,bad", '{"id": 77, "qty": "x"}'}


def test_a_purge_that_meets_a_damaged_file_names_it_and_can_be_repeated(items):
    items.upsert([{"id": n, "name": f"n{n}"} for n in range(20)])
    items.compact(full=True)
    file = next(f for f in items.baseline.refresh().files() if f.rows)
    path = Path(items.log.storage.uri) / items.baseline.folder / file.path
    keys = pq.read_table(path)["id"].to_pylist()
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with refused(sl.Corrupt, path=f"{items.baseline.folder}/{file.path}"):
        items.purge(keys[:1])
    path.write_bytes(whole)
    assert items.purge(keys[:1]).baseline_rows == 1
    assert keys[0] not in by_id(again(items))
