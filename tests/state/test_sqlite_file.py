"""The SQLite file of a state: private, safe against power loss, and honest about damage."""

import contextlib
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import update

import strandline as sl
from states import epoch_of, path_of, raise_epoch
from strandline.state.database import Database, meta
from strandline.state.marks import Marks
from strandline.state.sqlite_file import PrivateCopy, file_error, kind_of, write_refusal
from support import refused


@pytest.fixture
def sqlite_url(tmp_path):
    return f"sqlite:///{tmp_path / 'state.db'}"


def test_a_sqlite_file_survives_power_loss_and_lets_readers_go_on(sqlite_url):
    with Database(sqlite_url) as state, state.transaction() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2


@pytest.mark.parametrize("leftover", [True, False])
def test_a_file_that_is_deleted_in_use_is_noticed_before_and_after_a_write(sqlite_url, leftover):
    with Database(sqlite_url) as state:
        state.bind("lake-a")
        with refused(sl.Corrupt), state.transaction() as connection:
            connection.execute(update(meta).values(epoch=9))
            for path in path_of(sqlite_url).parent.glob("state.db*"):
                if path.name == "state.db" or not leftover:
                    path.unlink()
        with refused(sl.Corrupt):
            epoch_of(state)
        with Database(sqlite_url) as fresh:
            assert (fresh.lake_id(), epoch_of(fresh)) == (None, 0), "empty, which its lake will notice"
        with refused(sl.Corrupt), state.transaction():
            raise AssertionError("a block whose writes would be lost must not run")


@pytest.mark.parametrize("content", [b"not a database, only long enough to look at" * 100, b"SQLite format 3\0" * 300])
def test_a_file_that_is_no_database_is_corrupt_and_left_alone(sqlite_url, content):
    path_of(sqlite_url).write_bytes(content)
    with refused(sl.Corrupt):
        Database(sqlite_url)
    assert path_of(sqlite_url).read_bytes() == content


def test_a_damaged_page_is_corrupt(sqlite_url):
    with Database(sqlite_url) as state:
        Marks(state)
    path = path_of(sqlite_url)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with refused(sl.Corrupt):
        Database(sqlite_url)


def test_a_database_of_something_else_is_refused_and_left_alone(sqlite_url):
    with sqlite3.connect(path_of(sqlite_url)) as connection:
        connection.execute("CREATE TABLE photos (id INTEGER)")
    connection.close()
    before = path_of(sqlite_url).read_bytes()
    with refused(sl.Invalid) as caught:
        Database(sqlite_url)
    assert "photos" in str(caught.value)
    assert path_of(sqlite_url).read_bytes() == before


def test_an_empty_file_becomes_a_state(sqlite_url):
    path_of(sqlite_url).touch()
    with Database(sqlite_url) as state:
        assert epoch_of(state) == 0


def test_a_read_only_file_can_be_read_and_a_write_is_unavailable(sqlite_url):
    with Database(sqlite_url) as state:
        raise_epoch(state, 3)
        only = f"sqlite:///file:{path_of(sqlite_url)}?mode=ro&uri=true"
        with Database(only) as reader:
            assert epoch_of(reader) == 3
            with refused(sl.Unavailable):
                raise_epoch(reader, 4)
        assert epoch_of(state) == 3


@pytest.mark.parametrize("name", ["missing/state.db", "."])
def test_a_place_where_no_file_can_be_is_unavailable(tmp_path, name):
    with refused(sl.Unavailable):
        Database(f"sqlite:///{tmp_path / name}")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_can_be_written_needs_no_copy(sqlite_url, tmp_path):
    with Database(sqlite_url):
        assert write_refusal(str(path_of(sqlite_url))) is None
        assert PrivateCopy.if_needed(str(path_of(sqlite_url))) is None
    assert PrivateCopy.if_needed(str(tmp_path / "missing.db")) is None


def test_a_copy_is_taken_anew_when_the_file_has_changed(sqlite_url):
    copy = PrivateCopy(str(path_of(sqlite_url)))
    with Database(sqlite_url) as state:
        for epoch in (3, 4):
            raise_epoch(state, epoch)
            for _ in range(2):
                with contextlib.closing(copy.connect()) as connection:
                    assert connection.execute("SELECT epoch FROM strandline_meta").fetchall() == [(epoch,)]
        assert epoch_of(state) == 4
    copy.close()
    assert not Path(copy._folder).exists()


def error_of(code, kind=sqlite3.OperationalError):
    error = kind("words")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_CORRUPT, sl.Corrupt),
        (sqlite3.SQLITE_NOTADB, sl.Corrupt),
        (sqlite3.SQLITE_BUSY, sl.Unavailable),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, sl.Unavailable),
        (sqlite3.SQLITE_CANTOPEN, sl.Unavailable),
        (sqlite3.SQLITE_IOERR_FSYNC, sl.Unavailable),
        (sqlite3.SQLITE_ERROR, sl.Corrupt),
        (sqlite3.SQLITE_CONSTRAINT, sl.Internal),
    ],
)
def test_an_error_of_sqlite_has_the_kind_that_says_what_to_do(code, kind):
    assert kind_of(error_of(code))[0] is kind


def test_a_full_disk_is_said_with_the_path(tmp_path):
    path = str(tmp_path / "state.db")
    found = file_error(error_of(sqlite3.SQLITE_FULL), path)
    assert (type(found), found.fields["path"], found.fields["refusal"]) == (sl.Unavailable, path, "ENOSPC")
    assert file_error(error_of(sqlite3.SQLITE_CORRUPT), path) is None
    assert file_error(error_of(sqlite3.SQLITE_IOERR), path) is None, "nothing is in the way there"
