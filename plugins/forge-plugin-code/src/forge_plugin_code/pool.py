"""Sandboxes that are already up and waiting, so that a verdict costs milliseconds.

    pool = pool_for(Settings(), workers=2)
    with pool.slot(2.0), pool.sandbox() as sandbox:
        sandbox.start_job({"kind": "stdio", "code": "print(input())", "limits": limits})

A sandbox that did its job and says so goes back and gives the next job fresh namespaces; any other is killed and
replaced.
"""

from __future__ import annotations

import atexit
import os
import queue
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from forge_plugin_code.inside import wire
from forge_plugin_code.isolation import ENVIRONMENT, Settings, choose, start_command

START_S = 30.0  # a machine under full load takes seconds
KEPT_ERRORS = 2000  # characters


class SandboxError(RuntimeError):
    """A sandbox did not work, for a reason that is not the tested code."""


class Sandbox:
    """One sandbox process and the socket to it. Not for several threads at once."""

    def __init__(self, mode: str, settings: Settings) -> None:
        """Starts it and does not wait. The calling thread must outlive it: bubblewrap ends with the thread."""
        self.nested, self.seccomp, self.jobs, self.pid = False, False, 0, 0
        self._ready, self.ended = False, False
        self._folder = tempfile.TemporaryDirectory(prefix="forge-code-") if mode == "none" else None
        self._errors = tempfile.TemporaryFile()  # closed with the sandbox
        ours, theirs = socket.socketpair()
        self._socket = ours
        try:
            self._process = subprocess.Popen(
                start_command(mode, settings),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=ENVIRONMENT | ({"PATH": os.environ.get("PATH", os.defpath)} if mode == "bwrap" else {}),
                cwd=self._folder.name if self._folder else "/",
            )
        except OSError as error:
            ours.close()
            raise SandboxError(f"cannot start: {error}") from error
        finally:
            theirs.close()

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Waits until a job can be given. SandboxError with what the process said when it cannot."""
        if self._ready:
            return
        hello = self.receive(time.monotonic() + timeout_s)
        if hello is None or hello.get("event") != "ready":
            raise SandboxError(self._said() or "the sandbox did not start")
        self.nested = hello.get("nested", self.nested)
        self.seccomp = hello.get("seccomp", self.seccomp)
        self.pid = hello.get("pid", self.pid)
        self._ready = True

    @property
    def died_idle(self) -> bool:
        """Whether it was up, waiting for a job, and is no more."""
        return self._ready and self._process.poll() is not None

    def start_job(self, job: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        self._ready, self.jobs = False, self.jobs + 1
        try:
            socket.send_fds(self._socket, [b"j"], fds)
            wire.send(self._socket, job)
        except OSError as error:
            raise SandboxError(f"the sandbox is gone: {self._said() or error}") from error

    def send(self, message: Any) -> None:
        wire.send(self._socket, message)

    def receive(self, deadline: float) -> dict[str, Any] | None:
        """The next event; None when none came by `deadline` (of `time.monotonic`) or the sandbox ended."""
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            event = wire.receive(self._socket)
        except (OSError, EOFError):
            return None
        finally:
            self._socket.settimeout(None)
        return event if isinstance(event, dict) else None

    def close(self) -> None:
        """Ends it: by closing its socket, and by force if that is not enough."""
        self._socket.close()
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
        if self._folder:
            self._folder.cleanup()

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()[-KEPT_ERRORS:]


class Pool:
    """Keeps `2 * workers` sandboxes up; gives out at most `workers` slots, each of which may take two."""

    def __init__(self, settings: Settings, workers: int) -> None:
        self.mode = choose(settings)
        self._settings, self.process = settings, os.getpid()
        self._slots = threading.Semaphore(workers)
        self._idle: queue.Queue[Sandbox | SandboxError] = queue.Queue()
        self._orders: queue.Queue[bool] = queue.Queue()
        self._closed = False
        for _ in range(2 * workers):
            self._orders.put(True)
        # One thread starts them all and lives as long as they do, see Sandbox.
        self._starter = threading.Thread(target=self._start_sandboxes, name="forge-code-starter", daemon=True)
        self._starter.start()

    @contextmanager
    def slot(self, wait_s: float) -> Iterator[None]:
        """Waits for a turn. SandboxError when there is none in time."""
        if not self._slots.acquire(timeout=wait_s):
            raise SandboxError(f"no sandbox was free in {wait_s:g} s; raise `workers` or `wait_s` of the reward `code`")
        try:
            yield
        finally:
            self._slots.release()

    @contextmanager
    def sandbox(self) -> Iterator[Sandbox]:
        """A sandbox that waits for a job. SandboxError when none can be started."""
        sandbox = self._next()
        while sandbox.died_idle:  # killed while it waited, say for want of memory
            sandbox.close()
            self._orders.put(True)
            sandbox = self._next()
        reuse = False
        try:
            sandbox.wait_ready()
            yield sandbox
            if sandbox.nested and not sandbox.ended and not self._closed:
                # It did its job: a second is ample, unless something in it hangs.
                try:
                    sandbox.wait_ready(1.0)
                    reuse = True
                except SandboxError:
                    pass
        finally:
            if reuse:
                self._idle.put(sandbox)
            else:
                sandbox.close()
                self._orders.put(True)

    def _next(self) -> Sandbox:
        try:
            sandbox = self._idle.get(timeout=START_S)
        except queue.Empty:
            raise SandboxError(f"no sandbox came up in {START_S:g} s") from None
        if isinstance(sandbox, SandboxError):
            self._orders.put(True)
            raise sandbox
        return sandbox

    def close(self) -> None:
        """Ends every sandbox."""
        self._closed = True
        self._orders.put(False)
        self._starter.join(timeout=START_S)
        while not self._idle.empty():
            sandbox = self._idle.get()
            if isinstance(sandbox, Sandbox):
                sandbox.close()

    def _start_sandboxes(self) -> None:
        while self._orders.get():
            try:
                self._idle.put(Sandbox(self.mode, self._settings))
            except SandboxError as error:
                self._idle.put(error)


_LOCK = threading.Lock()
_POOLS: list[Pool] = []


def pool_for(settings: Settings, workers: int) -> Pool:
    """This process's pool with these settings (a forked child makes its own)."""
    with _LOCK:
        return _pool(settings, workers, os.getpid())


@atexit.register
def close_pools() -> None:
    """Ends this process's sandboxes; the next verdict starts others."""
    with _LOCK:
        for pool in [pool for pool in _POOLS if pool.process == os.getpid()]:
            pool.close()
            _POOLS.remove(pool)
        _pool.cache_clear()


@lru_cache
def _pool(settings: Settings, workers: int, _pid: int) -> Pool:
    pool = Pool(settings, workers)
    _POOLS.append(pool)
    return pool
