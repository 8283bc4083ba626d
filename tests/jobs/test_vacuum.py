"""Vacuum and purge: what can be read stays whole, what cannot is gone, whatever runs beside and whatever is torn."""

import contextlib
import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import strandline as sl
from folding import NOW, again, fill
from strandline.consumers import compaction
from strandline.jobs import vacuum as vacuums
from strandline.storage import delta as deltas
from strandline.tables.log import prepare
from strandline.tables.pins import new_pin
from strandline.tables.rejects import Rejects
from support import ITEMS, by_id, claimed_files, data_files, files_below, python, refused, rows_of


def states(table, seqs=None):
    return {seq: rows_of(table.to_arrow(at=seq)) for seq in (range(table.head + 1) if seqs is None else seqs)}


def disk(table):
    root = Path(table.log.storage.uri)
    return {name: (root / name).stat().st_mtime_ns for name in files_below(root)}


def commit_file(table, part, version):
    folder = table.log.folder if part == "log" else table.baseline.folder
    return Path(table.log.storage.uri) / folder / "_delta_log" / f"{version:020d}.json"


# --- how far back ----------------------------------------------------------------------------------------------


def test_a_vacuum_that_keeps_nothing_keeps_the_head_alone(items):
    fill(items)
    items.compact(full=True)
    fill(items, 2, start=10)
    expected = states(items)
    report = items.vacuum(**NOW)
    assert (report.trimmed_to, report.trimmed_files, report.held_by.seq) == (4, 4, 6)
    for table in (items, again(items)):
        assert table.oldest == 4
        for seq in range(4):
            with refused(sl.NotRetained, seq=seq, oldest=4):
                table.to_arrow(at=seq)
            with refused(sl.NotRetained, oldest=4):
                table.changes(seq)
        assert states(table, range(4, 7)) == {seq: expected[seq] for seq in range(4, 7)}
        assert rows_of(table.to_arrow()) == expected[6]
    assert data_files(items) == claimed_files(items)


def test_the_setting_keep_holds_by_default(items):
    fill(items)
    items.compact(full=True)
    expected = states(items)
    report = items.vacuum(grace=0)
    assert (report.trimmed_files, report.deleted_files) == (0, 0)
    assert states(again(items)) == expected


def test_every_state_of_the_last_while_stays_readable(items):
    fill(items)
    items.compact(full=True)
    time.sleep(0.5)
    expected = rows_of(items.to_arrow())
    before_s = time.time()
    for at in range(3):
        fill(items, 1, start=50 + at)
        items.compact(full=True)
    more = states(items, range(4, 8))
    items.vacuum(keep=time.time() - before_s + 0.2, grace=0)
    assert items.oldest == 4, "what was there when the time began is kept, and nothing older"
    assert states(again(items), range(4, 8)) == more
    assert more[4] == expected


def test_nothing_is_trimmed_that_is_not_folded(items):
    fill(items)
    expected = states(items)
    items.vacuum(**NOW)
    assert (items.oldest, items.log.refresh().trimmed_to) == (0, 0)
    assert states(again(items)) == expected


def test_a_time_that_is_no_longer_kept_is_refused_with_the_oldest_seq(items, unrested):
    fill(items, 30)
    items.compact(full=True)
    fill(items, 1, start=40)
    items.vacuum(**NOW)
    items.vacuum(**NOW)
    with pytest.raises(sl.NotRetained) as caught:
        items.to_arrow(at="2020-01-01")
    oldest = caught.value.fields["oldest"]
    assert oldest == items.oldest
    items.to_arrow(at=oldest)


# --- pins ------------------------------------------------------------------------------------------------------


def test_a_pin_holds_log_and_baseline_while_another_process_folds_and_cleans(items):
    fill(items)
    items.compact(full=True)
    fill(items, 2, start=10)
    expected = states(items, range(4, 7))
    held = items.pin(5)
    # A reader that has looked, and opens the files only later.
    merge = items.merge(5)
    needed = {f"log/{file.path}" for _, file in merge.log_files()} | {f"baseline/{f.path}" for f in merge.base_files()}
    code = """
import sys, strandline as sl
table = sl.Lake(sys.argv[1]).table("items")
for at in range(3):
    table.upsert([{"id": n, "name": "new"} for n in range(50)])
    table.compact(full=True)
    table.vacuum(keep=0, grace=0)
"""
    ended = python(code, items.log.storage.uri)
    assert ended.returncode == 0, ended.stderr
    assert needed <= data_files(items)
    for table in (items, again(items)):
        assert rows_of(table.to_arrow(at=5)) == expected[5]
        assert rows_of(table.to_arrow(at=6)) == expected[6]
    assert items.vacuum(**NOW).held_by.seq == 5
    held.release()
    head = items.head
    assert items.vacuum(**NOW).held_by.seq == head
    assert data_files(items) == claimed_files(items)
    with refused(sl.NotRetained, seq=5, oldest=items.oldest):
        items.to_arrow(at=5)


def test_an_expired_pin_does_not_hold(items):
    fill(items)
    items.pin(1, length="2s")
    items.compact(full=True)
    assert items.vacuum(**NOW).held_by.seq == 1
    time.sleep(2.2)
    items.vacuum(**NOW)
    assert items.oldest == 4
    assert data_files(items) == claimed_files(items)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": "x"}', "null"])
def test_while_a_pin_is_unreadable_nothing_goes(items, content):
    fill(items)
    expected = states(items)
    items.compact(full=True)
    items.pin(1, name="torn")
    (path,) = (Path(items.log.storage.uri) / "pins").rglob("torn.json")
    path.write_text(content)
    before = disk(items)
    with refused(sl.Invalid):
        items.vacuum(**NOW)
    assert disk(items) == before
    assert states(items) == expected


def test_a_pin_that_a_vacuum_did_not_see_holds_or_is_refused(items):
    """It is set after the vacuum has looked at the pins, before it has said what goes."""
    fill(items)
    items.compact(full=True)
    fill(items, 1, start=10)
    expected = states(items)
    other = again(items)
    said = items.baseline.keep_from
    pins = []

    def pinned_first(version):
        try:
            pins.append(other.pin(2))
        except sl.StrandlineError as error:
            pins.append(error)
        return said(version)

    items.baseline.keep_from = pinned_first
    items.vacuum(**NOW)
    if not isinstance(pins[0], sl.StrandlineError):
        assert rows_of(again(items).to_arrow(at=2)) == expected[2]


# --- grace -----------------------------------------------------------------------------------------------------


def test_files_go_when_they_have_been_unneeded_for_the_grace_time(items):
    fill(items)
    time.sleep(1.2)
    items.compact(full=True)
    files = data_files(items)
    report = items.vacuum(keep=0, grace=1)
    assert (report.trimmed_files, report.deleted_files) == (4, 0), "they are old, but needed until a moment ago"
    assert data_files(items) == files
    time.sleep(1.2)
    assert items.vacuum(keep=0, grace=1).deleted_files == 4
    assert data_files(items) == claimed_files(items)
    assert len(by_id(again(items))) == 5


def test_a_reader_that_came_before_the_announcement_reads_on_during_the_grace_time(items):
    fill(items)
    items.compact(full=True)
    merge = items.merge(2)
    fill(items, 2, start=20)
    items.compact(full=True)
    items.vacuum(keep=0, grace="1h")
    with refused(sl.NotRetained, seq=2):
        items.to_arrow(at=2)
    needed = {f"log/{file.path}" for _, file in merge.log_files()} | {f"baseline/{f.path}" for f in merge.base_files()}
    assert needed <= data_files(items)


# --- files that no commit claims -------------------------------------------------------------------------------


def unclaimed(table, rows):
    """What a writer has done that sleeps before it commits."""
    changes = prepare(pa.Table.from_pylist(rows, table.schema), table.definition, "upsert")
    return table.log.write(changes, table.definition)


def test_a_writer_whose_files_were_cleared_away_is_refused_and_loses_nothing_else(items):
    fill(items)
    expected = by_id(items)
    files = unclaimed(items, [{"id": 77, "name": "asleep"}])
    other = again(items)
    assert other.vacuum(**NOW).deleted_files == 1
    with refused(sl.Conflict, path=files[0].path):
        items.log.commit(files, operation="UPSERT")
    assert by_id(items) == by_id(again(items)) == expected
    assert data_files(items) == claimed_files(items)
    items.upsert([{"id": 77, "name": "again"}])
    assert by_id(items) == {**expected, 77: "again"}


def test_a_writer_that_slept_through_the_clean_up_of_the_commit_that_gave_its_files_up_is_refused(items, unrested):
    fill(items)
    files = unclaimed(items, [{"id": 77, "name": "asleep"}])
    other = again(items)
    other.vacuum(**NOW)
    fill(other, 15, start=100)
    other.compact(full=True)
    for _ in range(2):
        other.vacuum(**NOW)
    assert not commit_file(items, "log", 5).exists(), "the commit that gave the file up is gone"
    expected = by_id(other)
    with refused(sl.Conflict, path=files[0].path):
        items.log.commit(files, operation="UPSERT")
    assert by_id(items) == by_id(again(items)) == expected


def test_a_young_file_that_no_commit_claims_stays_for_the_grace_time(items):
    fill(items)
    files = unclaimed(items, [{"id": 77, "name": "asleep"}])
    again(items).vacuum(keep=0, grace="1h")
    items.log.commit(files, operation="UPSERT")
    assert by_id(again(items))[77] == "asleep"


def test_an_upload_that_holds_a_pin_is_left_alone_however_long_it_takes(items):
    fill(items)
    with items.pins.held(new_pin("write", writes_since_s=items.log.storage.now_s()), quiet_s=0):
        files = unclaimed(items, [{"id": 77, "name": "asleep"}])
        stale = unclaimed(items, [{"id": 78, "name": "left over"}])[0]
        os.utime(Path(items.log.storage.uri) / items.log.folder / stale.path, (1, 1))
        assert again(items).vacuum(**NOW).deleted_files == 1, "what is older than the upload goes"
    items.log.commit(files, operation="UPSERT")
    assert by_id(again(items))[77] == "asleep"


def test_a_file_that_is_claimed_while_a_vacuum_runs_stays(items):
    fill(items)
    files = unclaimed(items, [{"id": 77, "name": "just in time"}])
    other = again(items)
    commit = other.log.delta.commit

    def overtaken(operation, build, **options):
        if operation == "VACUUM" and files:
            items.log.commit(files, operation="UPSERT")
            files.clear()
        return commit(operation, build, **options)

    other.log.delta.commit = overtaken
    other.vacuum(**NOW)
    assert not files
    assert by_id(again(items))[77] == "just in time"


def test_files_that_are_not_ours_stay(items):
    fill(items)
    folder = Path(items.log.storage.uri) / items.log.folder
    for name in ("notes.txt", "part-0000-abc.parquet", "0000-short.parquet"):
        (folder / name).write_text("mine")
    items.vacuum(**NOW)
    assert {path.name for path in folder.iterdir()} >= {"notes.txt", "part-0000-abc.parquet", "0000-short.parquet"}


# --- torn and missing files ------------------------------------------------------------------------------------


def _delete(path):
    path.unlink()


def _tear(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _empty(path):
    path.write_bytes(b"")


def _null(path):
    path.write_text("null")


@pytest.fixture
def worn(items):
    """A table with checkpoints, old baseline versions, orphans and a trimmed log."""
    for at in range(3):
        fill(items, 6, start=at * 10)
        items.compact(full=True)
        items.log.delta.checkpoint()
        items.baseline.delta.checkpoint()
    items.pin(7, name="held")
    items.vacuum(**NOW)
    fill(items, 2, start=50)
    unclaimed(items, [{"id": 1000}])
    return items


DAMAGE = {
    "a commit in the middle of the log": ("log", "0*12.json", _delete),
    "a torn commit in the middle of the log": ("log", "0*12.json", _tear),
    "a commit near the log's head": ("log", "0*20.json", _delete),
    "a torn commit at the log's head": ("log", "0*21.json", _tear),
    "the first commit of the log": ("log", "0*0.json", _delete),
    "the log's hint": ("log", "_last_checkpoint", _delete),
    "the log's torn hint": ("log", "_last_checkpoint", _tear),
    "the log's empty hint": ("log", "_last_checkpoint", _empty),
    "the log's nonsense hint": ("log", "_last_checkpoint", _null),
    "the log's last checkpoint": ("log", "0*18.checkpoint.parquet", _delete),
    "the log's torn checkpoint": ("log", "0*18.checkpoint.parquet", _tear),
    "an empty older checkpoint of the log": ("log", "0*12.checkpoint.parquet", _empty),
    "a commit in the middle of the baseline": ("baseline", "0*2.json", _delete),
    "the baseline's last fold": ("baseline", "0*3.json", _delete),
    "the baseline's last commits": ("baseline", "0*[34].json", _delete),
    "the baseline's hint": ("baseline", "_last_checkpoint", _tear),
    "the baseline's torn checkpoint": ("baseline", "0*3.checkpoint.parquet", _tear),
    "the baseline's checkpoints": ("baseline", "*.checkpoint.parquet", _empty),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("opened", ["before", "after"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_pointer_never_costs_a_live_row(worn, damage, opened):
    """Damage, vacuum as hard as it goes, repair: everything that could be read can be read."""
    part, pattern, act = DAMAGE[damage]
    folder = commit_file(worn, part, 0).parent
    seqs = {worn.oldest, worn.oldest + 1, (worn.oldest + worn.head) // 2, worn.head - 1, worn.head}
    expected = states(worn, seqs)
    paths = sorted(folder.glob(pattern))
    assert paths, "the damage is real"
    whole = {path: path.read_bytes() for path in paths}
    table = worn if opened == "before" else None
    for path in paths:
        act(path)
    try:
        table = table or again(worn)
        # The seq that was pinned stays so: nothing but files that no commit claims may go.
        table.vacuum(keep="1h", grace=0)
    except sl.StrandlineError as error:
        assert isinstance(error, sl.Corrupt | sl.NotFound), error
    for path, data in whole.items():
        path.write_bytes(data)
    for reader in (again(worn), worn):
        assert states(reader, seqs) == expected
    again(worn).vacuum(keep="1h", grace=0)
    assert states(again(worn), seqs) == expected


@pytest.mark.timeout(60)
def test_a_lost_commit_at_the_end_of_the_log_is_noticed_when_the_baseline_is_further(items):
    """What that commit claimed would be taken for files that nobody claims."""
    fill(items, 5)
    items.compact(full=True)
    expected = rows_of(items.to_arrow())
    path = commit_file(items, "log", 5)
    whole = path.read_bytes()
    path.unlink()
    with pytest.raises(sl.Corrupt):
        again(items).vacuum(**NOW)
    assert not path.exists()
    path.write_bytes(whole)
    assert rows_of(again(items).to_arrow()) == expected


@pytest.mark.timeout(20)
def test_a_read_ends_when_the_baseline_has_lost_commits(items):
    fill(items, 5)
    items.compact(full=True)
    items.vacuum(**NOW)
    for version in (1, 2):
        commit_file(items, "baseline", version).unlink(missing_ok=True)
    for path in commit_file(items, "baseline", 0).parent.glob("*checkpoint*"):
        path.unlink()
    with pytest.raises(sl.StrandlineError):
        again(items).to_arrow()


# --- what is left ----------------------------------------------------------------------------------------------


def test_commit_files_and_checkpoints_are_cleaned_and_the_table_opens_from_scratch(items, unrested):
    for at in range(7):
        fill(items, 4, start=at * 10)
        items.compact(full=True)
        items.vacuum(**NOW)
    items.vacuum(**NOW)
    fresh = again(items)
    assert len(by_id(fresh)) == 29
    for part, delta in (("log", items.log.delta), ("baseline", items.baseline.delta)):
        kept, checkpoints = delta.chain.files()
        assert 0 not in kept
        assert len(kept) < 20, part
        assert len(checkpoints) <= 2, part
    for folder in (items.log.folder, items.baseline.folder):
        opened = DeltaTable(f"{items.log.storage.uri}/{folder}")
        assert opened.to_pyarrow_table() is not None
    assert DeltaTable(f"{items.log.storage.uri}/{items.log.folder}").version() == items.head
    found = DeltaTable(f"{items.log.storage.uri}/{items.baseline.folder}").to_pyarrow_table()
    assert set(found["id"].to_pylist()) == set(by_id(items))
    # The table lives on.
    fill(fresh, 1, start=500)
    fresh.compact(full=True)
    assert by_id(items)[500] == "n500"


def test_a_repeated_vacuum_changes_nothing(items, unrested):
    fill(items, 12)
    items.compact(full=True)
    unclaimed(items, [{"id": 1000}])
    for _ in range(2):
        items.vacuum(**NOW)
    before, head, version = disk(items), items.head, items.baseline.refresh().version
    for table in (items, again(items)):
        report = table.vacuum(**NOW)
        assert (report.trimmed_files, report.deleted_files) == (0, 0)
        assert (table.head, table.baseline.refresh().version) == (head, version)
    assert disk(items) == before


def test_a_dry_run_changes_nothing_and_says_what_a_vacuum_does(items):
    fill(items)
    items.compact(full=True)
    fill(items, 2, start=20)
    items.compact(full=True)
    unclaimed(items, [{"id": 1000}])
    before = disk(items)
    planned = items.vacuum(**NOW, dry_run=True)
    assert disk(items) == before
    done = items.vacuum(**NOW)
    assert (planned.is_dry_run, done.is_dry_run) == (True, False)
    names = ("trimmed_to", "trimmed_files", "baseline_from", "held_by", "deleted_files", "deleted_bytes")
    assert {name: getattr(planned, name) for name in names} == {name: getattr(done, name) for name in names}


def test_a_broken_table_does_not_keep_a_lake_from_being_cleaned(lake, make_table):
    broken, sound = make_table(ITEMS, key=["id"]), make_table(ITEMS, key=["id"])
    for table in (broken, sound):
        fill(table)
        table.compact(full=True)
    commit_file(broken, "log", 2).write_text("{")
    reports = sl.Lake(lake.storage.uri).vacuum(**NOW).tables
    assert [report.to_dict().get("trimmed_files") for report in reports] == [None, 4]


# --- refused rows ----------------------------------------------------------------------------------------------


def ingest(lake, tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    lake.ingest("items", [str(path)], rejects=True)


def test_refused_rows_survive_the_clean_up_of_their_commit_files(lake, items, tmp_path, unrested):
    for at in range(60):
        ingest(lake, tmp_path, f"{at}.jsonl", f'{{"id": {at}}}\n{{"id": {at}, "qty": "bad{at}"}}\n')
    rejects = Rejects(lake.storage, items.entry)
    assert rejects.count() == 60
    items.compact(full=True)
    for _ in range(2):
        items.vacuum(**NOW)
    assert Rejects(lake.storage, items.entry).count() == 60
    assert Rejects(lake.storage, items.entry).latest(1)[0]["text"] == '{"id": 59, "qty": "bad59"}'
    ingest(lake, tmp_path, "more.jsonl", '{"id": 1, "qty": "bad"}\n')
    assert Rejects(lake.storage, items.entry).count() == 61


def test_files_of_refused_rows_that_no_commit_claims_go(lake, items, tmp_path):
    ingest(lake, tmp_path, "a.jsonl", '{"id": 1}\n{"id": 2, "qty": "bad"}\n')
    rejects = Rejects(lake.storage, items.entry)
    folder = Path(lake.storage.uri) / rejects.folder
    (live,) = folder.glob("*.parquet")
    (folder / f"0000-{'a' * 32}.parquet").write_bytes(live.read_bytes())
    assert items.vacuum(**NOW).deleted_files == 1
    assert list(folder.glob("*.parquet")) == [live]
    assert rejects.count() == 1


# --- lessons of others -----------------------------------------------------------------------------------------


def test_two_commits_in_one_millisecond_both_survive_a_vacuum(items, monkeypatch):
    monkeypatch.setattr(deltas.time, "time", lambda: 1_800_000_000.0)
    other = again(items)
    items.upsert([{"id": 1, "name": "one"}])
    other.upsert([{"id": 2, "name": "two"}])
    monkeypatch.undo()
    items.compact(full=True)
    items.vacuum(**NOW)
    assert by_id(again(items)) == {1: "one", 2: "two"}


def test_what_is_written_while_a_fold_and_a_vacuum_run_survives(items):
    fill(items)
    other = again(items)
    fold = items.baseline.commit_fold
    trim = items.log.trim

    def write_then_fold(*args, **options):
        other.upsert([{"id": 2, "name": "during the fold"}, {"id": 100, "name": "new"}])
        other.delete([1])
        return fold(*args, **options)

    def write_then_trim(upto, **told):
        other.upsert([{"id": 3, "name": "during the vacuum"}])
        return trim(upto, **told)

    items.baseline.commit_fold, items.log.trim = write_then_fold, write_then_trim
    items.compact(full=True)
    items.vacuum(**NOW)
    del items.baseline.commit_fold, items.log.trim
    expected = {-1: "last3", 0: "n0", 2: "during the fold", 3: "during the vacuum", 100: "new"}
    for _ in range(2):
        for table in (items, other, again(items)):
            assert by_id(table) == expected
        items.compact(full=True)
        items.vacuum(**NOW)


def test_a_fold_whose_files_another_compactor_replaced_and_cleaned_is_no_damage(items, monkeypatch):
    fill(items, 3)
    items.compact(full=True)
    fill(items, 3, start=1)
    expected = by_id(items)
    other = again(items)
    on_driver = compaction.fold_on_driver

    def overtaken(table, part):
        if table is items:
            other.compact(full=True)
            other.vacuum(**NOW)
        return on_driver(table, part)

    monkeypatch.setattr(compaction, "fold_on_driver", overtaken)
    assert items.compact(full=True).degraded == ()
    monkeypatch.undo()
    assert by_id(again(items)) == expected


def test_the_pins_are_looked_up_once_a_group_not_once_a_vnode(make_table):
    table = make_table(ITEMS, key=["id"], vnodes=64)
    table.upsert([{"id": n} for n in range(500)])
    looks = []
    kind = type(table.pins)
    every = kind.all
    try:
        kind.all = lambda self, **options: looks.append(1) or every(self, **options)
        table.compact(full=True)
    finally:
        kind.all = every
    assert len(looks) <= 2


def test_a_report_can_be_written_as_json(items):
    fill(items)
    items.compact(full=True)
    assert json.loads(json.dumps(items.vacuum(**NOW).to_dict()))["held_by"] == {"seq": 4, "who": "the setting keep"}


# --- guards ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq", [1, 4])
def test_a_pin_that_a_deciding_vacuum_did_not_see_holds_or_is_refused(items, monkeypatch, seq):
    fill(items, 4)
    expected = states(items)
    items.compact(full=True)
    fill(items, 1, start=9)
    decide, pinned = vacuums._decide_trim, []

    def late(*args):
        decided = decide(*args)
        if len(pinned) < 2:
            # The first look is the report's, the second is the one that the commit rests on.
            pinned.append(None)
            if len(pinned) == 2:
                with contextlib.suppress(sl.NotRetained):
                    pinned.append(again(items).pin(seq))
        return decided

    monkeypatch.setattr(vacuums, "_decide_trim", late)
    items.vacuum(**NOW)
    assert len(pinned) > 1
    if len(pinned) == 3:
        assert rows_of(again(items).to_arrow(at=seq)) == expected[seq]
    else:
        assert items.oldest > seq


def test_a_pin_that_expired_and_whose_seq_is_gone_cannot_be_renewed(items):
    fill(items, 4)
    held = items.pin(1, length="0.05s")
    time.sleep(0.1)
    items.compact(full=True)
    items.vacuum(**NOW)
    with refused(sl.NotRetained, oldest=4):
        held.renew()
    assert items.pins.all() == []
