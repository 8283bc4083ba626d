"""Several real processes on one table: every commit lands once, nothing is lost, the past does not change."""

import pytest

import strandline as sl
from support import ITEMS, answer_of, rows_of, start_python

COMMITS = 30

WRITER = """
import json, sys
import strandline as sl
folder, number, commits = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
lake = sl.Lake(folder)
items, events = lake.table("items"), lake.table("events")
seqs = {"items": [], "events": []}
for n in range(commits):
    rows = [{"id": number * 1000 + n, "name": f"{number}.{n}"}, {"id": -1, "name": f"{number}.{n}"}]
    seqs["items"].append(items.upsert(rows).seq)
    if n % 5 == 4:
        seqs["items"].append(items.delete([number * 1000 + n - 1]).seq)
    seqs["events"].append(events.append([{"id": number, "name": str(n)}, {"id": number, "name": str(n)}]).seq)
print(json.dumps(seqs))
"""

FOLDER = """
import json, os, sys
import strandline as sl
folder, stop = sys.argv[1], sys.argv[2]
lake = sl.Lake(folder)
tables = [lake.table("items"), lake.table("events")]
folds = conflicts = 0
while not os.path.exists(stop):
    for table in tables:
        try:
            table.compact(full=True)
            folds += 1
        except sl.Conflict:
            conflicts += 1
print(json.dumps([folds, conflicts]))
"""

READER = """
import json, os, random, sys
import strandline as sl
folder, stop, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
random.seed(seed)
lake = sl.Lake(folder)
tables = {name: lake.table(name) for name in ("items", "events")}
seen, heads, reads = {}, {"items": 0, "events": 0}, 0

def rows(table, at):
    found = sorted((row["id"], row["name"]) for row in table.to_arrow(at=at, columns=["id", "name"]).to_pylist())
    assert table.definition.is_keyed is False or len({id for id, _ in found}) == len(found), "a key twice"
    return found

while not os.path.exists(stop):
    for name, table in tables.items():
        head = table.head
        assert head >= heads[name], "the head went back"
        heads[name] = head
        for seq in {head, random.randint(0, head), random.randint(0, head)}:
            found = rows(table, seq)
            assert seen.setdefault((name, seq), found) == found, f"{name} at {seq} changed"
            reads += 1
        if random.random() < 0.1:
            tables[name] = sl.Lake(folder).table(name)
print(json.dumps([reads, {f"{name}/{seq}": found for (name, seq), found in seen.items()}]))
"""


@pytest.fixture
def busy(tmp_path):
    lake = sl.Lake(tmp_path / "lake")
    lake.create_table("items", ITEMS, key=["id"], vnodes=4, compact_files=3)
    lake.create_table("events", ITEMS, vnodes=4, compact_files=3)
    return lake


def replay(table, upto):
    """The rows at a seq, made from the changes alone."""
    if not table.definition.is_keyed:
        return sorted((change["id"], change["name"]) for change in table.changes(0, upto).to_pylist())
    rows = {}
    for change in table.changes(0, upto).to_pylist():
        if change["_op"] == "delete":
            rows.pop(change["id"], None)
        else:
            rows[change["id"]] = change["name"]
    return sorted(rows.items())


def test_writers_folders_and_readers_at_once_lose_nothing_and_change_no_past(tmp_path, busy):
    folder, stop = busy.storage.uri, str(tmp_path / "stop")
    writers = [start_python(WRITER, folder, str(number), str(COMMITS)) for number in (1, 2, 3)]
    others = [
        start_python(FOLDER, folder, stop),
        start_python(FOLDER, folder, stop),
        start_python(READER, folder, stop, "7"),
    ]
    try:
        answers = [answer_of(process) for process in writers]
    finally:
        (tmp_path / "stop").touch()
    folds = [answer_of(process) for process in others[:2]]
    reads, seen = answer_of(others[2])
    assert sum(done for done, _ in folds) > 5
    assert reads > 10

    for name, per_writer in (("items", COMMITS + COMMITS // 5), ("events", COMMITS)):
        table = busy.table(name)
        seqs = [seq for answer in answers for seq in answer[name]]
        assert len(set(seqs)) == 3 * per_writer, "each commit has a seq of its own"
        assert all(answer[name] == sorted(answer[name]) for answer in answers), "a writer's seqs rise"
        assert set(table.changes()["_seq"].to_pylist()) == set(seqs), "the folds pack, which takes seqs"
        assert table.log.refresh().snapshot.txns["pack"]
        fresh = sl.Lake(folder).table(name)
        for seq in {0, 1, table.head // 3, table.head // 2, table.head}:
            expected = replay(table, seq)
            for handle in (table, fresh):
                found = handle.to_arrow(at=seq, columns=["id", "name"])
                assert rows_of(found) == expected
        for key, found in seen.items():
            if key.startswith(name):
                assert [tuple(row) for row in found] == replay(table, int(key.split("/")[1])), key

    expected = {n * 1000 + at: f"{n}.{at}" for n in (1, 2, 3) for at in range(COMMITS) if at % 5 != 3}
    found = {row["id"]: row["name"] for row in busy.table("items").to_arrow().to_pylist()}
    last = found.pop(-1)
    assert found == expected
    assert last in {f"{n}.{COMMITS - 1}" for n in (1, 2, 3)}
    events = busy.table("events").to_arrow().to_pylist()
    assert len(events) == 3 * COMMITS * 2
    assert len({(row["id"], row["name"]) for row in events}) == 3 * COMMITS


TOKENS = """
import json, sys
import strandline as sl
table = sl.Lake(sys.argv[1]).table("events")
print(json.dumps([table.append([{"id": n}], token=f"t{n}").seq for n in range(20)]))
"""


def test_processes_that_send_the_same_tokens_land_each_once(busy):
    answers = [answer_of(process) for process in [start_python(TOKENS, busy.storage.uri) for _ in range(3)]]
    assert answers[0] == answers[1] == answers[2]
    assert sorted(busy.table("events").to_arrow()["id"].to_pylist()) == list(range(20))
    assert busy.table("events").head == 20


EVOLVERS = """
import json, sys
import pyarrow as pa
import strandline as sl
table = sl.Lake(sys.argv[1]).table("items")
number = int(sys.argv[2])
for n in range(4):
    table.evolve(pa.schema([(f"c{number}x{n}", pa.string())]))
    table.upsert([{"id": number * 10 + n, f"c{number}x{n}": "here"}])
    table.evolve(pa.schema([("shared", pa.string())]))
print(json.dumps(None))
"""


def test_processes_that_add_columns_at_once_keep_them_all(busy):
    processes = [start_python(EVOLVERS, busy.storage.uri, str(number)) for number in (1, 2)]
    for process in processes:
        answer_of(process)
    table = busy.table("items")
    added = {f"c{number}x{n}" for number in (1, 2) for n in range(4)} | {"shared"}
    assert set(table.schema.names) == {*ITEMS.names, *added}
    table.compact(full=True)
    for row in table.to_arrow().to_pylist():
        number, n = divmod(row["id"], 10)
        assert {name for name in added if row[name] is not None} == {f"c{number}x{n}"}
