"""What happens first in every remote process: its output goes to a log file.

That it dies with its parent is Monarch's own doing. `prepare` is handed to Monarch as the bootstrap callable, so it
must pickle by reference and stay light.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence


def bootstrap(log_dir: str | None, mesh: str, files: Sequence[str] = (), role: str = "") -> Callable[[], None]:
    """The callable that `prepare`s each process of a mesh."""
    return functools.partial(prepare, log_dir, mesh, tuple(files), role)


def prepare(log_dir: str | None, mesh: str, files: Sequence[str] = (), role: str = "") -> None:
    """Redirect stdout and stderr (native code's too) to `log_dir/mesh.RANK.log` and logs to `.jsonl` beside it, and
    import the run's one-file modules.

    An actor class from such a file reaches the process as a reference to its module, which must be there by then.
    """
    _redirect(log_dir, mesh)
    _log(log_dir, mesh, role)
    if files:
        from forge_host.plugins.targets import import_file

        for file in files:
            import_file(file)


def _redirect(log_dir: str | None, mesh: str) -> None:
    if log_dir is None:
        return
    os.makedirs(log_dir, exist_ok=True)
    path = log_path(log_dir, mesh, int(os.environ.get("RANK", "0")))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _log(log_dir: str | None, mesh: str, role: str) -> None:
    """What this process and its libraries log becomes JSON lines beside the output."""
    if log_dir is None:
        return
    from forge_host.runtime.logs import configure

    rank, run = int(os.environ.get("RANK", "0")), os.path.basename(os.path.dirname(os.path.abspath(log_dir)))
    where = {"mesh": mesh, "rank": rank, "host": socket.gethostname(), "pid": os.getpid()}
    configure(log_dir, f"{mesh}.{rank}", echo="info", library_level=logging.INFO, run=run, role=role, **where)


def log_path(log_dir: str, mesh: str, rank: int) -> str:
    """Where the output of one rank of a mesh goes."""
    return os.path.join(log_dir, f"{mesh}.{rank}.log")


def last_lines(path: str, count: int = 5, max_bytes: int = 4096) -> str:
    """The end of a dead process's log, for the error that reports its death; empty when there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - max_bytes))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join([line for line in lines if line.strip()][-count:])


def free_port() -> int:
    """A TCP port on loopback that was free a moment ago, for a process group's rendezvous."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank_environment(rank: int, procs: int, port: int, extra: Mapping[str, str]) -> dict[str, str]:
    """The variables that torch.distributed reads, plus a role's own."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(procs),
        "LOCAL_WORLD_SIZE": str(procs),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **extra,
    }
