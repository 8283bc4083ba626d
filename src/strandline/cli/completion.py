"""What the shell completes: the names of tables and of sinks. A lake that cannot be read completes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable

import typer

DEFAULT_LAKE = "./lake"


def complete_tables(context: typer.Context, incomplete: str) -> list[str]:
    import strandline as sl

    return _complete(context, incomplete, lambda lake: sl.Lake(lake).tables())


def complete_sinks(context: typer.Context, incomplete: str) -> list[str]:
    import strandline as sl

    return _complete(context, incomplete, lambda lake: list(sl.Lake(lake).consumer_states()))


def _complete(context: typer.Context, incomplete: str, find: Callable[[str], list[str]]) -> list[str]:
    given = context.params.get("lake") or context.find_root().params.get("lake") or os.environ.get("STRANDLINE_LAKE")
    lake = given or DEFAULT_LAKE
    # A look into a bucket, or a new state, would be more than a key press asks for.
    if not os.path.isdir(lake):
        return []
    try:
        return [name for name in find(lake) if name.startswith(incomplete)]
    except Exception:
        return []
