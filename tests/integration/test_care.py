"""Compactors and cleaners beside writers and readers, in real processes, some of them killed: nothing is lost, nothing
doubled, and no reader notices."""

import contextlib
import json
import os
import random
import time
import zlib
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import strandline as sl
from strandline.jobs import vacuum
from strandline.jobs.doctor import examine
from strandline.storage import delta
from support import answer_of, claimed_files, data_files, files_below, python, refused, start_python, trim

PAIRS = pa.schema([("id", pa.int64()), ("stamp", pa.int64()), ("text", pa.string())])
GRACE_S = 4
MOST_WAIT_S = 60

# Every commit writes or deletes both rows of a pair, so a read that shows one without the other is torn.
WRITER = """
import json, os, random, sys
import strandline as sl
folder, stop, number, journal = sys.argv[1], sys.argv[2], int(sys.argv[3]), open(sys.argv[4], "a")
random.seed(number)
table = sl.Lake(folder).table("pairs")
n = again = 0
while not os.path.exists(stop):
    n += 1
    # The pairs below 10 are everybody's; of each the last writer is known by the seq.
    pair = random.randrange(10) if n % 4 == 0 else number * 100 + random.randrange(40)
    is_delete = n % 5 == 0
    try:
        if is_delete:
            seq = table.delete([2 * pair, 2 * pair + 1]).seq
        else:
            rows = [{"id": 2 * pair + side, "stamp": number * 1_000_000 + n, "text": "x" * (n % 50)} for side in (0, 1)]
            seq = table.upsert(rows).seq
    except sl.Conflict:
        again += 1  # the machine was so slow that the file was taken for a leftover: nothing was written
        continue
    journal.write(json.dumps([seq, pair, None if is_delete else number * 1_000_000 + n]) + "\\n")
    journal.flush()
print(json.dumps([n, again]))
"""

CARETAKER = """
import json, os, random, sys, traceback
import strandline as sl
folder, stop, seed, grace_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
random.seed(seed)
table = sl.Lake(folder).table("pairs")
done, failures = 0, []
open(f"{stop}-{os.getpid()}", "w").close()  # at work: from now on it may be killed
while not os.path.exists(stop):
    try:
        report = table.compact(full=random.random() < 0.3)
        if report.degraded:
            failures.append(repr(report.degraded))
        table.vacuum(grace=grace_s, keep=random.choice([0, 1, 2]))
        done += 1
    except sl.Conflict:
        pass  # another one was quicker, ten times
    except Exception:
        failures.append(traceback.format_exc())
    if random.random() < 0.2:
        table = sl.Lake(folder).table("pairs")
print(json.dumps([done, failures]))
"""

READER = """
import json, os, random, sys, traceback, zlib
import strandline as sl
folder, stop, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
random.seed(seed)
table = sl.Lake(folder).table("pairs")
seen, gone, heads, failures, highest = {}, 0, 0, [], 0

def read(at):
    rows = sorted((row["id"], row["stamp"]) for row in table.to_arrow(at=at, columns=["id", "stamp"]).to_pylist())
    ids = [id for id, _ in rows]
    assert len(set(ids)) == len(ids), f"a key twice at {at}"
    by_id = dict(rows)
    torn = [id for id in ids if by_id.get(id ^ 1) != by_id[id]]
    assert not torn, f"half a commit at {at}: {torn[:4]}"
    return zlib.crc32(json.dumps(rows).encode())

while not os.path.exists(stop):
    try:
        head = table.head
        assert head >= highest, f"the head went back from {highest} to {head}"
        highest = head
        read(None)
        heads += 1
        at = random.randint(max(0, head - random.choice([0, 5, 60])), head)
        try:
            digest = read(at)
            assert seen.setdefault(at, digest) == digest, f"{at} changed"
        except sl.NotRetained as error:
            gone += 1
            assert error.fields["oldest"] > at or at < head, error.fields
        if random.random() < 0.15:
            table = sl.Lake(folder).table("pairs")
    except Exception:
        failures.append(traceback.format_exc())
print(json.dumps([heads, gone, list(seen.items()), failures]))
"""


def digest(rows):
    return zlib.crc32(json.dumps(sorted([2 * pair + side, stamp] for pair, stamp in rows.items() for side in (0, 1)))
                      .encode())  # fmt: skip


def replayed(journals, seqs):
    """The pairs at the end by what the writers say, and the digest of them at each of `seqs`."""
    entries = sorted(tuple(json.loads(line)) for path in journals for line in path.read_text().splitlines())
    assert len({seq for seq, _, _ in entries}) == len(entries), "two commits were told the same seq"
    rows, at, found = {}, 0, {}
    for seq in sorted(seqs):
        while at < len(entries) and entries[at][0] <= seq:
            _, pair, stamp = entries[at]
            rows = {**rows, pair: stamp} if stamp is not None else {p: s for p, s in rows.items() if p != pair}
            at += 1
        found[seq] = digest(rows)
    return rows, found


def has_packed(table):
    return "pack" in table.log.refresh().snapshot.txns


def wait_until_at_work(caretaker, stop):
    end_s = time.monotonic() + MOST_WAIT_S
    while not Path(f"{stop}-{caretaker.pid}").exists() and caretaker.poll() is None and time.monotonic() < end_s:
        time.sleep(0.1)


def run(tmp_path, length_s):
    lake = sl.Lake(tmp_path / "lake")
    # A few small files become a pack: writers, readers and vacuums meet packs all the time.
    table = lake.create_table("pairs", PAIRS, key=["id"], vnodes=8, compact_files=3)
    folder, stop = lake.storage.uri, tmp_path / "stop"
    journals = [tmp_path / f"journal{number}" for number in range(1, 5)]
    writers = [
        start_python(WRITER, folder, str(stop), str(number), str(path)) for number, path in enumerate(journals, 1)
    ]
    seeds = iter(range(100, 10_000))

    def caretaker():
        return start_python(CARETAKER, folder, str(stop), str(next(seeds)), str(GRACE_S))

    caretakers = [caretaker(), caretaker()]
    readers = [start_python(READER, folder, str(stop), str(seed)) for seed in (7, 8)]
    end_s = time.monotonic() + length_s
    random.seed(1)
    try:
        # On a busy machine, it takes longer until they have packed.
        while time.monotonic() < end_s or (not has_packed(table) and time.monotonic() < end_s + MOST_WAIT_S):
            wait_until_at_work(caretakers[0], stop)
            time.sleep(random.uniform(2.5, 4))
            killed = caretakers.pop(0)
            killed.kill()
            killed.communicate()
            caretakers.append(caretaker())
    finally:
        stop.touch()
    written = [answer_of(process) for process in writers]
    cared = [answer_of(process) for process in caretakers]
    read = [answer_of(process) for process in readers]
    failures = [text for _, found in cared for text in found] + [text for *_, found in read for text in found]
    assert not failures, f"{len(failures)} failures, the first:\n{failures[0]}"
    assert all(heads > 3 for heads, *_ in read)
    assert has_packed(table), "no caretaker has packed"

    fresh = sl.Lake(folder).table("pairs")
    seqs = {seq for _, _, seen, _ in read for seq, _ in seen} | {fresh.head}
    expected, digests = replayed(journals, seqs)
    for _, _, seen, _ in read:
        for seq, found in seen:
            assert found == digests[seq], f"a reader saw another table at seq {seq}"
    for handle in (table, fresh):
        rows = handle.to_arrow(columns=["id", "stamp"]).to_pylist()
        assert {row["id"]: row["stamp"] for row in rows} == {
            2 * pair + side: stamp for pair, stamp in expected.items() for side in (0, 1)
        }
        assert len(rows) == 2 * len(expected), "nothing is doubled"
    report = examine(lake.storage, deep=True)
    assert report.is_sound, report.findings
    return lake, table, expected, written


def check_cleaned(lake, table, expected, monkeypatch):
    """After a last compaction and vacuum there is nothing on the disk but what the table claims."""
    monkeypatch.setattr(delta, "RESTED_S", 0.0)
    # Killed caretakers left pins, which would expire five minutes after their last renewal.
    for pin in table.log.pins.all():
        table.log.pins.release(pin.name)
    table.compact(full=True)
    for _ in range(2):
        lake.vacuum(grace=0, keep=0)
    assert data_files(table) == claimed_files(table)
    assert len(data_files(table)) <= 8
    left = files_below(Path(lake.storage.uri))
    assert not [name for name in left if ".tmp-" in name]
    commits = [name for name in left if "_delta_log" in name and name.endswith(".json")]
    assert len(commits) < 60, "commit files are cleaned away"
    assert examine(lake.storage, deep=True).is_sound
    rows = sl.Lake(lake.storage.uri).table("pairs").to_arrow(columns=["id", "stamp"]).to_pylist()
    assert {row["id"]: row["stamp"] for row in rows} == {
        2 * pair + side: stamp for pair, stamp in expected.items() for side in (0, 1)
    }


def test_writers_caretakers_and_readers_at_once_lose_nothing_and_disturb_nobody(tmp_path, monkeypatch):
    lake, table, expected, written = run(tmp_path, 15)
    assert sum(n - again for n, again in written) > 40
    check_cleaned(lake, table, expected, monkeypatch)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_long_run_of_caretakers_beside_writers_and_readers(tmp_path, monkeypatch):
    lake, table, expected, _ = run(tmp_path, float(os.environ.get("STRANDLINE_SOAK_S", "300")))
    check_cleaned(lake, table, expected, monkeypatch)


# --- other engines ---------------------------------------------------------------------------------------------

ACCOUNTS, TOTAL = 40, 40_000

# Every commit moves money from one account to another: the sum is the same in every state of the table.
BANK = """
import json, os, random, sys
import strandline as sl
folder, stop, grace_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
random.seed(3)
table = sl.Lake(folder).table("accounts")
money = {row["id"]: row["money"] for row in table.to_arrow().to_pylist()}
rounds = deleted = 0
while not os.path.exists(stop):
    for _ in range(random.randint(1, 6)):
        one, two = random.sample(sorted(money), 2)
        money[one] -= 5
        money[two] += 5
        table.upsert([{"id": key, "money": money[key]} for key in (one, two)])
    table.compact(full=True)
    deleted += table.vacuum(grace=grace_s, keep=0).deleted_files
    rounds += 1
print(json.dumps([rounds, deleted, table.log.refresh().trimmed_to]))
"""


def by_deltalake(folder, pause):
    delta = DeltaTable(folder)
    pause()
    return delta.to_pyarrow_table().to_pylist()


def by_duckdb(folder, pause):
    files = DeltaTable(folder).file_uris()
    pause()
    if not files:
        return []
    with duckdb.connect() as connection:
        found = connection.sql(f"SELECT * FROM read_parquet({files!r}, union_by_name = true)")
        return found.to_arrow_table().to_pylist()


def by_polars(folder, pause):
    frame = pl.scan_delta(folder)
    pause()
    return frame.collect().to_dicts()


def by_spark(spark, folder, pause):
    files = DeltaTable(folder).file_uris()
    pause()
    if not files:
        return []
    return [row.asDict() for row in spark.read.parquet(*files).collect()]


def test_other_engines_go_on_reading_while_a_table_is_folded_trimmed_and_cleaned(spark, tmp_path):
    lake = sl.Lake(tmp_path / "lake")
    table = lake.create_table("accounts", pa.schema([("id", pa.int64()), ("money", pa.int64())]), key=["id"], vnodes=4)
    table.upsert([{"id": n, "money": TOTAL // ACCOUNTS} for n in range(ACCOUNTS)])
    table.compact(full=True)
    stop = tmp_path / "stop"
    engines = {
        "deltalake": by_deltalake,
        "duckdb": by_duckdb,
        "polars": by_polars,
        "spark": lambda folder, pause: by_spark(spark, folder, pause),
    }
    baseline, log = (lake.storage.url(part.folder) for part in (table.baseline, table.log))
    random.seed(2)

    def pause():
        # An engine reads what it has opened a while ago.
        time.sleep(random.choice([0, 0.3, 1]))

    assert len(by_spark(spark, baseline, lambda: None)) == ACCOUNTS, "the first read warms Spark up"
    reads, slow = dict.fromkeys(engines, 0), 0
    bank = start_python(BANK, lake.storage.uri, str(stop), str(GRACE_S))
    end_s = time.monotonic() + 20
    try:
        while time.monotonic() < end_s:
            for name, read in engines.items():
                began_s = time.monotonic()
                try:
                    rows = read(baseline, pause)
                except Exception:
                    # Longer than the grace time nothing is promised, and a busy machine may need longer.
                    if time.monotonic() - began_s < GRACE_S:
                        raise
                    slow += 1
                    continue
                assert sorted(row["id"] for row in rows) == list(range(ACCOUNTS)), name
                assert sum(row["money"] for row in rows) == TOTAL, name
                reads[name] += 1
            for name, read in engines.items():
                began_s = time.monotonic()
                try:
                    changed = [row["id"] for row in read(log, pause)]
                except Exception:
                    if time.monotonic() - began_s < GRACE_S:
                        raise
                    slow += 1
                    continue
                assert len(changed) % 2 == 0, f"{name}: a commit is there whole or not at all"
            seqs = [row["_seq"] for row in by_deltalake(log, pause)]
            assert all(seqs.count(seq) == 2 for seq in set(seqs) - {1}), "a commit is there whole or not at all"
    finally:
        stop.touch()
        rounds, deleted, trimmed_to = answer_of(bank)
    assert rounds > 5 and deleted > 20 and trimmed_to > 5
    assert all(count > 1 for count in reads.values()) and slow < 3, (reads, slow)
    assert sum(table.to_arrow()["money"].to_pylist()) == TOTAL


# --- pins ------------------------------------------------------------------------------------------------------


def test_a_pin_that_is_set_while_a_vacuum_decides_holds_or_is_refused(tmp_path):
    """The vacuum has looked at the pins and has not said yet what goes."""
    lake = sl.Lake(tmp_path / "lake")
    table = lake.create_table("pairs", PAIRS, key=["id"], vnodes=2)
    for n in range(3):
        table.upsert([{"id": 1, "stamp": n}])
        table.compact(full=True)
    other = sl.Lake(lake.storage.uri).table("pairs")
    keep_from = table.baseline.keep_from
    pins = []

    def pinned_first(version):
        with contextlib.suppress(sl.NotRetained, sl.Conflict, sl.Unavailable):
            pins.append(other.pin(1))
        return keep_from(version)

    table.baseline.keep_from = pinned_first
    table.vacuum(grace=0, keep=0)
    fresh = sl.Lake(lake.storage.uri).table("pairs")
    for pin in pins:
        assert fresh.to_arrow(at=pin.seq)["stamp"].to_pylist() == [0]


# --- two cleaners ----------------------------------------------------------------------------------------------


def test_a_vacuum_that_another_one_overtakes_does_not_take_the_table_for_damaged(tmp_path, monkeypatch):
    """The other one cleans commit files away after ours has decided from which version on it looks."""
    monkeypatch.setattr(delta, "RESTED_S", 0.0)
    lake = sl.Lake(tmp_path / "lake")
    table = lake.create_table("pairs", PAIRS, key=["id"], vnodes=2)
    other = sl.Lake(lake.storage.uri).table("pairs")
    for n in range(30):
        table.upsert([{"id": n % 5, "stamp": n}])
    table.compact(full=True)
    sweep, late = vacuum.sweep, [True]

    def overtaken(*args, **options):
        if late:
            late.clear()
            for n in range(15):
                other.upsert([{"id": n % 5, "stamp": n}])
            other.compact(full=True)
            for _ in range(3):
                other.vacuum(grace=0, keep=0)
        return sweep(*args, **options)

    monkeypatch.setattr(vacuum, "sweep", overtaken)
    table.vacuum(grace=0, keep=0)
    rows = sl.Lake(lake.storage.uri).table("pairs").to_arrow().to_pylist()
    assert {row["id"]: row["stamp"] for row in rows} == {n % 5: n for n in range(10, 15)}


def test_a_late_checkpoint_does_not_hide_what_came_after_it(tmp_path, monkeypatch):
    """A process that made a checkpoint was asleep when it should have said so, and others went on and cleaned."""
    monkeypatch.setattr(delta, "RESTED_S", 0.0)
    table = sl.Lake(tmp_path / "lake").create_table("pairs", PAIRS, key=["id"], vnodes=2)
    folder = Path(table.log.storage.url(table.log.folder)) / "_delta_log"
    for n in range(20):
        table.upsert([{"id": n, "stamp": n}])
    table.log.delta.checkpoint()
    late = {name: (folder / name).read_bytes() for name in ("_last_checkpoint", f"{20:020d}.checkpoint.parquet")}
    for n in range(20, 40):
        table.upsert([{"id": n, "stamp": n}])
    table.compact(full=True)
    for _ in range(2):
        table.vacuum(grace=0, keep=0)
    for name, data in late.items():
        (folder / name).write_bytes(data)
    fresh = sl.Lake(table.log.storage.uri).table("pairs")
    assert fresh.head == table.head
    assert fresh.to_arrow().num_rows == 40
    fresh.upsert([{"id": 40, "stamp": 40}])
    assert table.to_arrow().num_rows == 41


@pytest.mark.timeout(60)
def test_a_log_that_is_trimmed_past_the_baseline_is_damage_and_no_endless_wait(tmp_path):
    """As after a baseline was put back from an older copy."""
    table = sl.Lake(tmp_path / "lake").create_table("pairs", PAIRS, key=["id"], vnodes=2)
    table.upsert([{"id": 1, "stamp": 1}])
    table.compact(full=True)
    table.upsert([{"id": 2, "stamp": 2}])
    trim(table, 2)
    ended = python(
        "import sys, strandline as sl\nsl.Lake(sys.argv[1]).table('pairs').to_arrow()",
        table.log.storage.uri,
        timeout_s=20,
    )
    assert "Corrupt" in ended.stderr


def test_an_unreadable_pin_keeps_files_and_nothing_else(tmp_path):
    lake = sl.Lake(tmp_path / "lake")
    table = lake.create_table("pairs", PAIRS, key=["id"], vnodes=2)
    table.upsert([{"id": 1, "stamp": 1}])
    folder = tmp_path / "lake" / "pins" / table.entry.generation
    folder.mkdir(parents=True)
    (folder / "torn.json").write_text('{"name"')
    assert table.compact().vnodes > 0, "a fold deletes nothing, so no pin is in its way"
    with refused(sl.Invalid):
        table.vacuum(grace=0, keep=0)
    assert lake.status().tables[0].rows == 1
