"""The words of the command line: its verbs, and the options before them."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import strandline
from strandline.cli.answer import print_error
from strandline.cli.logs import FORM, LEVEL, Form, Level
from strandline.cli.verb import APP, DEBUG, JSON, LAKE, PLACE, STATE, GlobalOptions, PlainGroup, load_verb
from strandline.engines.stoppable import was_work_stopped

VERBS = (
    "demo", "init", "ingest", "rejects", "query", "export", "plan", "tick", "run", "status", "compact", "vacuum",
    "serve", "doctor", "backup", "restore", "sink", "backfill", "fixpoint", "mark", "deadletter", "token", "table",
)  # fmt: skip


class Verbs(PlainGroup):
    """The verbs by name. Each loads when it is asked for: the libraries of one take longer than the work of another."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in VERBS and cmd_name not in self.commands:
            self.commands.update(load_verb(cmd_name))
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in VERBS:
            # The error names verbs that look like this one, or that have it below them.
            self.commands.update({name: self.get_command(ctx, name) for name in VERBS})
            below = [name for name in VERBS if args[0] in getattr(self.commands[name], "commands", ())]
            if below:
                longer = ", ".join(f"'{name} {args[0]}'" for name in below)
                ctx.fail(f"No such command '{args[0]}'. Did you mean {longer}?")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Verbs,
    name="strandline",
    help="Incremental lakehouse tables: a table is a baseline plus a log.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"strandline {strandline.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    lake: Annotated[str | None, LAKE] = None,
    app: Annotated[str | None, APP] = None,
    state: Annotated[str | None, STATE] = None,
    as_json: Annotated[bool, JSON] = False,
    debug: Annotated[bool, DEBUG] = False,
    log_level: Annotated[Level | None, LEVEL] = None,
    log_format: Annotated[Form | None, FORM] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    given = {name: value for name, value in (("lake", lake), ("app", app), ("state", state)) if value}
    environment = {name: value for name in PLACE if (value := os.environ.get(f"STRANDLINE_{name.upper()}"))}
    context.obj = GlobalOptions(given, environment, debug, as_json, log_level, log_format)


def run_words(arguments: Sequence[str] | None = None) -> None:
    """Run the verb that `arguments`, or the words of this process, name; then end."""
    code = _run(list(sys.argv[1:] if arguments is None else arguments))
    if was_work_stopped() and arguments is None:
        # A thread may still be inside DuckDB, which then cannot end in order, or warns of leaks.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _run(words: Sequence[str]) -> int:
    is_json = "--json" in words
    try:
        code: Any = app(words, prog_name="strandline", standalone_mode=not is_json)
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        code = end.code
    except Exception as error:
        # The parser's own errors, of whichever click typer brings: a usage error is JSON as well.
        if not is_json or not hasattr(error, "format_message"):
            raise
        print_error("Usage", error.format_message(), "See: strandline --help", {}, is_json=True)
        code = getattr(error, "exit_code", 2)
    return code if isinstance(code, int) else 0
