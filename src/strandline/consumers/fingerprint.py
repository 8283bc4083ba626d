"""A digest of a function: its code, the values that it closes over, and what it uses of its own package.

Comments, docstrings, the layout of the source and its place in a file do not count, nor does the function's name.
Libraries count by their names alone. The source decides where it can be read, otherwise the byte code does. What
belongs to the package of the function, or to none that is installed, is its own.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

_PLAIN = (str, bytes, int, float, complex, bool, type(None))


def fingerprint_of(function: Callable[..., Any], *more: object) -> str:
    """The digest of a function and of some plain values."""
    inner = function.func if isinstance(function, functools.partial) else function
    own = (getattr(inner, "__module__", None) or "").partition(".")[0]
    digest = hashlib.sha256()
    for part in [*_Description(own).of(function), repr(more)]:
        # With its length, so that no two lists of texts look alike.
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()[:32]


class _Description:
    """Texts that are equal for values that act alike. `own` is the package whose code counts."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._seen: dict[int, int] = {}
        # Kept, so that no other value gets the identity of one that was seen.
        self._kept: list[object] = []

    def of(self, value: object) -> Iterator[str]:
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r}"
            return
        if id(value) in self._seen:
            yield f"again {self._seen[id(value)]}"
            return
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        yield from self._of_other(value)

    def _of_other(self, value: object) -> Iterator[str]:
        if isinstance(value, types.FunctionType):
            yield from self._of_function(value)
        elif isinstance(value, types.MethodType):
            yield "method"
            yield from self.of(value.__func__)
            yield from self.of(value.__self__)
        elif isinstance(value, functools.partial):
            yield "partial"
            yield from self._of_all([value.func, value.args, value.keywords])
        elif isinstance(value, Mapping):
            yield from self._of_pairs(value)
        elif isinstance(value, set | frozenset):
            yield f"set {len(value)}"
            # Each by itself: the order of a set is that of its hashes.
            yield from sorted(repr(list(_Description(self._own).of(each))) for each in value)
        elif isinstance(value, list | tuple):
            yield type(value).__name__
            yield from self._of_all(value)
        elif isinstance(value, types.ModuleType):
            yield f"module {value.__name__}"
        elif isinstance(value, np.ndarray):
            yield f"array {value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
        elif isinstance(value, pa.Table):
            yield f"rows {value.schema} {hashlib.sha256(repr(value.to_pydict()).encode()).hexdigest()}"
        elif isinstance(value, type):
            yield from self._of_class(value)
        elif isinstance(value, staticmethod | classmethod | property):
            yield type(value).__name__
            yield from self.of(value.fget if isinstance(value, property) else value.__func__)
        else:
            yield from self._of_object(value)

    def _of_all(self, values: list[Any] | tuple[Any, ...]) -> Iterator[str]:
        yield f"{len(values)} values"
        for each in values:
            yield from self.of(each)

    def _of_pairs(self, value: Mapping[Any, Any]) -> Iterator[str]:
        yield f"mapping {len(value)}"
        for key in sorted(value, key=repr):
            yield from self.of(key)
            yield from self.of(value[key])

    def _of_class(self, value: type) -> Iterator[str]:
        yield f"class {value.__module__}.{value.__qualname__}"
        if not self._is_library(value.__module__):
            for base in value.__bases__:
                yield from self.of(base)
            hidden = ("__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__static_attributes__")
            yield from self._of_pairs({name: each for name, each in vars(value).items() if name not in hidden})

    def _of_object(self, value: object) -> Iterator[str]:
        kind = type(value)
        yield f"object {kind.__module__}.{kind.__qualname__}"
        inner = getattr(value, "__wrapped__", None) or getattr(value, "func", None)
        if isinstance(inner, types.FunctionType):
            # A function that a library wraps: a UDF, or one with a cache.
            yield from self.of(inner)
        elif isinstance(value, types.BuiltinFunctionType):
            yield value.__qualname__
        elif not self._is_library(kind.__module__):
            yield from self.of(kind)
            yield from self._of_pairs(getattr(value, "__dict__", {}))
        elif kind.__module__ in ("datetime", "decimal", "fractions", "uuid", "re", "numpy", "pyarrow.lib"):
            yield repr(value)

    def _of_function(self, function: types.FunctionType) -> Iterator[str]:
        if self._is_library(function.__module__ or ""):
            yield f"function {function.__module__}.{function.__qualname__}"
            return
        yield "function"
        yield from _describe_code(function.__code__)
        yield from self.of(function.__defaults__)
        yield from self._of_pairs(function.__kwdefaults__ or {})
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            yield f"closes over {name}"
            try:
                yield from self.of(cell.cell_contents)
            except ValueError:
                yield "nothing yet"
        names = sorted(_names_in(function.__code__))
        for name in names:
            if name in function.__globals__:
                found = function.__globals__[name]
                yield f"uses {name}"
                yield from self.of(found)
                if isinstance(found, types.ModuleType) and not self._is_library(found.__name__):
                    # `module.name` is an attribute of the module, as the code alone cannot tell.
                    for inner in names:
                        if inner in vars(found):
                            yield f"uses {name}.{inner}"
                            yield from self.of(vars(found)[inner])

    def _is_library(self, module: str) -> bool:
        """Whether a module belongs to Python, to this package or to an installed one that is not the function's own."""
        top = module.partition(".")[0]
        if top == self._own or top == "__main__":
            return False
        if top in sys.stdlib_module_names or top in ("builtins", "strandline"):
            return True
        path = getattr(sys.modules.get(top), "__file__", None) or ""
        return "site-packages" in path or "dist-packages" in path


def _describe_code(code: types.CodeType) -> Iterator[str]:
    try:
        # Of the code, not of the function: that would be the one behind a wrapper.
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
        (found,) = tree.body
        if not isinstance(found, ast.FunctionDef):
            raise ValueError("not the source of one function")
        found.name, found.decorator_list = "step", []
        if ast.get_docstring(found) is not None:
            found.body = found.body[1:] or [ast.Pass()]
        yield ast.dump(found)
    except (OSError, SyntaxError, ValueError, TypeError):
        yield from _describe_byte_code(code)


def _describe_byte_code(code: types.CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars))
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _describe_byte_code(const)
        else:
            yield repr(sorted(map(repr, const)) if isinstance(const, frozenset) else const)


def _names_in(code: types.CodeType) -> set[str]:
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return {*code.co_names, *(name for each in inner for name in _names_in(each))}
