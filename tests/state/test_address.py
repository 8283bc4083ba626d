"""The address of a state: what may be one, and what is shown of it."""

import traceback

import pytest

import strandline as sl
from states import raise_epoch
from strandline.state.address import file_of, parse_url, public_url, secrets_of
from strandline.state.database import Database
from support import refused

SECRET = "hunter2-4711-swordfish"


@pytest.mark.parametrize(
    "url",
    [
        "", "/tmp/state.db", "state.db", f"mysql://u:{SECRET}@h/d", f"postgresql+psycopg2://u:{SECRET}@h/d",
        "sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true", "sqlite:///file::memory:?uri=true",
        f"postgresql://u:{SECRET}@h:port/d", None, 7, b"sqlite:///x",
    ],
)  # fmt: skip
def test_what_is_no_lasting_database_is_refused_without_repeating_it(url):
    with refused(sl.Invalid) as caught:
        Database(url)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_relative_path_stays_where_it_was_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = Database("sqlite:///state.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    state.close()
    assert raise_epoch(state, 2) == 2
    state.close()
    assert [path.name for path in tmp_path.rglob("state.db")] == ["state.db"]
    assert (tmp_path / "state.db").is_file()


@pytest.mark.parametrize(
    ("url", "shown", "secrets"),
    [
        (f"postgres://me:{SECRET}@host:5433/db", "postgresql://me@host:5433/db", [SECRET]),
        (f"postgresql://host/db?password={SECRET}", "postgresql://host/db", [SECRET]),
        ("postgresql:///db?host=/run/pg", "postgresql:///run/pg/db", []),
        (f"postgresql+psycopg://h/db?sslpassword={SECRET}&sslpassword=other", "postgresql://h/db", [SECRET, "other"]),
        ("sqlite:////a b/state.db", "sqlite:////a b/state.db", []),
    ],
)
def test_what_is_shown_of_an_address_has_no_secret(url, shown, secrets):
    parsed = parse_url(url)
    assert (public_url(parsed), secrets_of(parsed)) == (shown, secrets)
    assert SECRET not in public_url(parsed)


def test_the_file_of_an_address_is_known_however_it_is_named():
    assert file_of(parse_url("sqlite:////a/state.db")) == "/a/state.db"
    assert file_of(parse_url("sqlite:///file:/a/state.db?mode=ro&uri=true")) == "/a/state.db"
    assert file_of(parse_url("postgresql://host/db")) is None


def test_each_database_has_one_driver():
    schemes = ("postgres", "postgresql", "postgresql+psycopg")
    assert {parse_url(f"{scheme}://host/db").drivername for scheme in schemes} == {"postgresql+psycopg"}
    assert parse_url("sqlite:////a.db") == parse_url("sqlite+pysqlite:////a.db")
