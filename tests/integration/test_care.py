"""Compactors and cleaners beside writers and readers, in real processes, some of them killed: nothing is lost, nothing
doubled, and no reader notices."""

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
from strandline.doctor import examine
from support import answer_of, claimed_files, data_files, files_below, start_python

PAIRS = pa.schema([("id", pa.int64()), ("stamp", pa.int64()), ("text", pa.string())])
GRACE_S = 4

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


def run(tmp_path, length_s):
    lake = sl.Lake(tmp_path / "lake")
    table = lake.create_table("pairs", PAIRS, key=["id"], vnodes=8)
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
        while time.monotonic() < end_s:
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


def check_cleaned(lake, table, expected):
    """After a last compaction and vacuum there is nothing on the disk but what the table claims."""
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


def test_writers_caretakers_and_readers_at_once_lose_nothing_and_disturb_nobody(tmp_path):
    lake, table, expected, written = run(tmp_path, 15)
    assert sum(n - again for n, again in written) > 40
    check_cleaned(lake, table, expected)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_long_run_of_caretakers_beside_writers_and_readers(tmp_path):
    lake, table, expected, _ = run(tmp_path, float(os.environ.get("STRANDLINE_SOAK_S", "300")))
    check_cleaned(lake, table, expected)
