"""A thread in which synchronous code waits for Monarch, with a deadline and a name.

Why a thread: transports are synchronous and are called from endpoints, which run on an event loop; Monarch's futures
warn there, and its constructors that block refuse. The thread sees the caller's Monarch context.

    waiting = Blocking("rdma")
    waiting.call("read the weights", 60.0, lambda: buffer.read_into(memory).get())
    waiting.close()
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from forge_host.errors import RunError

T = TypeVar("T")


class Blocking:
    """One daemon thread, started by the first call; a call that overruns its deadline gets the next call a new one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: queue.SimpleQueue[Any] | None = None

    def call(self, what: str, timeout_s: float, function: Callable[[], T]) -> T:
        """The function's result; its exceptions are the caller's.

        Raises:
            RunError: no result within `timeout_s` seconds.
        """
        if self._calls is None:
            self._calls = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(self._calls,), name=f"forge-{self.name}", daemon=True).start()
        done: Future[T] = Future()
        self._calls.put((contextvars.copy_context(), function, done))
        try:
            return done.result(timeout_s)
        except TimeoutError as error:
            if done.done():
                return done.result()  # at the last moment; or the TimeoutError is the function's own
            self.close()
            raise RunError(
                f"{self.name} did not {what} within {timeout_s:g} s",
                fix="see the logs of both ends, or allow more time",
            ) from error

    def close(self) -> None:
        """Let the thread end when it is done; a later call starts another."""
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None


def _serve(calls: queue.SimpleQueue[Any]) -> None:
    while (call := calls.get()) is not None:
        context, function, done = call
        try:
            done.set_result(context.run(function))
        except BaseException as error:  # the caller raises it
            done.set_exception(error)
        del call, context, function, done  # or what they hold would live until the next call
