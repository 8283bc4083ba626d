"""Every verb has an example in its help, which the real parser takes."""

from __future__ import annotations

import shlex

import pytest
from test_json_documents import verbs
from typer.main import get_command
from typer.testing import CliRunner

from strandline.cli import app
from strandline.cli.examples import EXAMPLES

VERBS = list(verbs())


def test_every_verb_has_an_example_and_every_example_a_verb() -> None:
    assert sorted(EXAMPLES) == sorted(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_an_example_is_parsed(verb: str) -> None:
    program, *words = shlex.split(EXAMPLES[verb])
    command = get_command(app)
    context = command.make_context(program, list(words))
    rest = context._protected_args + context.args
    for _ in verb.split():
        name, command, rest = command.resolve_command(context, rest)  # type: ignore[attr-defined]
        assert command is not None
        context = command.make_context(name, rest, parent=context)
        rest = getattr(context, "_protected_args", []) + context.args


def test_help_shows_the_example_and_no_type_for_a_flag() -> None:
    said = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["status", "--help"]).output
    assert "Example: strandline status --exact" in said
    assert "bool" not in said and "bool" not in CliRunner().invoke(app, ["--help"]).output
