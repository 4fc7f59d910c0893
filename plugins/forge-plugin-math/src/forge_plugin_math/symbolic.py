"""Symbolic equality through math-verify, in a child process with a real deadline and a memory limit.

Why a process: computer algebra can hang or take all memory on an answer like 9^{9^{9^9}}, math-verify's own deadline
needs the main thread (SIGALRM; elsewhere it fails or grades everything 0), and a thread cannot be killed. The child
starts on the first answer that is not a plain number, ends with its parent, and is replaced after a deadline.

    checker().equal(r"\\frac{\\sqrt{2}}{2}", r"1/\\sqrt{2}", timeout_s=5.0)      # True
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import subprocess
import sys
import threading
import time

MAX_MEMORY = 2 * 1024**3  # bytes of address space of the child
START_TIMEOUT_S = 60.0  # importing sympy takes 1 to 20 s, by disk


class Checker:
    """One child process; calls from several threads take turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._ready = False

    def equal(self, gold: str, answer: str, *, timeout_s: float) -> bool:
        """Whether math-verify finds `answer` equal to `gold` (LaTeX or plain; not symmetric, gold goes first).

        Takes at most `timeout_s` seconds to get its turn and as many for the verdict.

        Raises:
            TimeoutError: no turn or no verdict in time.
            RuntimeError: the child did not start, or died, say at its memory limit.
        """
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise TimeoutError(f"other symbolic checks took more than {timeout_s:g} s")
        try:
            process = self._running(deadline)
            return self._ask(process, gold, answer, timeout_s)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Ends the child; the next call starts another."""
        process, self._process, self._ready = self._process, None, False
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _ask(self, process: subprocess.Popen[bytes], gold: str, answer: str, timeout_s: float) -> bool:
        assert process.stdin is not None
        what = f"{answer[:60]!r} = {gold[:60]!r}"
        try:
            process.stdin.write(json.dumps([gold, answer, timeout_s]).encode() + b"\n")
            line = self._read_line(process, time.monotonic() + timeout_s)
        except TimeoutError:
            self.close()
            self._spawn()  # starts while other replies are graded
            raise TimeoutError(f"no verdict on {what} in {timeout_s:g} s") from None
        except BrokenPipeError:
            line = b""
        if line not in (b"1\n", b"0\n"):
            self.close()
            raise RuntimeError(f"the symbolic check of {what} ended its process")
        return line == b"1\n"

    def _running(self, deadline: float) -> subprocess.Popen[bytes]:
        """The child, ready. One that is still starting at the deadline is left to go on for the next call."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._spawn()
        assert self._process is not None
        if not self._ready:
            try:
                self._ready = self._read_line(self._process, deadline) == b"ready\n"
            except TimeoutError:
                if time.monotonic() < self._started + START_TIMEOUT_S:
                    raise TimeoutError("the process for symbolic checks is still starting") from None
            if not self._ready:
                self.close()
                raise RuntimeError("the process for symbolic checks did not start; is math-verify installed here?")
        return self._process

    def _spawn(self) -> None:
        command = [sys.executable, "-m", "forge_plugin_math.symbolic_child", str(MAX_MEMORY)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment
        )
        self._started = time.monotonic()

    @staticmethod
    def _read_line(process: subprocess.Popen[bytes], deadline: float) -> bytes:
        """One line of the child; b"" when it closed its output."""
        assert process.stdout is not None
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                chunk = os.read(process.stdout.fileno(), 4096)
                if not chunk:
                    return b""
                line += chunk
        return line


_checkers: dict[int, Checker] = {}
_checkers_lock = threading.Lock()


def checker() -> Checker:
    """This process's Checker (a forked child gets its own)."""
    pid = os.getpid()
    with _checkers_lock:
        if pid not in _checkers:
            _checkers.clear()
            _checkers[pid] = Checker()
            atexit.register(_checkers[pid].close)
        return _checkers[pid]
