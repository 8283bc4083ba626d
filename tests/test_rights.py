"""A lake that cannot be written, in whole or in part: reading works, and every write says what is in its way."""

import json
import os
import signal
import subprocess
import sys

import pyarrow as pa
import pytest

import strandline as sl
from rights import BOUND, LIMITED, MOUNTED, set_writable, told
from support import ITEMS, environment, files_below

# Every call by its name: what it says, as (kind, message, fields), or None when it went well.
ASK = """
import json, os, sys
import pyarrow as pa
import strandline as sl
from strandline.storage.open import LocalStorage
from strandline.state.tokens import Tokens

root, out = sys.argv[1:3]
tries = []
plain_put = LocalStorage.put_new
LocalStorage.put_new = lambda self, path, data: (tries.append(path), plain_put(self, path, data))[1]
heard = {}

def wide(count):
    return pa.table({"id": range(count), "name": [os.urandom(20_000).hex() for _ in range(count)]})

def ask(name, act):
    tries.clear()
    try:
        found = act()
    except sl.StrandlineError as error:
        heard[name] = [error.kind, error.message, error.fields, len(tries)]
    except BaseException as error:
        heard[name] = ["RAW " + type(error).__name__, str(error), {}, 0]
    else:
        heard[name] = [None, repr(found), {}, len(tries)]

lake = sl.Lake(root)
items = lake.table("items")
"""
READS = """
ask("to_arrow", lambda: items.to_arrow().num_rows)
ask("to_batches", lambda: sum(batch.num_rows for batch in items.to_batches()))
ask("sql", lambda: lake.sql("select count(*) from items").to_pylist())
ask("changes", lambda: items.changes().num_rows)
ask("history", lambda: len(items.history()))
ask("at", lambda: items.to_arrow(at=1).num_rows)
ask("status", lambda: (lake.status().state_fault, [sink.marks for sink in lake.status().sinks]))
ask("exact", lambda: lake.status(exact=True).tables[0].rows)
ask("plan", lambda: lake.plan().to_dict())
ask("vacuum --dry-run", lambda: lake.vacuum(dry_run=True).to_dict())
ask("export", lambda: items.export(out + "/export"))
ask("backup", lambda: lake.backup(out + "/backup").tables)
"""
WRITES = """
ask("create_table", lambda: lake.create_table("other", items.schema, key=["id"]))
ask("drop", lambda: lake.drop("items"))
ask("rename", lambda: lake.rename("items", "other"))
ask("upsert", lambda: items.upsert([{"id": 1, "name": "x"}]))
ask("delete", lambda: items.delete([1]))
ask("evolve", lambda: items.evolve(pa.schema([("more", pa.int64())])))
ask("configure", lambda: items.configure(keep="2d"))
ask("compact", lambda: items.compact(full=True))
ask("vacuum", lambda: items.vacuum(grace=0, keep=0))
ask("pin", lambda: items.pin())
ask("restore", lambda: items.restore(1))
ask("purge", lambda: items.purge([1]))
open(out + "/in.jsonl", "w").write('{"id": 5}\\n')
ask("ingest", lambda: lake.ingest("items", [out + "/in.jsonl"]))
ask("import_table", lambda: lake.import_table("other", out + "/in.parquet", key=["id"]))
ask("export here", lambda: items.export(root + "-more/export"))
ask("backup here", lambda: lake.backup(root + "-more/backup"))
ask("another lake", lambda: sl.Lake(root + "-more/lake").create_table("items", items.schema))
"""
SINKS = """
def error_of(report):
    failed = {each["name"]: each["error"] for each in report.to_dict()["consumers"] if each["error"]}
    error = failed["archive"]
    raise getattr(sl, error["kind"])(error["message"])

lake.sink("archive", "items", to=sl.ParquetSink(out + "/sink"))
ask("tick", lambda: error_of(lake.tick()))
"""
TELL = "print(json.dumps(heard))"


@pytest.fixture
def place(tmp_path):
    """A lake with a folded table, a sink that has come some way, and a folder beside it; all writable again at the
    end."""
    lake = sl.Lake(tmp_path / "lake")
    items = lake.create_table("items", ITEMS, key=["id"], vnodes=4)
    for number in range(4):
        items.upsert([{"id": number, "name": "a"}])
    items.compact(full=True)
    lake.sink("archive", "items", to=sl.ParquetSink(str(tmp_path / "out" / "sink")))
    lake.tick()
    lake.state.database.close()
    items.upsert([{"id": 9, "name": "b"}])
    (tmp_path / "lake-more").mkdir()
    pa.parquet.write_table(pa.table({"id": [1]}), tmp_path / "out" / "in.parquet")
    yield tmp_path
    set_writable(tmp_path, True)


def close(place, *parts):
    """Take the right to write away; the test is skipped where permission bits do not count whatever is tried."""
    set_writable(place / "lake", False, parts)
    set_writable(place / "lake-more", False)
    code = "import os, sys; print(int(os.access(sys.argv[1], os.W_OK)))"
    if told(BOUND, code, str(place / "lake-more")):
        pytest.skip("permission bits do not count here")


def test_a_lake_that_may_not_be_written_is_read_and_every_write_says_which_path_and_why(place):
    before = files_below(place / "lake")
    close(place)
    heard = told(BOUND, ASK + READS + WRITES + SINKS + TELL, str(place / "lake"), str(place / "out"))
    reads = READS.count("ask(")
    assert [[name, *said[:2]] for name, said in list(heard.items())[:reads] if said[0] is not None] == []
    assert heard["status"][1] == "(None, [{0: 4, 1: 4, 2: 4, 3: 4}])"
    for name, (kind, message, fields, tries) in list(heard.items())[reads:]:
        assert kind == "Unavailable", (name, kind, message)
        assert "Permission denied" in message and str(place / "lake") in message, (name, message)
        assert name == "tick" or fields["refusal"] == "EACCES", (name, fields)
        assert tries <= 1, (name, "a definite answer is not asked for again")
    assert files_below(place / "lake") == before


def test_a_file_system_that_can_only_be_read_is_read_and_says_so(place):
    (place / "lake-more").rmdir()
    heard = told(
        MOUNTED,
        str(place / "lake"),
        "read-only",
        ASK + READS + WRITES + SINKS + TELL,
        str(place / "lake"),
        str(place / "out"),
    )
    reads = READS.count("ask(")
    assert [[name, *said[:2]] for name, said in list(heard.items())[:reads] if said[0] is not None] == []
    for name, (kind, message, fields, _) in list(heard.items())[reads:]:
        if "here" not in name and name != "another lake":
            assert (kind, name == "tick" or fields["refusal"]) in (("Unavailable", "EROFS"), ("Unavailable", True)), (
                name
            )
            assert str(place / "lake") in message and "read-only" in message


FULL = """
fill = []
def grow(size):
    try:
        with open(f"{root}/fill-{size}", "wb", buffering=0) as file:
            fill.append(file.name)
            while file.write(b"x" * size) == size:
                pass
    except OSError:
        pass

ask("large", lambda: items.upsert(wide(200)))
for size in (65536, 512, 1):
    grow(size)
"""
FREED = """
for name in fill:
    os.remove(name)
ask("after", lambda: items.upsert([{"id": 77}]).rows)
ask("rows", lambda: items.to_arrow().num_rows)
ask("sinks", lambda: {each["error"] for each in lake.tick().to_dict()["consumers"]})
"""


def test_a_full_disk_is_said_with_the_path_and_work_goes_on_when_there_is_space(place):
    """The lake is copied to a small disk, which is filled."""
    small = place / "small"
    small.mkdir()
    make = "import shutil, sys; shutil.copytree(sys.argv[3], sys.argv[1])\n"
    writes = "\n".join(line for line in WRITES.splitlines() if line and "here" not in line and "another" not in line)
    state = (
        'ask("state", lambda: lake.state.database.bind("other"))\n'
        'ask("token", lambda: Tokens(lake.state.database).add("n", "reader"))\n'
    )
    code = make + ASK + FULL + writes + SINKS + state + READS + FREED + TELL
    heard = told(MOUNTED, str(small), "3000", code, str(small / "lake"), str(place / "out"), str(place / "lake"))
    free = {"compact", "purge", "tick", "state"}
    for name in [*heard][: [*heard].index("to_arrow")]:
        kind, message, fields, tries = heard[name]
        if name in free:
            assert not str(kind).startswith("RAW"), (name, kind, message)
            continue
        assert kind == "Unavailable", (name, kind, message)
        assert "No space left on device" in message and str(small / "lake") in message, (name, message)
        # The mark of an import is an empty file, which has room.
        most = 2 if name == "import_table" else 1
        assert fields["refusal"] == "ENOSPC" and tries <= most, (name, fields, tries)
    for name in [*heard][[*heard].index("to_arrow") :]:
        assert heard[name][0] is None, (name, heard[name])
    assert heard["rows"][1] == "6" and heard["sinks"][1] == "{None}"


def test_a_file_that_may_not_become_so_large_leaves_nothing_behind(place):
    code = 'ask("large", lambda: items.upsert(wide(50)))\n'
    code += 'ask("small", lambda: items.upsert([{"id": 1, "name": "c"}]).seq)\n'
    before = files_below(place / "lake" / "tables")
    heard = told(LIMITED, "200000", ASK + code + TELL, str(place / "lake"), str(place / "out"))
    kind, message, fields, _ = heard["large"]
    assert (kind, fields["refusal"]) == ("Unavailable", "EFBIG") and str(place / "lake") in message
    assert heard["small"][:2] == [None, "6"]
    assert len(files_below(place / "lake" / "tables") - before) == 2  # the small one's rows and its commit


@pytest.mark.parametrize("part", ["catalog", "tables", "state.db"])
def test_a_part_that_may_not_be_written_is_named(place, part):
    close(place, part)
    asks = {
        "catalog": 'ask("x", lambda: lake.rename("items", "other"))\n',
        "tables": 'ask("x", lambda: items.upsert([{"id": 1, "name": "x"}]))\n',
        "state.db": SINKS.replace('"tick"', '"x"'),
    }
    heard = told(BOUND, ASK + asks[part] + TELL, str(place / "lake"), str(place / "out"))
    kind, message, *_ = heard["x"]
    assert kind == "Unavailable" and f"no permission to write {place / 'lake' / part}" in message


def test_what_may_not_be_read_is_unavailable_and_is_never_taken_for_missing(place):
    """A folder that cannot be listed would count as empty, and vacuum would take what its pins hold."""
    lake = sl.Lake(place / "lake")
    items = lake.table("items")
    items.pin(0, name="mine")
    data = place / "lake" / items.entry.folder / "log"
    [log_file] = [data / file.path for _, file in items.log.refresh().by_seq[-1:]]
    code = (
        ASK
        + 'ask("x", lambda: items.to_arrow().num_rows)\nask("vacuum", lambda: items.vacuum(grace=0, keep=0))\n'
        + TELL
    )
    for closed in (place / "lake" / "pins" / items.entry.generation, log_file):
        mode = closed.stat().st_mode
        closed.chmod(0)
        try:
            if told(BOUND, "import os, sys; print(int(os.access(sys.argv[1], os.R_OK)))", str(closed)):
                pytest.skip("permission bits do not count here")
            heard = told(BOUND, code, str(place / "lake"), str(place / "out"))
        finally:
            closed.chmod(mode)
        asked = "x" if closed == log_file else "vacuum"
        kind, message, *_ = heard[asked]
        assert kind == "Unavailable" and str(closed) in message and "Permission denied" in message, heard
    assert items.to_arrow(at=0).num_rows == 0


VERBS = {
    "read": [
        "status", "doctor", "query 'select count(*) from items'", "plan", "table list", "table show items",
        "vacuum --dry-run", "tick --dry-run", "export items OUT/a", "backup OUT/b", "sink list", "token list",
    ],
    "write": [
        "table drop items --yes", "table rename items other", "table set items keep=2d", "ingest items OUT/in.jsonl",
        "ingest other OUT/in.jsonl --key id", "compact --all", "vacuum", "vacuum --grace 0s --keep 0s --yes", "tick",
        "table restore items --at 1", "table purge items 1 --yes", "table pin items",
        "table drop-column items qty --yes", "table create new --key id --schema id:int64",
        "table import other OUT/in.parquet --key id", "export items LAKE-more/x", "backup LAKE-more/x",
        "token add me --role reader", "init LAKE-more/y",
    ],
}  # fmt: skip
SAY = """
import json, shlex, sys
from typer.testing import CliRunner
from strandline.cli import app
root, out, verbs = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
open(out + "/in.jsonl", "w").write('{"id": 5}\\n')
said = {}
for verb in verbs:
    words = shlex.split(verb.replace("OUT", out).replace("LAKE", root))
    place = [] if words[0] == "init" else ["--lake", root]
    ended = CliRunner().invoke(app, [*place, *words])
    said[verb] = [ended.exit_code, ended.output + ended.stderr]
print(json.dumps(said))
"""


def test_every_verb_on_a_lake_that_may_not_be_written(place):
    close(place)
    verbs = VERBS["read"] + VERBS["write"]
    said = told(BOUND, SAY, str(place / "lake"), str(place / "out"), json.dumps(verbs))
    for verb, (code, text) in said.items():
        assert not any(word in text for word in ("Traceback", "Internal", "may have landed", "Errno")), (verb, text)
        if verb in VERBS["read"]:
            assert code == 0, (verb, text)
        else:
            assert code != 0 and "no permission to write" in text and str(place / "lake") in text, (verb, code, text)
            assert "Let this user write there" in text, (verb, text)
            assert not any(word in text for word in ("doctor", "no checkpoint")), (verb, text)


# --- a writer that was paused -----------------------------------------------------------------------------------

PAUSED = """
import os, signal, sys
import strandline as sl
from strandline.storage import local

path, moment = sys.argv[1:3]
items = sl.Lake(path).table("items")
plain = getattr(local.os, moment)
paused = []
def pause(*words, **more):
    if not paused and (moment != "open" or ".parquet" in str(words[0])):
        paused.append(1)
        os.kill(os.getpid(), signal.SIGSTOP)
    return plain(*words, **more)
setattr(local.os, moment, pause)
try:
    print("seq", items.upsert([{"id": 50, "name": "late"}]).seq)
except sl.StrandlineError as error:
    print(error.kind, error.hint)
"""


@pytest.mark.parametrize("moment", ["open", "rename", "link"])
def test_a_writer_that_was_paused_for_longer_than_the_grace_time_meets_a_conflict(place, moment):
    lake = sl.Lake(place / "lake")
    items, head = lake.table("items"), lake.table("items").head
    with subprocess.Popen(
        [sys.executable, "-c", PAUSED, str(place / "lake"), moment],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as writer:
        _, status = os.waitpid(writer.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        lake.vacuum(grace=0, keep=0)
        os.kill(writer.pid, signal.SIGCONT)
        said, trace = writer.communicate(timeout=120)
    assert trace == ""
    assert said.startswith("Conflict Write again."), said
    assert 50 not in items.to_arrow(columns=["id"]).column(0).to_pylist()
    assert items.upsert([{"id": 50}]).rows == 1 and items.head > head
