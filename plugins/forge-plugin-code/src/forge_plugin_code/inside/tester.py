"""The tests' process: runs test code in which the names of the tested code are stand-ins that call another sandbox.

Results come back as plain data of exact built-in types, so every comparison with an expected value happens here, on
objects that the tested code never touched. Its own objects (class instances, generators) stay there; here is a
`Remote`.
A `Remote` never passes the other side of a comparison or of arithmetic on, unless that is the tested code's own object:
otherwise a result could learn the expected value in its `__eq__` or `__sub__` and agree with it.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import socket
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from .wire import Peer, decode, encode

_ALIASES = {"np": "numpy", "numpy": "numpy", "pd": "pandas", "pandas": "pandas"}


class NotGradable(BaseException):
    """The tests themselves do not work; nothing to do with the tested code (and not to be caught by the tests)."""


class Remote:
    """An object of the tested code."""

    __slots__ = ("_ask", "_body")

    def __init__(self, ask: Callable[..., Any], body: list[Any]) -> None:
        object.__setattr__(self, "_ask", ask)
        object.__setattr__(self, "_body", body)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in {"__name__", "__doc__", "__dict__"}:
            raise AttributeError(name)
        return self._ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("setattr", self, name, value)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._ask("call", self, arguments, named)

    def __getitem__(self, key: Any) -> Any:
        return self._ask("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask("setitem", self, key, value)

    def __delitem__(self, key: Any) -> None:
        self._ask("delitem", self, key)

    def __iter__(self) -> Any:
        items = self._ask("iter", self)
        return iter(items) if not isinstance(items, Remote) else items

    def __next__(self) -> Any:
        return self._ask("next", self)

    def __contains__(self, item: Any) -> bool:
        return any(item == other for other in self)

    def __len__(self) -> int:
        return int(self._ask("len", self))

    def __bool__(self) -> bool:
        return bool(self._ask("bool", self))

    def __str__(self) -> str:
        return str(self._ask("str", self))

    def __repr__(self) -> str:
        return str(self._ask("repr", self))

    def __hash__(self) -> int:
        return hash(self._ask("hash", self))

    def __int__(self) -> int:
        return int(self._ask("int", self))

    def __float__(self) -> float:
        return float(self._ask("float", self))

    def __neg__(self) -> Any:
        return self._ask("neg", self)

    def __instancecheck__(self, value: Any) -> bool:
        return bool(self._ask("isinstance", value, self))


def _both_remote(name: str) -> Callable[[Remote, Any], Any]:
    def method(self: Remote, other: Any) -> Any:
        return self._ask(name, self, other) if isinstance(other, Remote) else NotImplemented

    return method


for _name in ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "matmul", "and_", "or_", "xor"):
    setattr(Remote, f"__{_name.strip('_')}__", _both_remote(_name))


class Tester:
    """Runs test units against the tested code on the other side of a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._callbacks: list[Callable[..., Any]] = []
        self._classes: dict[str, type] = {}
        self.peer = Peer(sock, self._answer, self._classes)
        self.namespace: dict[str, Any] = {"__name__": "tests"}

    def run(self, setup: str, units: list[str], entry_point: str | None) -> Iterator[str]:
        """For each unit "" if it passed, else why it did not. NotGradable when the tests themselves are at fault."""
        trees = [_parse(text) for text in (setup, *units)]
        try:
            self._define(self.peer.ask("start"), trees, entry_point)
        except Exception as error:  # the tested code does not run, died, or sent nonsense
            yield from [f"the program: {_text(error)}"] * len(units)
            return
        try:
            self._execute(setup)
        except Exception as error:
            if error is not self.peer.raised and not isinstance(error, NameError):
                raise NotGradable(f"the setup of the tests fails: {_text(error)}") from None
            yield from [f"the setup: {_text(error)}"] * len(units)
            return
        for unit in units:
            before = dict(self.namespace)
            try:
                self._execute(unit)
                self._collected(before)
                yield ""
            except Exception as error:
                yield f"{unit.strip()[:120]!r}: {_text(error)}"

    def _execute(self, code: str) -> None:
        try:
            exec(compile(code, "<tests>", "exec"), self.namespace)
        except ModuleNotFoundError as error:
            if error is self.peer.raised:
                raise
            raise NotGradable(f"the tests import {error.name}, which the sandbox does not have") from None

    def _collected(self, before: dict[str, Any]) -> None:
        """Runs what the last unit defined in the manner of unittest and pytest."""
        for name, value in list(self.namespace.items()):
            if before.get(name) is value or isinstance(value, Remote):
                continue
            if (
                isinstance(value, types.FunctionType)
                and name.startswith("test")
                and not inspect.signature(value).parameters
            ):
                value()
            elif isinstance(value, type) and any(c.__module__.startswith("unittest.") for c in value.__mro__[1:]):
                _run_unittest(value)

    def _define(self, names: dict[str, list[str]], trees: list[ast.Module], entry_point: str | None) -> None:
        """Puts the tested code's names that the tests use into the namespace; built-in names stay what they are."""
        nodes = [node for tree in trees for node in ast.walk(tree)]
        as_module = {n.value.id for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
        used = {n.id for n in nodes if isinstance(n, ast.Name)}
        solution = types.ModuleType("solution")
        sys.modules["solution"] = solution  # for tests that say `from solution import f`
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module == "solution":
                used |= {alias.name for alias in node.names}
        for name in used:
            library = _ALIASES.get(name, name if name in sys.stdlib_module_names else "")
            if name in as_module and library:
                # A test that relies on the tested code's `import math`: never let that code answer for the library.
                self.namespace[name] = _library(library)
            elif name in names and (name == entry_point or not hasattr(builtins, name)):
                kind, *bases = names[name]
                if kind == "module":
                    continue
                value = self._exception(name, bases) if kind == "exception" else self._ask_global(name)
                self.namespace[name] = value
                setattr(solution, name, value)

    def _exception(self, name: str, bases: list[str]) -> type:
        found = [getattr(builtins, base, None) for base in bases]
        base = next(cls for cls in found if isinstance(cls, type) and issubclass(cls, Exception))
        cls = type(name, (base,), {})
        self._classes[name] = cls
        return cls

    def _ask_global(self, name: str) -> Any:
        return decode(self.peer.ask("global", name), self._import)

    def _ask(self, kind: str, *arguments: Any) -> Any:
        if kind != "call":
            return decode(self.peer.ask(kind, *[encode(a, self._export) for a in arguments]), self._import)
        function, values, named = arguments
        given = [encode(value, self._export) for value in values]
        keywords = {name: encode(value, self._export) for name, value in named.items()}
        result, changed = self.peer.ask("call", encode(function, self._export), given, keywords)
        for place, content in changed:
            _overwrite(values[place], decode(content, self._import))
        return decode(result, self._import)

    def _answer(self, question: Any) -> Any:
        """The tested code calls a function that a test passed to it; nothing else can be asked for."""
        kind, number, arguments, named = question
        if kind != "call" or not isinstance(number, int) or not 0 <= number < len(self._callbacks):
            raise ValueError("no such function")
        values = [decode(argument, self._import) for argument in arguments]
        keywords = {name: decode(value, self._import) for name, value in named.items()}
        return encode(self._callbacks[number](*values, **keywords), self._export)

    def _export(self, value: Any) -> list[Any]:
        if isinstance(value, Remote):
            return ["yours", value._body[1]]
        if not callable(value):
            raise NotGradable(
                f"the tests pass a {type(value).__name__} to the tested code; only plain data can be passed"
            )
        self._callbacks.append(value)
        return ["function", len(self._callbacks) - 1]

    def _import(self, body: Any) -> Any:
        if isinstance(body, list) and len(body) == 2 and body[0] == "data":
            return decode(body[1], None)
        if not isinstance(body, list) or len(body) != 4 or body[0] != "object":
            raise ValueError("a value has an unknown form")
        return Remote(self._ask, body)


def _overwrite(target: Any, content: Any) -> None:
    """Makes a list, dict or set that was passed to the tested code what that code made of its copy."""
    if type(target) is not type(content):
        raise ValueError("an argument changed its type")
    target.clear()
    target.extend(content) if isinstance(target, list) else target.update(content)


def _library(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise NotGradable(f"the tests use {name}, which the sandbox does not have") from None


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300] if str(error) else type(error).__name__


def _parse(code: str) -> ast.Module:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError) as error:
        raise NotGradable(f"the tests are not Python: {error}") from None


def _run_unittest(case: type) -> None:
    import unittest

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    bad = [*result.failures, *result.errors]
    if bad:
        raise AssertionError(bad[0][1].strip().splitlines()[-1])
    if result.testsRun == 0:
        raise NotGradable(f"test class {case.__name__} has no tests")
