"""The log of the command line: what is shown, and how a line looks."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from strandline.cli import app
from strandline.cli.logs import set_up_logs

PIPELINE, SERVER, STATE = (logging.getLogger(f"strandline.{name}") for name in ("pipeline", "server", "state"))


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    logger = logging.getLogger("strandline")
    before = logger.level, list(logger.handlers), list(logging.getLogger("uvicorn").handlers)
    yield
    logger.setLevel(before[0])
    logger.handlers[:], logging.getLogger("uvicorn").handlers[:] = before[1], before[2]


def say_all() -> None:
    PIPELINE.error("a failed")
    SERVER.info("GET /status 200")
    SERVER.debug("GET /healthz 200")
    STATE.info("opened")
    STATE.warning("lease lost")


def test_without_a_level_a_person_sees_warnings_and_requests(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs(None, "text")
    say_all()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "info    strandline.server: GET /status 200",
        "warning strandline.state: lease lost",
    ]


@pytest.mark.parametrize(("level", "count"), [("debug", 5), ("info", 4), ("warning", 2), ("error", 1)])
def test_a_level_counts_for_all_packages(capsys: pytest.CaptureFixture[str], level: str, count: int) -> None:
    set_up_logs("debug", "text")
    set_up_logs(level, "text")  # type: ignore[arg-type]
    say_all()
    assert len(capsys.readouterr().err.splitlines()) == count


def test_a_line_of_json_has_the_fields_of_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("info", "json")
    PIPELINE.info("sent %d", 3, extra={"consumer": "archive", "rows": 3})
    document = json.loads(capsys.readouterr().err)
    assert document.pop("at").endswith("+00:00")
    assert document == {
        "level": "info", "logger": "strandline.pipeline", "message": "sent 3", "consumer": "archive", "rows": 3,
    }  # fmt: skip


def test_a_line_has_no_control_characters_and_no_passwords(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("info", "text")
    STATE.warning("%s is away\nand \x1b[31mred", "postgresql://ann:geheim@host/db")
    line = capsys.readouterr().err
    assert "geheim" not in line and "postgresql://ann:***@host/db" in line
    assert line.count("\n") == 1 and "\x1b" not in line


@pytest.mark.parametrize("place", ["before", "after", "environment"])
def test_the_options_stand_before_or_after_the_verb_or_in_the_environment(
    tmp_path_factory: pytest.TempPathFactory, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--log-level", "info", "--log-format", "json"]
    verb = ["init", str(tmp_path_factory.mktemp("lake"))]
    if place == "environment":
        monkeypatch.setenv("STRANDLINE_LOG_LEVEL", "info")
        monkeypatch.setenv("STRANDLINE_LOG_FORMAT", "json")
        words = []
    done = CliRunner().invoke(app, [*verb, *words] if place == "after" else [*words, *verb])
    assert done.exit_code == 0, done.output
    (handler,) = logging.getLogger("strandline").handlers
    assert (vars(handler)["_level"], vars(handler)["_form"]) == ("info", "json")


def test_a_level_that_is_none_is_a_usage_error() -> None:
    assert CliRunner().invoke(app, ["--log-level", "loud", "demo"]).exit_code == 2
