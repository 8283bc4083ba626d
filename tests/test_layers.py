"""The rooms of the house, and who may call whom: a package imports itself and the rooms above it, nothing else.

Late imports and imports for type hints count like all others. There is no list of exceptions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import strandline

ROOT = Path(strandline.__file__).parent
MOST_LINES = 400
# From the top of the house down; rooms on one line do not meet, but for single modules.
LAYERS = [
    {"errors", "crash", "progress", "retry"},
    {"model"},
    {"storage"},
    {"engines"},
    {"tables", "state"},
    {"sinks"},
    {"consumers"},
    {"jobs", "query"},
    {"pipeline"},
    {"lake", "table", "spark_source"},
    {"server", "demo"},
    {"cli"},
]
PLACE = {room: at for at, rooms in enumerate(LAYERS) for room in rooms}
FILES = sorted(ROOT.rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def imported(path: Path) -> Iterator[str]:
    """The modules of ours that a file names in its imports, wherever they stand."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, inside = name.partition(".")
            while package == "strandline" and inside and inside not in MODULES:
                inside = inside.rpartition(".")[0]
            if package == "strandline" and inside:
                yield inside


def room_of(module: str) -> str:
    return module.partition(".")[0]


def is_allowed(user: str, used: str) -> bool:
    if user == used or user in ("", "__main__"):
        return True
    is_neighbour = PLACE[user] == PLACE[used] and not (ROOT / user).is_dir()
    return PLACE[used] < PLACE[user] or is_neighbour


@pytest.mark.parametrize("module", [module for module in MODULES if module], ids=str)
def test_a_module_has_a_room_and_calls_upwards_only(module: str) -> None:
    assert room_of(module) in {*PLACE, "__main__"}, f"{module} has no room"
    wrong = [used for used in imported(MODULES[module]) if not is_allowed(room_of(module), room_of(used))]
    assert not wrong, f"{module} may not import {', '.join(wrong)}"


def test_no_modules_import_each_other() -> None:
    uses = {module: {used for used in imported(path) if used != module} for module, path in MODULES.items()}
    left = dict(uses)
    while free := {module for module, used in left.items() if not used & left.keys()}:
        left = {module: used for module, used in left.items() if module not in free}
    assert not left, f"cycles among {', '.join(left)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_fits_its_limit(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES


def test_a_class_name_has_one_meaning() -> None:
    homes: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}
