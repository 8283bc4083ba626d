"""A digest of a function: its code, the values that it closes over, and the functions of its own package that it calls.

Comments, docstrings, the layout of the source and its place in a file do not count, nor does the function's name.
Libraries do not count either. The source decides where it can be read, otherwise the byte code does.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

_PLAIN = (str, bytes, int, float, complex, bool, type(None))


def fingerprint_of(function: Callable[..., Any], *more: object) -> str:
    """The digest of a function and of some plain values."""
    digest = hashlib.sha256()
    for part in _describe(function, set()):
        digest.update(part.encode() + b"\0")
    digest.update(repr(more).encode())
    return digest.hexdigest()[:32]


def _describe(value: object, seen: set[int]) -> Iterator[str]:
    """Texts that are equal for values that act alike."""
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}"
    elif id(value) in seen:
        yield "again"
    elif isinstance(value, types.FunctionType):
        seen.add(id(value))
        yield from _describe_function(value, seen)
    elif isinstance(value, types.MethodType):
        yield from _describe(value.__func__, seen)
        yield from _describe(value.__self__, seen)
    elif isinstance(value, Mapping):
        seen.add(id(value))
        for key in sorted(value, key=repr):
            yield from _describe(key, seen)
            yield from _describe(value[key], seen)
    elif isinstance(value, set | frozenset):
        yield from sorted(text for each in value for text in _describe(each, seen))
    elif isinstance(value, list | tuple):
        seen.add(id(value))
        yield type(value).__name__
        for each in value:
            yield from _describe(each, seen)
    elif isinstance(value, types.ModuleType):
        yield f"module {value.__name__}"
    elif isinstance(value, types.BuiltinFunctionType):
        yield f"function {value.__qualname__}"
    elif isinstance(value, type):
        yield f"class {value.__module__}.{value.__qualname__}"
    elif isinstance(value, pa.Table | pa.Schema | pa.DataType):
        yield f"{type(value).__name__} {value}"
    else:
        seen.add(id(value))
        yield f"object {type(value).__module__}.{type(value).__qualname__}"
        # An object of a library, a session for instance, has no values of the step's own.
        if not _is_library(type(value).__module__):
            yield from _describe(getattr(value, "__dict__", {}), seen)


def _describe_function(function: types.FunctionType, seen: set[int]) -> Iterator[str]:
    if _is_library(function.__module__ or ""):
        yield f"function {function.__module__}.{function.__qualname__}"
        return
    yield from _describe_code(function)
    yield from _describe(function.__defaults__, seen)
    yield from _describe(function.__kwdefaults__ or {}, seen)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield f"closes over {name}"
        try:
            yield from _describe(cell.cell_contents, seen)
        except ValueError:
            yield "nothing yet"
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:
            yield f"uses {name}"
            yield from _describe(function.__globals__[name], seen)


def _describe_code(function: types.FunctionType) -> Iterator[str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        (found,) = tree.body
        if not isinstance(found, ast.FunctionDef):
            raise ValueError("not the source of one function")
        found.name, found.decorator_list = "step", []
        if ast.get_docstring(found) is not None:
            found.body = found.body[1:] or [ast.Pass()]
        yield ast.dump(found)
    except (OSError, SyntaxError, ValueError, TypeError):
        yield from _describe_byte_code(function.__code__)


def _describe_byte_code(code: types.CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars))
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _describe_byte_code(const)
        else:
            yield repr(const)


def _global_names(code: types.CodeType) -> set[str]:
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return {*code.co_names, *(name for each in inner for name in _global_names(each))}


def _is_library(module: str) -> bool:
    """Whether a module belongs to an installed package or to Python itself."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("builtins", "strandline"):
        return top != "__main__"
    path = getattr(sys.modules.get(top), "__file__", None) or ""
    return "site-packages" in path or "dist-packages" in path
