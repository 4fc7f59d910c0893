"""Whether /dev/shm has room for what TorchStore's shared memory will put there.

require_shared_memory(model_bytes, have=0)
"""

from __future__ import annotations

import os

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
