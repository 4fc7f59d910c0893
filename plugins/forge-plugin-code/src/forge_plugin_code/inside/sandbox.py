"""Pid 1 of a sandbox: waits for jobs on a socket (standard input) and runs each in namespaces of its own.

One job is one response. Processes, each the parent of the next:
    keeper    this loop; has read nothing but the job
    (helper)  takes fresh namespaces, waits; tests, which come from the data set, do without
    watcher   pid 1 in them: empty /tmp, no capabilities; limits time and output; tells the host what happened
    program   limits, seccomp filter, then the tested code or the tests; cannot see, signal or trace the ones above
Where a sandbox may not make further namespaces, it is its own watcher, serves one job and ends.

Jobs, as `wire` messages: {"kind": "stdio" | "candidate" | "tests", "code", "limits", ...}; the last two come with one
end of a socket pair that joins them. After {"event": "started"} whatever happens is the program's doing.
"""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

from . import candidate, namespaces, tester, wire
from .seccomp import build_filter, install, kernel

LIBC = kernel()
FILTER = build_filter(os.uname().machine)
TAIL = 2000  # bytes of standard error kept
PR_SET_DUMPABLE = 4


def main() -> None:
    """`sandbox.py MODE [SPEC]`: MODE is bwrap (already inside), namespaces (enter them) or none (stay outside)."""
    mode, spec = sys.argv[1], json.loads(sys.argv[2])
    sys.path[:] = [path for path in sys.path if path not in (spec["code"],)] + spec["path"]
    sys.set_int_max_str_digits(0)
    try:
        if mode == "namespaces":
            namespaces.enter(spec)
        # sock is made only now: the process that stays outside must not hold it
        sock = socket.socket(fileno=os.dup(0))
    except OSError as error:
        sys.exit(f"cannot isolate: {error}")
    LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nested = mode != "none" and _can_nest()
    gc.freeze()  # forks share these pages
    wire.send(sock, {"event": "ready", "nested": nested, "seccomp": FILTER is not None, "pid": os.getpid()})
    while True:
        job, fds = _next_job(sock)
        if nested:
            _in_child(sock, job, fds, spec["tmp_bytes"])
        else:
            watch(sock, job, fds)
            return
        for fd in fds:
            os.close(fd)
        wire.send(sock, {"event": "ready"})


def _next_job(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next job and the descriptors sent with the byte before it; ends this process when the host is gone."""
    mark, fds, _, _ = socket.recv_fds(sock, 1, 1)
    if not mark:
        sys.exit(0)
    return wire.receive(sock), list(fds)


def _can_nest() -> bool:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if namespaces.fresh(LIBC) else 1)
    return os.waitpid(pid, 0)[1] == 0


def _in_child(sock: socket.socket, job: dict[str, Any], fds: list[int], tmp_bytes: int) -> None:
    """Runs a job in a watcher of its own and waits; tested code also gets namespaces and a /tmp of its own."""
    helper = os.fork()
    if helper == 0:
        tested = job["kind"] != "tests"
        if tested and not namespaces.fresh(LIBC):
            os._exit(1)
        watcher = os.fork() if tested else 0
        if watcher == 0:
            try:
                if tested:
                    namespaces.fresh_tmp(LIBC, tmp_bytes)
                watch(sock, job, fds)
            except BaseException as error:  # reported, so that the host sees an error and no verdict
                with suppress(OSError):
                    wire.send(sock, {"event": "broken", "why": repr(error)})
            os._exit(0)
        os.waitpid(watcher, 0)
        os._exit(0)
    os.waitpid(helper, 0)


def watch(sock: socket.socket, job: dict[str, Any], fds: list[int]) -> None:
    """Runs one job's programs and tells the host about each."""
    namespaces.drop_capabilities(LIBC)
    limits = job["limits"]
    if job["kind"] != "stdio":
        report = b"" if job["kind"] == "tests" else None
        wire.send(sock, {"event": "started"})
        wire.send(sock, {"event": "ran", **_run(sock, job, fds, report, limits)})
        return
    wire.send(sock, {"event": "started"})
    while "input" in (message := wire.receive(sock)):
        wire.send(
            sock, {"event": "ran", **_run(sock, job, [], message["input"].encode(errors="surrogateescape"), limits)}
        )


def _run(
    sock: socket.socket, job: dict[str, Any], fds: list[int], data: bytes | None, limits: dict[str, Any]
) -> dict[str, Any]:
    """One process of the job: {"why": "" | "time" | "output" | "end", "status", "output", "errors"}.

    `status` is the exit status or minus the signal; `data` is the standard input.
    """
    stdin, output, errors = os.memfd_create("stdin"), os.pipe(), os.pipe()
    with open(stdin, "wb", closefd=False) as file:
        file.write(data or b"")
    os.lseek(stdin, 0, os.SEEK_SET)
    pid = os.fork()
    if pid == 0:
        _program(job, stdin, output[1], errors[1], fds, limits)
    for fd in (stdin, output[1], errors[1], *fds):
        os.close(fd)
    fds.clear()
    try:
        return _supervise(sock, pid, output[0], errors[0], limits)
    finally:
        os.close(output[0])
        os.close(errors[0])


def _supervise(sock: socket.socket, pid: int, output: int, errors: int, limits: dict[str, Any]) -> dict[str, Any]:
    """Collects output until the program ends, breaks a limit, or the host says something (which means: stop)."""
    deadline, why = time.monotonic() + limits["timeout_s"], ""
    kept, tail, room = bytearray(), b"", limits["output_bytes"]
    handle = os.pidfd_open(pid)
    with selectors.DefaultSelector() as selector:
        for fd in (output, errors, handle, sock.fileno()):
            selector.register(fd, selectors.EVENT_READ)
        while not why:
            events = [key.fd for key, _ in selector.select(max(0.0, deadline - time.monotonic()))]
            if time.monotonic() >= deadline:
                why = "time"
            for fd in events:
                if fd in (output, errors):
                    chunk = os.read(fd, 65536)
                    if not chunk:
                        selector.unregister(fd)
                    room -= len(chunk)
                    if fd == output:
                        kept += chunk
                    else:
                        tail = (tail + chunk)[-TAIL:]
            if room < 0:
                why = "output"
            elif sock.fileno() in events:
                why = why or "end"
            elif handle in events and not {output, errors} & set(events):
                break  # it ended, and everything it wrote was read
    os.close(handle)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    if os.getpid() == 1:  # everything in these namespaces
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    text, shown = kept.decode(errors="replace"), tail.decode(errors="replace")
    return {"why": why, "status": status, "output": text if why != "output" else "", "errors": shown}


def _program(job: dict[str, Any], stdin: int, output: int, errors: int, fds: list[int], limits: dict[str, Any]) -> None:
    """Becomes the tested code or the tests; never returns."""
    status = 1
    try:
        os.setsid()
        stdout = output if job["kind"] == "stdio" else os.open("/dev/null", os.O_WRONLY)
        report = os.dup(output) if job["kind"] == "tests" else -1
        for place, fd in enumerate((stdin, stdout, errors)):
            os.dup2(fd, place)
        keep = sorted({fd for fd in (report, *fds) if fd > 2})
        for low, high in zip([2, *keep], [*keep, 4096], strict=True):
            os.closerange(low + 1, high)
        _limit(limits)
        sys.stdin = open(0, encoding="utf-8", closefd=False)
        sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
        if FILTER is not None:
            install(LIBC, FILTER)
        status = _execute(job, fds, report)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _execute(job: dict[str, Any], fds: list[int], report: int) -> int:
    if job["kind"] == "stdio":
        try:
            candidate.run_program(job["code"])
        except SystemExit as end:
            code = end.code
            return code if isinstance(code, int) else int(code is not None)
        finally:
            if "threading" in sys.modules:
                sys.modules["threading"]._shutdown()  # waits for the program's threads, as the interpreter does
        return 0
    channel = socket.socket(fileno=fds[0])
    if job["kind"] == "candidate":
        candidate.Candidate(channel).run(job["code"])
        return 0
    with io.FileIO(report, "w") as file:

        def tell(**event: Any) -> None:
            file.write(json.dumps(event).encode() + b"\n")

        try:
            for failure in tester.Tester(channel).run(job["setup"], job["units"], job["entry_point"]):
                tell(failure=failure)
                if failure and job["stop"]:
                    break
        except tester.NotGradable as error:
            tell(error=str(error))
    return 0


def _limit(limits: dict[str, Any]) -> None:
    seconds = max(1, int(limits["timeout_s"] + 0.999))
    pairs = {
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    if os.getpid() != 1 and os.getppid() == 1 and _kernel_at_least(5, 14):  # counted per user namespace since then
        pairs[resource.RLIMIT_NPROC] = 64
    for kind, value in pairs.items():
        _soft, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _kernel_at_least(*version: int) -> bool:
    release = os.uname().release.split("-")[0].split(".")
    return tuple(int(part) for part in release[:2] if part.isdigit()) >= version
