"""The state database: opened by many at once, bound to one lake, honest about what went wrong."""

import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from sqlalchemy import Column, Integer, MetaData, Table, insert, make_url, select, text, update

import strandline as sl
from states import epoch_of, raise_epoch
from strandline.state import database as states
from strandline.state.consumers import Registry
from strandline.state.database import Database, meta, now_s
from strandline.state.leases import Leases
from support import free_ports, python, refused

SECRET = "hunter2-4711-swordfish"


@pytest.fixture
def state(state_url):
    with Database(state_url, timeout_s=10) as opened:
        yield opened


def test_a_new_state_belongs_to_no_lake_and_what_is_written_stays(state_url):
    with Database(state_url) as state:
        assert (state.lake_id(), epoch_of(state)) == (None, 0)
        state.bind("lake-a")
        assert raise_epoch(state, 3) == 3
    with Database(state_url) as again:
        assert (again.lake_id(), epoch_of(again)) == ("lake-a", 3)


def test_the_state_of_one_lake_is_not_another_lakes(state):
    state.bind("lake-a")
    state.bind("lake-a")
    with refused(sl.Conflict, lake="lake-b", found="lake-a"):
        state.bind("lake-b")
    assert state.lake_id() == "lake-a"


def test_racing_threads_bind_one_lake_and_raise_the_epoch_to_the_highest(state):
    def work(number):
        raise_epoch(state, number)
        try:
            state.bind(f"lake-{number}")
            return number
        except sl.Conflict:
            return None

    with ThreadPoolExecutor(8) as pool:
        bound = [number for number in pool.map(work, range(1, 17)) if number is not None]
    assert len(bound) == 1
    assert state.lake_id() == f"lake-{bound[0]}"
    assert epoch_of(state) == 16


OPEN = """
from strandline.state.leases import Leases
from strandline.state.marks import Marks
from strandline.state.database import Database
def work(number, url):
    with Database(url) as state:
        Marks(state), Leases(state)
        state.bind("lake")
        return state.lake_id()
"""


def test_processes_that_open_a_new_state_at_once_all_succeed(state_url, in_processes):
    assert [lake_id for _, lake_id in in_processes(OPEN, 5, state_url)] == ["lake"] * 5
    with Database(state_url) as state:
        assert state.lake_id() == "lake"


def test_a_transaction_that_fails_leaves_nothing(state):
    with pytest.raises(ZeroDivisionError), state.transaction() as connection:
        connection.execute(update(meta).values(epoch=9))
        _ = 1 // 0
    assert epoch_of(state) == 0


def test_a_reader_sees_one_moment_and_keeps_no_writer_waiting(state):
    with state.reading() as connection:
        before = connection.execute(select(meta.c.epoch)).scalar_one()
        assert raise_epoch(state, 4) == 4
        assert connection.execute(select(meta.c.epoch)).scalar_one() == before == 0
    assert epoch_of(state) == 4


def test_a_reader_cannot_write_in_postgresql(postgres_url):
    with Database(postgres_url) as state, refused(sl.Unavailable), state.reading() as connection:
        connection.execute(update(meta).values(epoch=9))


def test_the_clock_is_the_databases_whatever_the_client_believes(state, monkeypatch):
    true_s = time.time()
    monkeypatch.setattr(time, "time", lambda: true_s + 1e6)
    with state.transaction() as connection:
        first = now_s(connection)
        time.sleep(0.05)
        second = now_s(connection)
    assert abs(first - true_s) < 60
    assert 0.03 < second - first < 10, "read when asked, not when the transaction began"


def test_a_table_is_made_once_by_whoever_needs_it_first(state):
    own = Table("strandline_test", MetaData(), Column("id", Integer, primary_key=True))
    state.ensure(own)
    with state.transaction() as connection:
        connection.execute(insert(own).values(id=1))
    state.ensure(own)
    with state.reading() as connection:
        assert connection.execute(select(own.c.id)).scalars().all() == [1]


def test_one_who_creates_a_table_waits_for_another_who_does(state, state_url):
    own = Table("strandline_test", MetaData(), Column("id", Integer, primary_key=True))
    with Database(state_url) as other, ThreadPoolExecutor(1) as pool:
        with state.transaction() as connection:
            state._create_tables(connection, own)
            waiting = pool.submit(other.ensure, own)
            time.sleep(0.1)
            assert not waiting.done()
        waiting.result()


def test_a_state_of_a_newer_format_is_refused(state_url):
    with Database(state_url) as state, state.transaction() as connection:
        connection.execute(update(meta).values(format=states.FORMAT + 1))
    with refused(sl.Invalid, format=states.FORMAT + 1) as caught:
        Database(state_url)
    assert "Upgrade" in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM strandline_meta",
        "ALTER TABLE strandline_meta DROP COLUMN epoch",
        "ALTER TABLE strandline_meta RENAME COLUMN lake_id TO x",
    ],
)
def test_a_state_that_is_not_as_it_was_made_is_corrupt(state_url, damage):
    with Database(state_url) as state, state.transaction() as connection:
        connection.execute(text(damage))
    with refused(sl.Corrupt):
        Database(state_url)


def test_a_table_that_vanished_is_corrupt(state):
    registry = Registry(state)
    with state.transaction() as connection:
        connection.execute(text("DROP TABLE strandline_consumers"))
    with refused(sl.Corrupt):
        registry.all()


def test_a_lock_that_is_not_got_in_time_is_unavailable(state, state_url):
    with Database(state_url, timeout_s=0.2) as other, state.transaction() as connection:
        connection.execute(update(meta).values(epoch=1))
        with refused(sl.Unavailable):
            raise_epoch(other, 2)
    assert raise_epoch(state, 2) == 2


# --- which state -----------------------------------------------------------------------------------------------


def test_importing_the_package_loads_no_database_library():
    done = python(
        "import sys, strandline; print([n for n in ('sqlalchemy', 'psycopg', 'sqlite3') if n in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stderr


# --- PostgreSQL ------------------------------------------------------------------------------------------------


def secretive(error):
    """Nothing that a user or a log may see of an error has the password."""
    shown = "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
    return SECRET not in shown


def test_a_server_that_is_down_is_unavailable_and_no_password_is_shown(tmp_path):
    (port,) = free_ports(1)
    for url in (
        f"postgresql://ann:{SECRET}@127.0.0.1:{port}/lake",
        f"postgres://ann@127.0.0.1:{port}/lake?password={SECRET}",
        f"postgresql:///lake?host={tmp_path}&user=ann&password={SECRET}",
    ):
        with refused(sl.Unavailable) as caught:
            Database(url, timeout_s=5)
        assert "postgresql://" in str(caught.value) and "lake" in str(caught.value)
        assert secretive(caught.value)


def test_a_password_that_the_driver_repeats_is_taken_out(postgres, monkeypatch):
    def connect(*_, **__):
        raise psycopg.OperationalError(f"no way with password '{SECRET}'")

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Connection, "connect", connect)
        patch.setattr(psycopg, "connect", connect)
        with refused(sl.Unavailable) as caught:
            Database(f"postgresql://ann:{SECRET}@127.0.0.1/lake")
    assert "***" in str(caught.value) and secretive(caught.value)


def test_a_state_does_not_show_its_password(postgres_url):
    url = make_url(postgres_url).set(password=SECRET).render_as_string(hide_password=False)
    with Database(url) as state:
        assert SECRET not in repr(state) + str(state) + state.shown
        assert repr(state).startswith("Database('postgresql://postgres@")
        with refused(sl.Conflict) as caught:
            state.bind("a")
            state.bind("b")
        assert secretive(caught.value)


@pytest.mark.parametrize(
    ("change", "kind"),
    [({"database": "nowhere"}, sl.Unavailable), ({"query": {"colour": "red"}}, sl.Invalid)],
)
def test_an_address_that_the_server_or_the_driver_refuses(postgres, change, kind):
    url = make_url(postgres)
    change = {**change, "query": {**url.query, **change.get("query", {})}}
    with refused(kind) as caught:
        Database(url.set(password=SECRET, **change))
    assert secretive(caught.value)


def test_a_user_who_may_not_create_tables_is_told_so(postgres_url):
    schema = make_url(postgres_url).query["options"].partition("=")[2]
    name = f"u{schema}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN")
        admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {name}")
    with refused(sl.Invalid):
        Database(make_url(postgres_url).set(username=name))


def test_other_tables_of_a_shared_database_do_not_matter(postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("CREATE TABLE photos (id int)")
        admin.execute("CREATE TABLE meta (id int)")
    with Database(postgres_url) as state:
        assert raise_epoch(state, 1) == 1


def test_a_missing_driver_is_unavailable_with_the_command_to_install_it(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "psycopg"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with refused(sl.Unavailable) as caught:
        Database(f"postgresql://ann:{SECRET}@h/d")
    assert "pip install" in caught.value.hint and secretive(caught.value)


def end_sessions(url):
    """As a server that restarts does to its clients."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )


def test_a_connection_lost_between_transactions_is_replaced(postgres_url):
    with Database(postgres_url) as state:
        raise_epoch(state, 1)
        end_sessions(postgres_url)
        assert raise_epoch(state, 2) == 2


def test_a_connection_lost_inside_a_transaction_is_unavailable_and_nothing_of_it_stays(postgres_url):
    with Database(postgres_url) as state:
        with refused(sl.Unavailable), state.transaction() as connection:
            connection.execute(update(meta).values(epoch=9))
            end_sessions(postgres_url)
            connection.execute(update(meta).values(epoch=10))
        with refused(sl.Unavailable), state.transaction() as connection:
            connection.execute(update(meta).values(epoch=9))
            end_sessions(postgres_url)
        assert epoch_of(state) == 0


def test_a_client_that_stalls_inside_a_transaction_does_not_stop_the_others(postgres_url):
    with Database(postgres_url, timeout_s=0.3) as stalled, Database(postgres_url, timeout_s=20) as other:
        with refused(sl.Unavailable), stalled.transaction() as connection:
            connection.execute(select(meta).with_for_update())
            assert raise_epoch(other, 3) == 3, "it waits until the server ends the other's transaction"
            connection.execute(update(meta).values(epoch=1))
        assert epoch_of(other) == 3


def test_threads_beyond_the_pool_wait_for_a_connection(state):
    Leases(state)
    with ThreadPoolExecutor(24) as pool:
        assert max(pool.map(lambda to: raise_epoch(state, to), range(48))) == 47
