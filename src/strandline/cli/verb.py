"""What every verb shares: the choice of the lake, `--json`, `--debug`, errors without a stack trace, the exit code."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import strandline as sl
from strandline.cli import project
from strandline.cli.answer import Answer, print_answer, print_error
from strandline.cli.completion import DEFAULT_LAKE
from strandline.cli.examples import EXAMPLES
from strandline.cli.interrupts import STOPPED, Interruptible, say_stopped
from strandline.cli.logs import FORM_AFTER, LEVEL_AFTER, Form, Level, set_up_logs
from strandline.errors import Invalid, NotFound, NotRetained, StrandlineError

LAKE = typer.Option(
    metavar="PATH|URI", help=f"The lake: a folder or s3://bucket/prefix (or STRANDLINE_LAKE); else {DEFAULT_LAKE}."
)
APP = typer.Option(
    metavar="MODULE:NAME",
    help="Instead of --lake: the lake in a Python module, with its sinks (or STRANDLINE_APP).",
)
STATE = typer.Option(
    metavar="URL", help="The database of the lake's state (or STRANDLINE_STATE); else a file in the lake."
)
PLACE = {"lake": LAKE, "app": APP, "state": STATE}
_COMMAND = re.compile(r"\bstrandline (?=(?:backfill|deadletter|doctor|mark|sink|table|tick|token)\b)")
_PASSWORD = re.compile(r"(?<=:)[^:@/]+(?=@)|(?<=password=)[^&]+")
JSON = typer.Option("--json", help="Print one JSON document.")
DEBUG = typer.Option("--debug", help="Show the stack trace of an error.")
_WITHOUT_LAKE = ("demo",)


@dataclass(frozen=True)
class GlobalOptions:
    """The options before the verb. `lake`, `app` and `state` are `given` as options or come from the `environment`."""

    given: Mapping[str, str] = field(default_factory=dict, hash=False)
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    is_debug: bool = False
    is_json: bool = False
    log_level: Level | None = None
    log_format: Form | None = None

    def call(self, after: Mapping[str, str], *, is_json: bool, is_debug: bool) -> Call:
        """One call of a verb, with the options `after` it. Options take precedence over environment variables. An app
        has its own lake and state."""
        given, known = {**self.given, **after}, self.environment
        if "app" in given and "lake" in given:
            raise typer.BadParameter("give --app or --lake, not both")
        if not given.keys() & {"app", "lake"} and known.keys() >= {"app", "lake"}:
            raise typer.BadParameter("STRANDLINE_APP and STRANDLINE_LAKE are both set; give --app or --lake")
        app = None if "lake" in given else given.get("app", known.get("app"))
        if app is not None and "state" in given:
            raise typer.BadParameter("--state goes with --lake; an --app has its own state")
        return Call(
            given.get("lake", known.get("lake", DEFAULT_LAKE)),
            is_json or self.is_json,
            is_debug or self.is_debug,
            is_lake_given=bool(given.keys() & {"app", "lake"}),
            app=app,
            state=None if app else given.get("state", known.get("state")),
            is_state_given="state" in given,
        )


@dataclass(frozen=True)
class Call:
    """One call of a verb. With `is_lake_given` an option names the lake, not the environment. With `app`, `found` is
    the lake of that program, and `path` is its place."""

    path: str
    is_json: bool
    is_debug: bool
    is_lake_given: bool = False
    app: str | None = None
    state: str | None = None
    is_state_given: bool = False
    found: sl.Lake | None = None

    def with_app(self) -> Call:
        """The same call, with the lake of the app if there is one."""
        if self.app is None:
            return self
        lake = project.find(self.app)
        return replace(self, path=lake.storage.uri, found=lake)

    def lake(self) -> sl.Lake:
        """The lake, which must be there."""
        self.check_folder()
        lake = self.found or sl.Lake(self.path, state=self.state)
        if not lake.exists:
            raise self.no_lake(f"no lake at {lake.storage.uri}")
        return lake

    def table(self, name: str) -> sl.Table:
        """A table of the lake."""
        return self.lake().table(name)

    def no_lake(self, message: str) -> NotFound:
        return NotFound(message, hint=f"Create one: strandline init {shlex.quote(self.path)}", path=self.path)

    def check_folder(self) -> None:
        if os.path.exists(self.path) and not os.path.isdir(self.path):
            raise Invalid(f"{self.path} is a file; a lake is a folder", hint="Name another path.", path=self.path)

    def confirm(self, question: str, refusal: str, *, table: str) -> None:
        """Ask a person before a step that cannot be undone; a program has to give --yes."""
        if self.is_json:
            raise Invalid(f"{refusal} only with --yes", hint="Add --yes.", table=table)
        typer.confirm(question, abort=True)

    def command(self, rest: str) -> str:
        """A command to type next, for the same lake."""
        at = "" if self.path == DEFAULT_LAKE else f" --lake {shlex.quote(self.path)}"
        if self.app is not None:
            at = f" --app {shlex.quote(self.app)}"
        elif self.state is not None and self.is_state_given:
            at += f" --state {shlex.quote(_PASSWORD.sub('***', self.state))}"
        return f"strandline{at} {rest}"

    def for_lake(self, text: str) -> str:
        """A text whose commands are for this lake."""
        return _COMMAND.sub(lambda _: self.command(""), text)


def _hide_flag_types(parameters: list[Any]) -> list[Any]:
    """The parameters; help shows no type for those that are only given or not."""
    for each in parameters:
        if getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""
    return parameters


@contextmanager
def _plain_words() -> Iterator[None]:
    """Errors about options in our words alone: the parser's library puts its own before them."""
    try:
        yield
    except typer.BadParameter as error:
        error.message = error.message.removeprefix("Value error, ")
        raise


class _PlainCommand(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _plain_words():
            return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_flag_types(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """Verbs of one kind."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _plain_words():
            return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_flag_types(super().get_params(ctx))


def load_verb(name: str) -> Mapping[str, Any]:
    """The command of a verb, by name. Its module has a function of that name; that of a group has `VERBS`, its verbs by
    name, and a docstring, which is the group's help."""
    module = import_module(f"strandline.cli.{name}")
    part = typer.Typer()
    if hasattr(module, "VERBS"):
        group = typer.Typer(
            name=name, cls=getattr(module, "Group", PlainGroup), help=module.__doc__, no_args_is_help=True
        )
        for each, function in module.VERBS.items():
            _add_verb(group, each, function, EXAMPLES.get(f"{name} {each}"))
        part.add_typer(group)
    else:
        _add_verb(part, name, getattr(module, name), EXAMPLES.get(name))
    return typer.main.get_group(part).commands


def _add_verb(app: typer.Typer, name: str, function: Callable[..., Answer], example: str | None) -> None:
    """Make a function a verb, with an example in its help. Its first parameter is the `Call`; the others are the
    verb's arguments and options."""
    has_lake = name not in _WITHOUT_LAKE

    def run(context: typer.Context, **values: Any) -> None:
        root: GlobalOptions = context.obj
        if root.given and not has_lake:
            raise typer.BadParameter(f"{name} takes no --{next(iter(root.given))}")
        after = {option: value for option in PLACE if (value := values.pop(option, None))}
        set_up_logs(values.pop("log_level") or root.log_level, values.pop("log_format") or root.log_format or "text")
        root = root if has_lake else GlobalOptions(is_debug=root.is_debug, is_json=root.is_json)
        call = root.call(after, is_json=values.pop("as_json"), is_debug=values.pop("debug"))
        raise typer.Exit(_run(call, lambda: function(call.with_app(), **values)))

    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    shared = [
        *(_make_option(each, Annotated[str | None, option], None) for each, option in PLACE.items() if has_lake),
        _make_option("as_json", Annotated[bool, JSON], False),
        _make_option("debug", Annotated[bool, DEBUG], False),
        _make_option("log_level", Annotated[Level | None, LEVEL_AFTER], None),
        _make_option("log_format", Annotated[Form | None, FORM_AFTER], None),
    ]
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own), *shared]
    setattr(run, "__signature__", inspect.Signature(parameters))  # noqa: B010
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    # Paragraphs stay; the window breaks the lines.
    run.__doc__ = "\n\n".join(" ".join(part.split()) for part in (function.__doc__ or "").split("\n\n"))
    app.command(name, cls=_PlainCommand, epilog=f"Example: {example}" if example else None)(run)


def _make_option(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _run(call: Call, act: Callable[[], Answer]) -> int:
    try:
        with Interruptible():
            answer = act()
            print_answer(answer, is_json=call.is_json)
        return 0 if answer.is_well else 1
    except StrandlineError as error:
        return _fail(call, error.kind, error.message, _find_hint(call, error), error.fields)
    except BrokenPipeError:
        # The reader of the pipe is gone. Nothing more may be written, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        say_stopped()
        if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
            # Python would wait for these threads. Their work may be killed at any moment.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(STOPPED)
        return STOPPED
    except OSError as error:
        return _fail(call, "Unavailable", str(error), None, {})
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:
        hint = "This is a fault in Strandline. Please report it with the output of the same command with --debug."
        return _fail(call, "Internal", f"{type(error).__name__}: {error}", hint, {})


def _find_hint(call: Call, error: StrandlineError) -> str | None:
    """The error's hint, for this lake. Without one: the oldest readable seq, or that the keys for S3 are missing."""
    if error.hint:
        error.hint = call.for_lake(error.hint)
    if isinstance(error, NotRetained) and error.hint is None and "oldest" in error.fields:
        return f"The oldest seq that can be read is {error.fields['oldest']}."
    is_remote = "s3://" in call.path + error.message and error.kind == "Unavailable"
    if not is_remote or (os.environ.get("AWS_ACCESS_KEY_ID") and os.environ.get("AWS_SECRET_ACCESS_KEY")):
        return error.hint
    keys = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set: S3 needs them unless this machine has a role."
    return f"{error.hint}\n{keys}" if error.hint else keys


def _fail(call: Call, kind: str, message: str, hint: str | None, fields: dict[str, Any]) -> int:
    if call.is_debug:
        traceback.print_exc()
    print_error(kind, message, hint, fields, is_json=call.is_json)
    return 1
