"""Failures at named points of a run: kill -9, a process that stops, a slow one, a closed socket, a full disk.

This module is a one-file plugin. `FORGE_FAULTS` says what happens when; faults are separated by `;`:

    FORGE_FAULTS="kill it at generator.generate#3; pause reward-0 2.5 at trainer.train_step#2" \\
        forge-host run c.yaml --plugin-file "$(python -m forge_host.testing.faults)"

    ACTION TARGET [SECONDS] at WHO.CALL[#N][+DELAY]

ACTION  kill (SIGKILL), stop (SIGSTOP), pause (SIGSTOP, SIGCONT after SECONDS: a slow reply), close (its connections)
TARGET  a mesh ("generator-0"), a role ("generator": the newest replica), or "it": what the call goes to
at      the N-th call (1 if left out) of that endpoint of that role or mesh; DELAY seconds after it was sent

From outside, `started(run_dir)` gives the processes of a run, to be hit at any moment, and `small_disk` a command that
runs another one with a small file system of its own.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import structlog

from forge_host.api import Finding, HostInfo, hookimpl
from forge_host.errors import UsageError

FORGE_API = "1.0"
VARIABLE = "FORGE_FAULTS"
_FAULT = re.compile(
    r"(?P<action>kill|stop|pause|close)\s+(?P<target>[\w-]+)(?:\s+(?P<seconds>[\d.]+))?"
    r"\s+at\s+(?P<who>[\w-]+)\.(?P<call>\w+)(?:#(?P<number>\d+))?(?:\+(?P<delay>[\d.]+))?"
)
_PIDFD_GETFD = 438  # of every Linux architecture
log = structlog.get_logger()


@attrs.define
class Fault:
    """One failure; see the module."""

    action: str
    target: str
    who: str
    call: str
    number: int = 1
    seconds: float = 0.0
    delay: float = 0.0


def parse(text: str) -> list[Fault]:
    """The faults of `FORGE_FAULTS`.

    Raises:
        UsageError: one of them is not a sentence of the module's grammar.
    """
    faults = []
    for sentence in filter(None, map(str.strip, text.split(";"))):
        found = _FAULT.fullmatch(sentence)
        if found is None or (found["action"] == "pause") != bool(found["seconds"]):
            raise UsageError(
                f"`{sentence}` is no fault", where=VARIABLE,
                fix="write `kill it at generator.generate#3` or `pause reward 2.5 at trainer.train_step`",
            )  # fmt: skip
        faults.append(
            Fault(
                found["action"], found["target"], found["who"], found["call"], int(found["number"] or 1),
                float(found["seconds"] or 0), float(found["delay"] or 0),
            )
        )  # fmt: skip
    return faults


@hookimpl
def forge_check_plan(plan: Any, host: HostInfo) -> Iterable[Finding]:
    """Arms the faults: the first hook of a run, before its processes start."""
    from forge_host.runtime import handle

    if not any(isinstance(tell, Faults) for tell in handle.on_call):
        handle.on_call.append(Faults(parse(os.environ.get(VARIABLE, ""))))
    return ()


@attrs.define(eq=False)
class Faults:
    """Hears of every remote call, and lets things fail. One in `forge_host.runtime.handle.on_call`."""

    faults: list[Fault]
    _calls: Counter[tuple[str, str]] = attrs.Factory(Counter)

    def __call__(self, handle: Any, call: str) -> None:
        names = {handle.mesh, *_roles(handle.mesh)}
        for name in names:
            self._calls[name, call] += 1
        for fault in self.faults:
            if fault.who in names and fault.call == call and self._calls[fault.who, call] == fault.number:
                if fault.delay:
                    asyncio.get_running_loop().call_later(fault.delay, self._let, fault, handle)
                else:
                    self._let(fault, handle)

    def _let(self, fault: Fault, called: Any) -> None:
        from forge_host.runtime.session import current_session

        handles = [called] if fault.target == "it" else current_session().handles
        target = next((h for h in reversed(handles) if fault.target in ("it", h.mesh, *_roles(h.mesh))), None)
        log.warning("fault", **attrs.asdict(fault), hit=target.mesh if target else None)
        for pid in target.pids if target else ():
            hit(pid, fault.action, fault.seconds)


def hit(pid: int, action: str, seconds: float = 0.0) -> None:
    """Let one process fail; nothing happens when it is gone. `pause` needs a running event loop."""
    try:
        if action == "close":
            close_connections(pid)
        else:
            os.kill(pid, signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        if action == "pause":
            asyncio.get_running_loop().call_later(seconds, os.kill, pid, signal.SIGCONT)
    except ProcessLookupError:
        log.info("fault too late, the process is gone", pid=pid)


def close_connections(pid: int) -> int:
    """Shut down every connection of another process from outside (as root or its parent); how many there were.

    Connections inside the process (Rust's and asyncio's wake-up pairs have no address) stay.
    """
    libc, closed = ctypes.CDLL(None, use_errno=True), 0
    pidfd = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                    continue
            except FileNotFoundError:
                continue
            number = libc.syscall(_PIDFD_GETFD, pidfd, int(name), 0)
            if number < 0:
                code = ctypes.get_errno()
                raise OSError(code, f"cannot reach the sockets of process {pid}: {os.strerror(code)}")
            with socket.socket(fileno=number) as found:
                if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    continue
                try:
                    if found.getsockname() or found.getpeername():
                        found.shutdown(socket.SHUT_RDWR)
                        closed += 1
                except OSError:
                    continue  # not connected
    finally:
        os.close(pidfd)
    return closed


@attrs.frozen
class Started:
    """One process of a run."""

    mesh: str
    role: str
    rank: int
    host: str
    pid: int


def started(run_dir: Path) -> list[Started]:
    """Every process that a run has started so far, from its log; those of restarted replicas come later."""
    found = []
    for line in (run_dir / "logs" / "controller.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "processes started":
            for rank, (host, pid) in enumerate(event["ranks"]):
                found.append(Started(event["mesh"], event["for_role"], rank, host, pid))
    return found


def small_disk(folder: Path, kilobytes: int, command: Sequence[str]) -> list[str]:
    """`command` with a file system of this size at `folder`, which only it sees and which is gone with it.

    Without root it needs user namespaces (`unshare --map-root-user`), which most distributions allow.
    """
    script = f'mount -t tmpfs -o size={kilobytes}k none "$0" && exec "$@"'
    rootless = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *rootless, "--mount", "sh", "-c", script, str(folder), *command]


def _roles(mesh: str) -> tuple[str, str]:
    """`generator-0-r2` to its replica `generator-0` and its role `generator`."""
    found = re.match(r"(.*?)-\d+", mesh)
    return (found.group(0), found.group(1)) if found else (mesh, mesh)


if __name__ == "__main__":
    print(Path(__file__).resolve())
