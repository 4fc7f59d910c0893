"""The process of the tested code: runs it, then lets the tests' process call what it defined.

It gets arguments and gives results; the tests, and the values they expect, are in another sandbox. So it is all the
same what the code does to built-ins, `__eq__`, this module or the socket: it can only send values, as any answer would.
"""

from __future__ import annotations

import operator
import socket
import sys
import types
from collections.abc import Callable
from typing import Any

from .wire import Peer, decode, encode

_BINARY = {
    name: getattr(operator, name)
    for name in ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "matmul", "and_", "or_", "xor")
}
_UNARY: dict[str, Callable[..., Any]] = {
    "str": str, "repr": repr, "bool": bool, "len": len, "iter": iter, "next": next, "hash": hash, "neg": operator.neg,
    "abs": abs, "int": int, "float": float, "getitem": operator.getitem, "setitem": operator.setitem,
    "delitem": operator.delitem, "getattr": getattr, "setattr": setattr, "isinstance": isinstance,
}  # fmt: skip


def run_program(code: str) -> types.ModuleType:
    """Executes `code` as `__main__` and returns the module."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["main.py"]
    exec(compile(code, "<response>", "exec"), module.__dict__)
    return module


class Candidate:
    """Answers the tests' questions about one module."""

    def __init__(self, sock: socket.socket) -> None:
        self.peer = Peer(sock, self.answer, {})
        self._objects: dict[int, Any] = {}
        self._module = types.ModuleType("__main__")

    def run(self, code: str) -> None:
        """Executes the code, says how that went, and serves until the tests are done."""
        self._code = code
        self.peer.serve()

    def answer(self, question: list[Any]) -> Any:
        kind, *rest = question
        if kind == "start":
            self._module = run_program(self._code)
            return {name: _describe(value) for name, value in vars(self._module).items() if not name.startswith("__")}
        if kind == "global":
            return encode(getattr(self._module, rest[0]), self._export)
        if kind == "call":
            return self._call(*rest)
        operation = _BINARY.get(kind) or _UNARY[kind]
        return encode(operation(*[decode(argument, self._import) for argument in rest]), self._export)

    def _call(self, function: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
        """[result, {place: content afterwards} of those lists, dicts and sets that the function changed]."""
        values = [decode(argument, self._import) for argument in arguments]
        keywords = {name: decode(value, self._import) for name, value in named.items()}
        result = encode(decode(function, self._import)(*values, **keywords), self._export)
        places = [(i, v, arguments[i]) for i, v in enumerate(values) if isinstance(v, (list, dict, set))]
        after = [(i, encode(value, self._export), before) for i, value, before in places]
        return [result, [[i, now] for i, now, before in after if now != before]]

    def _export(self, value: Any) -> list[Any]:
        if hasattr(value, "tolist"):  # an array or a scalar of numpy
            return ["data", encode(value.tolist(), None)]
        self._objects[id(value)] = value  # kept, so that the number stays its own
        return ["object", id(value), type(value).__name__, callable(value)]

    def _import(self, body: list[Any]) -> Any:
        kind, number = body
        if kind == "yours":
            return self._objects[number]

        def callback(*arguments: Any, **named: Any) -> Any:
            given = [encode(argument, self._export) for argument in arguments]
            reply = self.peer.ask("call", number, given, {k: encode(v, self._export) for k, v in named.items()})
            return decode(reply, self._import)

        return callback


def _describe(value: Any) -> list[str]:
    """Its kind; an exception class also the built-in classes it derives from."""
    if isinstance(value, types.ModuleType):
        return ["module"]
    if isinstance(value, type) and issubclass(value, Exception):
        return ["exception", *(cls.__name__ for cls in value.__mro__ if cls.__module__ == "builtins")]
    return ["value"]
