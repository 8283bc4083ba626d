"""The documentation says what the code does: examples run, and every name a user meets is described."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from strandline import errors
from strandline.cli import app
from strandline.model.settings import TableSettings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_every_setting_of_a_table_is_documented() -> None:
    text = (DOCS / "maintenance.md").read_text()
    care = {**TableSettings().shown(), "time": "none"}
    assert [name for name, value in care.items() if f"| `{name}` | {value} |" not in text] == []


def test_every_error_kind_is_documented() -> None:
    text = (DOCS / "errors.md").read_text()
    kinds = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) >= 8
    assert [kind for kind in kinds if f"`{kind}`" not in text] == []


def test_every_verb_and_its_options_are_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    missing: list[str] = []
    seen: list[str] = []

    def visit(command: object, name: str) -> None:
        verbs = command.list_commands(None) if hasattr(command, "list_commands") else []
        for verb in verbs:
            visit(command.get_command(None, verb), f"{name} {verb}".strip())  # type: ignore[attr-defined]
        seen.append(name)
        if not verbs:
            if f"strandline {name}" not in text:
                missing.append(name)
            for option in command.params:  # type: ignore[attr-defined]
                flags = [flag for flag in option.opts if flag.startswith("--")]
                missing.extend(f"{name} {flag}" for flag in flags if f"`{flag}" not in text)

    visit(get_command(app), "")
    assert {"tick", "table purge", "sink add"} <= set(seen)
    assert missing == []


def test_every_environment_variable_is_documented() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    names = set(re.findall(r"STRANDLINE_[A-Z_]+", source))
    documented = "\n".join(path.read_text() for path in DOCS.glob("*.md"))
    assert names
    assert sorted(name for name in names if name not in documented) == []


@pytest.mark.parametrize(
    "page", sorted(p.relative_to(ROOT).as_posix() for p in [ROOT / "README.md", *DOCS.rglob("*.md")])
)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target
