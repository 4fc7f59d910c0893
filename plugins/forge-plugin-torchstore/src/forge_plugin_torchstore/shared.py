"""Whether /dev/shm has room for what TorchStore's shared memory will put there.

require_shared_memory(model_bytes, have=0)
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from forge_host.builtin.transports.memory import gib
from forge_host.errors import RunError

FOLDER = "/dev/shm"


def require_shared_memory(num_bytes: int, *, version_bytes: int = 0) -> None:
    """Raises RunError when `num_bytes` more do not fit, with the size that two versions need.

    Why: TorchStore would be killed by SIGBUS when it touches a page that the mount has no room for.
    """
    stat = os.statvfs(FOLDER)
    free, total = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
    if num_bytes <= free:
        return
    used = total - free
    size = used + 2 * max(num_bytes, version_bytes)
    raise RunError(
        f"{FOLDER} is too small to publish the weights: {gib(num_bytes)} needed, {gib(free)} of {gib(total)} free",
        where="transport torchstore",
        fix=f"mount -o remount,size={-(-size // 2**30)}G {FOLDER} (docker: --shm-size), or set transport: shm, "
        "which does not use it",
    )


def leftovers() -> tuple[str, str] | None:
    """What processes that were killed have left in /dev/shm, and the command that removes it; None when nothing.

    Why not remove it: in another container that shares this /dev/shm the process may well live.
    """
    dead: dict[str, int] = {}
    for path in Path(FOLDER).glob("torch_*"):
        found = re.match(r"torch_(\d+)_", path.name)  # PyTorch's names, which begin with the maker's process id
        try:
            if found and path.stat().st_uid == os.getuid() and not Path(f"/proc/{found[1]}").exists():
                dead[found[1]] = dead.get(found[1], 0) + path.stat().st_size
        except FileNotFoundError:
            continue
    if not dead:
        return None
    what = f"{FOLDER} holds {sum(dead.values()) / 1e6:.0f} MB of shared memory of processes that were killed"
    return what, "rm " + " ".join(f"{FOLDER}/torch_{pid}_*" for pid in sorted(dead))
