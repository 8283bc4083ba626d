"""Spill folders: private while a process lives, gone afterwards."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import time

import pytest

from strandline.engines import temp_folder
from support import environment

HOLD = """
import sys
import strandline as sl
lake = sl.Lake(sys.argv[1], cache_bytes=64 << 20)
with lake.duck.transaction() as cursor:
    cursor.execute("CREATE TEMP TABLE t AS SELECT range AS a, hash(range) AS b FROM range(8_000_000)")
    print("spilled", flush=True)
    sys.stdin.readline()
"""


def folders(place):
    return sorted(name for name in os.listdir(place) if name.startswith("strandline"))


@pytest.fixture
def place(tmp_path):
    found = tmp_path / "tmp"
    found.mkdir(mode=0o777)
    return found


def spilling(tmp_path, place):
    """A process that has spilled rows and goes on, and the folder that is its own."""
    before = folders(place)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lake")],
        env=environment(TMPDIR=str(place)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "spilled\n", process.stderr.read()
    [name] = set(folders(place)) - set(before)
    [inner] = set(os.listdir(place / name)) - {"lock"}
    assert os.listdir(place / name / inner)
    return process, place / name


def test_what_spills_can_be_read_by_its_owner_alone_and_goes_with_the_process(tmp_path, place):
    process, folder = spilling(tmp_path, place)
    assert str(process.pid) not in folder.name
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(folder / "lock").st_mode) == 0o600
    process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert folders(place) == []


def test_what_a_killed_process_spilled_is_removed_by_the_next_and_a_living_one_keeps_its_own(tmp_path, place):
    dead, _ = spilling(tmp_path, place)
    living, folder = spilling(tmp_path, place)
    assert len(folders(place)) == 2
    dead.send_signal(signal.SIGKILL)
    dead.communicate(timeout=30)
    code = "from strandline.engines import temp_folder; print(temp_folder.new_folder())"
    subprocess.run([sys.executable, "-c", code], env=environment(TMPDIR=str(place)), check=True, timeout=60)
    assert folders(place) == [folder.name]
    assert len(os.listdir(folder)) == 2
    living.communicate("\n", timeout=60)
    assert folders(place) == []


def test_a_folder_that_is_being_made_and_what_only_looks_like_one_stay(tmp_path, place, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    making, other = place / "strandline-spill-new", tmp_path / "elsewhere"
    old = place / "strandline-spill-old"
    for each in (making, other, old):
        each.mkdir()
    (other / "lock").touch()
    (place / "strandline-spill-link").symlink_to(other)
    (place / "strandline-spill-file").touch()
    os.utime(old, (time.time() - 7200,) * 2)
    temp_folder._remove_dead()
    assert folders(place) == [
        "strandline-spill-file",
        "strandline-spill-link",
        "strandline-spill-new",
    ]
    assert os.listdir(other) == ["lock"]


def test_a_forked_child_leaves_the_folder_of_its_parent():
    folder = os.path.dirname(temp_folder.new_folder())
    child = os.fork()
    if not child:
        code = 1
        try:
            temp_folder._remove(folder, os.getppid())
            code = 0 if os.path.dirname(temp_folder.new_folder()) != folder and os.path.exists(folder) else 1
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert os.path.exists(folder)
