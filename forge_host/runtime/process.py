"""What happens first in every remote process: its output goes to a log file, its memory gets a limit, and its plugins
are compared with the run's.

That it dies with its parent is Monarch's own doing. `prepare` is handed to Monarch as the bootstrap callable, so it
must pickle by reference and stay light; what it raises fails the first call to the process.
"""

from __future__ import annotations

import functools
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge_host.plugins import PluginHost

#: The plugins of this process by the text of the lock they were checked against.
checked: dict[str, PluginHost] = {}


def bootstrap(
    log_dir: str | None, mesh: str, files: Sequence[str] = (), role: str = "", lock: str = "",
    memory_mb: int | None = None,
) -> Callable[[], None]:  # fmt: skip
    """The callable that `prepare`s each process of a mesh."""
    return functools.partial(prepare, log_dir, mesh, tuple(files), role, lock, memory_mb)


def prepare(
    log_dir: str | None, mesh: str, files: Sequence[str] = (), role: str = "", lock: str = "",
    memory_mb: int | None = None,
) -> None:  # fmt: skip
    """Redirect stdout and stderr (native code's too) to `log_dir/mesh.RANK.log` and logs to `.jsonl` beside it, limit
    the memory, check `lock` (a plugins.lock's text), and import the run's one-file modules.

    An actor class from such a file reaches the process as a reference to its module, which must be there by then.

    Raises:
        PluginError: this process has another version or content of one of the run's plugins; it names the host.
    """
    _redirect(log_dir, mesh)
    _log(log_dir, mesh, role)
    if memory_mb is not None:
        # Of the limits that a process may set, this one is nearest to what it really uses: private writable memory.
        resource.setrlimit(resource.RLIMIT_DATA, (memory_mb << 20, memory_mb << 20))
    if lock:
        check_lock(lock)
    if files:
        from forge_host.plugins.targets import import_file

        for file in files:
            import_file(file)


def check_lock(text: str) -> PluginHost:
    """The run's plugins in this process, loaded and compared once."""
    if text not in checked:
        from forge_host.plugins import PluginHost
        from forge_host.plugins.lock import PluginLock

        where = f"host {os.environ.get('FORGE_HOST_NAME') or socket.gethostname()}"
        checked[text] = PluginHost.from_lock(PluginLock.loads(text, where), where)
    return checked[text]


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


def rank_environment(
    rank: int, procs: int, per_host: int, master: tuple[str, int], extra: Mapping[str, str]
) -> dict[str, str]:
    """The variables that torch.distributed reads, plus a role's own; `master` is host and port of the rendezvous."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % per_host),
        "WORLD_SIZE": str(procs),
        "LOCAL_WORLD_SIZE": str(per_host),
        "MASTER_ADDR": master[0],
        "MASTER_PORT": str(master[1]),
        **extra,
    }
