"""One line for each request, with the name of its token and never the token."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import strandline as sl
from strandline.server.app import make_app

LOGGER = "strandline.server"


@pytest.fixture
def lake(tmp_path: Path) -> sl.Lake:
    lake = sl.Lake(tmp_path)
    lake.create_table("items", "id:int64", key=["id"])
    return lake


def test_a_request_is_logged_with_its_token_by_name(lake: sl.Lake, caplog: pytest.LogCaptureFixture) -> None:
    secret = lake.add_token("edge", "writer")
    with caplog.at_level(logging.INFO, LOGGER), TestClient(make_app(lake, tokens=lake.tokens())) as client:
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/x-ndjson"}
        answer = client.post("/ingest/items?key=hidden", content='{"id":1}\n', headers=headers)
        client.post("/ingest/items", content='{"id":1}\n', headers={"Authorization": "Bearer wrong"})
        client.get("/healthz")
    assert answer.status_code == 200
    first, second = [line for line in caplog.records if line.name == LOGGER]
    facts = ("method", "path", "status", "bytes", "token")
    assert [vars(first)[name] for name in facts] == ["POST", "/ingest/items", 200, len(answer.content), "edge"]
    assert (vars(second)["status"], vars(second)["token"]) == (401, None)
    assert secret not in caplog.text and "hidden" not in caplog.text


def test_a_path_cannot_forge_a_line(lake: sl.Lake, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER), TestClient(make_app(lake)) as client:
        client.get("/x%0A2026-01-01 GET /status 200")
    (line,) = [line for line in caplog.records if line.name == LOGGER]
    assert "\n" not in line.getMessage() and vars(line)["status"] == 404


def test_a_fault_is_logged_as_500(
    lake: sl.Lake, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("unexpected")

    app = make_app(lake)
    monkeypatch.setattr(lake, "status", fail)
    with caplog.at_level(logging.INFO, LOGGER), TestClient(app, raise_server_exceptions=False) as client:
        assert client.get("/status").status_code == 500
    (line,) = [line for line in caplog.records if line.name == LOGGER]
    assert vars(line)["status"] == 500
