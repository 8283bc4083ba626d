"""Find the lake of a program, as web servers find an app: `module:name`."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import redirect_stdout
from importlib import import_module
from types import ModuleType

import strandline as sl
from strandline.errors import Invalid, StrandlineError

_NAME = "lake"
_SUCH_AS = "Such as: --app pipeline:lake"


def find(app: str) -> sl.Lake:
    """The lake of a module, with the sinks that the module declares. `Invalid` names the file and line of an error in
    the module."""
    path, _, name = app.partition(":")
    name = name or _NAME
    if path.endswith(".py"):
        module_name = path.removesuffix(".py").strip("./").replace("/", ".")
        raise Invalid(f"app {app!r} names a file", hint=f"Name the module: --app {module_name}:{name}", app=app)
    if not all(part.isidentifier() for part in [*path.split("."), name]):
        raise Invalid(f"app is {app!r}; expected a module and the name of a lake in it", hint=_SUCH_AS, app=app)
    module = _import_module(path, app)
    where = getattr(module, "__file__", None) or path
    if not hasattr(module, name):
        lakes = sorted(each for each, value in vars(module).items() if isinstance(value, sl.Lake))
        way = f"Name the lake that it has: --app {path}:{lakes[0]}" if lakes else f'Add: {name} = strandline.Lake("…")'
        raise Invalid(f"{where} has no {name!r}", hint=way, app=app)
    found = getattr(module, name)
    if not isinstance(found, sl.Lake):
        raise Invalid(f"{name!r} in {where} is a {type(found).__name__}; expected a Lake", hint=_SUCH_AS, app=app)
    return found


def _import_module(name: str, app: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path[:1]:
        sys.path.insert(0, here)
    try:
        # The program's own output must not mix with the answer.
        with redirect_stdout(sys.stderr):
            return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise Invalid(
                f"there is no module {error.name!r} in {here}, nor elsewhere on Python's path",
                hint="Go to the folder that has it, or set PYTHONPATH.",
                app=app,
            ) from error
        raise _describe_failure(error, name, app) from error
    except (Exception, SystemExit) as error:
        raise _describe_failure(error, name, app) from error


def _describe_failure(error: BaseException, name: str, app: str) -> Invalid:
    """An error inside the module, by the place in the user's own code."""
    file, line = _find_place(error)
    said = (
        error.message if isinstance(error, StrandlineError) else error.msg if isinstance(error, SyntaxError) else error
    )
    what = f"{type(error).__name__}: {said}"
    hint = error.hint if isinstance(error, StrandlineError) else None
    if isinstance(error, SystemExit):
        what, hint = "it ends the program", "Put what only a program does under: if __name__ == '__main__':"
    hint = hint or "The whole trace: --debug"
    return Invalid(f"app {app!r}: {file}, line {line}: {what}", hint=hint, app=app, module=name, file=file, line=line)


def _find_place(error: BaseException) -> tuple[str, int]:
    if isinstance(error, SyntaxError) and error.filename:
        return os.path.relpath(error.filename), error.lineno or 0
    frames = traceback.extract_tb(error.__traceback__)
    here = os.path.join(os.getcwd(), "")
    own = [frame for frame in frames if frame.filename.startswith(here) and "site-packages" not in frame.filename]
    last = own[-1] if own else frames[-1]
    return os.path.relpath(last.filename) if own else last.filename, last.lineno or 0
