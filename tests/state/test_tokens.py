"""Tokens: shown once, kept as hashes, known until they are revoked."""

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

import strandline as sl
from receiving import asking
from strandline.cli import app
from strandline.server import auth
from strandline.server.app import make_app
from strandline.state.database import Database
from strandline.state.tokens import Tokens, find_token
from support import refused


@pytest.fixture
def tokens(state_url):
    with Database(state_url, timeout_s=10) as state:
        yield Tokens(state)


def test_a_token_has_its_role_until_it_is_revoked(tokens):
    writer, reader = tokens.add("edge", "writer"), tokens.add("dash", "reader")
    assert writer != reader
    assert [(token.name, token.role) for token in tokens.all()] == [("dash", "reader"), ("edge", "writer")]
    assert find_token(writer, tokens.hashes()).role == "writer"
    assert find_token(reader, tokens.hashes()).role == "reader"
    tokens.revoke("edge")
    assert find_token(writer, tokens.hashes()) is None
    assert find_token(reader, tokens.hashes()).role == "reader"
    with refused(sl.NotFound, token="edge"):
        tokens.revoke("edge")


def test_what_is_no_token_has_no_role(tokens):
    secret = tokens.add("edge", "admin")
    for other in ("", secret[:-1], secret + "x", secret.upper(), tokens.hashes()[0].hash, "ä"):
        assert find_token(other, tokens.hashes()) is None


def test_a_name_is_taken_until_its_token_is_revoked(tokens):
    first = tokens.add("edge", "writer")
    with refused(sl.Invalid, token="edge"):
        tokens.add("edge", "admin")
    assert find_token(first, tokens.hashes()).role == "writer"
    tokens.revoke("edge")
    assert tokens.add("edge", "admin") != first


def test_of_threads_that_add_one_name_one_wins(tokens):
    def add(_):
        try:
            return tokens.add("edge", "writer")
        except sl.Invalid:
            return None

    with ThreadPoolExecutor(8) as pool:
        secrets = [secret for secret in pool.map(add, range(8)) if secret]
    assert len(secrets) == 1
    assert find_token(secrets[0], tokens.hashes()).role == "writer"


@pytest.mark.parametrize(
    ("name", "role"),
    [("", "writer"), ("a b", "writer"), ("x" * 129, "writer"), (7, "writer"), ("a", "root"), ("a", "")],
)
def test_odd_names_and_roles_are_refused(tokens, name, role):
    with refused():
        tokens.add(name, role)
    assert tokens.all() == []


def test_the_state_holds_no_secret(tmp_path):
    with Database(f"sqlite:///{tmp_path}/state.db") as state:
        secret = Tokens(state).add("edge", "writer")
    with sqlite3.connect(tmp_path / "state.db") as connection:
        kept = connection.execute("SELECT * FROM strandline_tokens").fetchall()
    assert secret not in repr(kept)
    assert secret.removeprefix("sl_") not in repr(kept)


@pytest.fixture
def run(lake, items):
    def call(*words):
        result = CliRunner().invoke(app, ["token", *words, "--lake", lake.storage.uri, "--json"])
        return result.exit_code, json.loads(result.stdout)

    return call


def test_the_verbs_add_list_and_revoke(lake, run):
    code, made = run("add", "edge", "--role", "writer")
    assert (code, made["role"]) == (0, "writer")
    assert find_token(made["token"], Tokens(lake.state.database).hashes()).role == "writer"
    code, listed = run("list")
    assert [(each["name"], each["role"]) for each in listed["tokens"]] == [("edge", "writer")]
    assert made["token"] not in json.dumps(listed)
    assert run("add", "edge", "--role", "writer")[1]["error"]["kind"] == "Invalid"
    assert run("revoke", "edge")[0] == 0
    code, missing = run("revoke", "edge")
    assert (code, missing["error"]["kind"]) == (1, "NotFound")
    assert run("list")[1]["tokens"] == []


def test_that_there_was_a_token_is_kept_for_good(tokens):
    assert not tokens.were_made()
    secret = tokens.add("edge", "writer")
    assert tokens.were_made()
    tokens.revoke("edge")
    assert tokens.were_made()
    assert (tokens.all(), tokens.hashes()) == ([], [])
    assert find_token(secret, tokens.hashes()) is find_token("", tokens.hashes()) is None
    for name in ("", "edge"):
        with refused(sl.NotFound):
            tokens.revoke(name)


def test_a_token_of_a_state_that_noted_none_is_noted_when_it_goes(tokens):
    tokens.add("edge", "writer")
    with tokens._state.transaction() as connection:
        connection.execute(text("DELETE FROM strandline_tokens WHERE name = ''"))
    assert tokens.were_made()
    tokens.revoke("edge")
    assert tokens.were_made()


def test_a_server_that_has_seen_a_token_never_serves_without_one(lake, items, monkeypatch):
    monkeypatch.setattr(auth, "_FRESH_S", 0.0)
    tokens = Tokens(lake.state.database)
    with asking(make_app(lake, tokens=tokens)) as client:
        assert client.get("/status").status_code == 200
        secret = tokens.add("edge", "reader")
        assert client.get("/status").status_code == 401
        assert client.get("/status", headers={"Authorization": f"Bearer {secret}"}).status_code == 200
        tokens.revoke("edge")
        for headers in ({}, {"Authorization": f"Bearer {secret}"}, {"Authorization": "Bearer "}):
            assert client.get("/status", headers=headers).status_code == 401
        again = tokens.add("other", "reader")
        assert client.get("/status", headers={"Authorization": f"Bearer {again}"}).status_code == 200
        tokens.revoke("other")
    with asking(make_app(lake, tokens=tokens)) as client:
        assert client.get("/status").status_code == 401
