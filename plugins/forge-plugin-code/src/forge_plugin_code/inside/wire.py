"""Messages and plain data between processes that do not trust one another: JSON with a length in front.

    left, right = socket.socketpair()
    send(left, {"run": ""}); receive(right)              # {"run": ""}
    decode(encode((1, {2}), None), None)                 # (1, {2})

Why not pickle: it runs code. Values cross as data of exact built-in types; everything else stays where it is and
crosses as a numbered handle. Sub-classes of built-in types (named tuples, counters, `int` with a cunning `__eq__`) lose
their class.
"""

from __future__ import annotations

import builtins
import importlib
import json
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

MAX_MESSAGE = 64 * 1024 * 1024  # bytes, a job with its tests
MAX_VALUE = 16 * 1024 * 1024  # bytes, a call or its result
_EXACT = (type(None), bool, int, float, str)
_TYPES: dict[str, type] = {
    cls.__name__: cls for cls in (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
}
_NUMBERS = {"Decimal": "decimal", "Fraction": "fractions"}
Export = Callable[[Any], list[Any]] | None
Import = Callable[[list[Any]], Any] | None


def send(sock: socket.socket, message: Any) -> None:
    data = json.dumps(message).encode()
    sock.sendall(struct.pack(">I", len(data)) + data)


def receive(sock: socket.socket, limit: int = MAX_MESSAGE) -> Any:
    """The next message. EOFError when the other side is gone, ValueError when it does not speak the protocol."""
    (length,) = struct.unpack(">I", _exactly(sock, 4))
    if length > limit:
        raise ValueError(f"a message of {length} bytes is longer than {limit}")
    try:
        return json.loads(_exactly(sock, length))
    except RecursionError:
        raise ValueError("a message is nested too deeply") from None


def _exactly(sock: socket.socket, count: int) -> bytes:
    chunks = []
    while count:
        chunk = sock.recv(min(count, 1 << 20))
        if not chunk:
            raise EOFError("the other side is gone")
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)


def encode(value: Any, export: Export) -> Any:
    """`value` as JSON-able data; what is no plain data goes through `export` to `[handle, type name]`."""
    if type(value) in _EXACT:
        return value
    if isinstance(value, list):
        return [encode(item, export) for item in value]
    if isinstance(value, tuple):
        return {"t": [encode(item, export) for item in value]}
    if isinstance(value, dict):
        return {"d": [[encode(key, export), encode(item, export)] for key, item in value.items()]}
    if isinstance(value, (set, frozenset)):
        return {"s" if isinstance(value, set) else "f": [encode(item, export) for item in value]}
    if isinstance(value, (bytes, bytearray)):
        return {"b": bytes(value).hex()}
    if isinstance(value, complex):
        return {"c": [value.real, value.imag]}
    for base in (int, float, str):
        if isinstance(value, base):
            return base(value)
    name = type(value).__name__
    if name in _NUMBERS and type(value).__module__ == _NUMBERS[name]:
        return {"n": [name, str(value)]}
    if isinstance(value, type) and _TYPES.get(value.__name__) is value:
        return {"y": value.__name__}
    if export is None:
        raise TypeError(f"{type(value).__name__} is not plain data")
    return {"h": export(value)}


def decode(data: Any, handle: Import) -> Any:
    """The value that `encode` was given. ValueError for anything `encode` does not make."""
    if type(data) in _EXACT:
        return data
    if isinstance(data, list):
        return [decode(item, handle) for item in data]
    if not isinstance(data, dict) or len(data) != 1:
        raise ValueError("a value has an unknown form")
    ((kind, body),) = data.items()
    if kind == "h" and handle is not None:
        return handle(body)
    if kind == "y" and isinstance(body, str) and body in _TYPES:
        return _TYPES[body]
    if kind == "b" and isinstance(body, str):
        return bytes.fromhex(body)
    if not isinstance(body, list) or kind not in {"t", "d", "s", "f", "c", "n"}:
        raise ValueError("a value has an unknown form")
    if kind == "c":
        return complex(*body)
    if kind == "n" and len(body) == 2 and body[0] in _NUMBERS and isinstance(body[1], str):
        return getattr(importlib.import_module(_NUMBERS[body[0]]), body[0])(body[1])
    if kind == "d":
        return {decode(key, handle): decode(item, handle) for key, item in body}
    items = [decode(item, handle) for item in body]
    if kind == "n":
        raise ValueError("a value has an unknown form")
    return tuple(items) if kind == "t" else set(items) if kind == "s" else frozenset(items)


class RemoteError(Exception):
    """An exception on the other side whose type does not exist here."""


class Peer:
    """Calls over a socket, nested ones included: while one side waits for a reply it serves the other's questions.

    Args:
        answer: what `[question, ...arguments]` of the other side gives; its exceptions travel as type name and text.
        classes: exception classes by name, beside the built-in ones.
    """

    def __init__(self, sock: socket.socket, answer: Callable[[list[Any]], Any], classes: Mapping[str, type]) -> None:
        self.sock, self._answer, self._classes = sock, answer, classes
        self.raised: Exception | None = None  # the last exception that came from the other side

    def ask(self, *question: Any) -> Any:
        send(self.sock, {"ask": question})
        while True:
            message = receive(self.sock, MAX_VALUE)
            if not isinstance(message, dict) or len(message) != 1:
                raise ValueError("a message has an unknown form")
            ((kind, body),) = message.items()
            if kind == "ask":
                self._serve(body)
            elif kind == "reply":
                return body
            elif kind == "raise" and isinstance(body, list) and len(body) == 2:
                self.raised = self._exception(*body)
                raise self.raised
            else:
                raise ValueError("a message has an unknown form")

    def serve(self) -> None:
        """Answers until the other side is gone."""
        while True:
            try:
                message = receive(self.sock)
            except EOFError:
                return
            self._serve(message["ask"])

    def _serve(self, question: Any) -> None:
        try:
            reply = {"reply": self._answer(question)}
        except BaseException as error:  # SystemExit of tested code too: it travels and fails the test
            reply = {"raise": [type(error).__name__, str(error)[:500]]}
        send(self.sock, reply)

    def _exception(self, name: Any, text: Any) -> Exception:
        cls = self._classes.get(name) or getattr(builtins, str(name), None)
        if isinstance(cls, type) and issubclass(cls, Exception):
            try:
                return cls(text)
            except TypeError:  # UnicodeDecodeError and others that want more arguments
                pass
        return RemoteError(f"{name}: {text}")
