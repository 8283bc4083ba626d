"""The files of a state can be read by their owner alone."""

import sqlite3
import stat

import pytest

import strandline as sl
from strandline.state.database import Database
from support import start_python


@pytest.fixture
def state(state_url):
    with Database(state_url, timeout_s=10) as opened:
        yield opened


def modes(folder):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


WATCHED = """
import os, sys, threading
from strandline.state.database import Database
from strandline.state.tokens import Tokens
os.umask(0)
with Database(f"sqlite:///{sys.argv[1]}/state.db") as state:
    Tokens(state).add("edge", "writer")
    with state.transaction() as connection:
        found = [f"{entry.name}:{entry.stat().st_mode & 0o777:o}" for entry in os.scandir(sys.argv[1])]
        print(*sorted(found))
"""


def test_the_files_of_a_state_are_private_also_where_files_usually_are_not(tmp_path):
    process = start_python(WATCHED, str(tmp_path))
    out, err = process.communicate(timeout=60)
    assert out.split() == ["state.db-shm:600", "state.db-wal:600", "state.db:600"], err
    assert modes(tmp_path) == {"state.db": 0o600}


def test_a_state_is_private_before_anything_is_in_it(tmp_path, monkeypatch):
    found = []

    def look(*_, **__):
        found.append(modes(tmp_path))
        raise sqlite3.OperationalError("stop here")

    monkeypatch.setattr(sqlite3, "connect", look)
    monkeypatch.setattr(sqlite3.dbapi2, "connect", look)
    with pytest.raises(sl.StrandlineError):
        Database(f"sqlite:///{tmp_path}/state.db")
    assert found[0] == {"state.db": 0o600}


@pytest.mark.parametrize(("before", "after"), [(0o644, 0o600), (0o666, 0o660), (0o664, 0o660), (0o600, 0o600)])
def test_a_state_that_others_could_read_becomes_private(tmp_path, before, after):
    url = f"sqlite:///{tmp_path}/state.db"
    with Database(url):
        pass
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(before)
    with Database(url) as state, state.transaction():
        assert set(modes(tmp_path).values()) == {after}
