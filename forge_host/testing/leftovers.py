"""What a component leaves behind: descriptors, files in /dev/shm, memory.

before = Opened()
use_it_and_close()
assert before.more() == []
"""

from __future__ import annotations

import os
import time

SHM = "/dev/shm"
OPENMP = "__KMP_REGISTERED_LIB_"  #: of a process that has Intel's OpenMP, as long as it lives; no component's


class Opened:
    """What this process has open, and what is in /dev/shm, at one moment."""

    def __init__(self) -> None:
        self.descriptors = len(os.listdir("/proc/self/fd"))
        found = os.listdir(SHM) if os.path.isdir(SHM) else []
        self.shared = {name for name in found if not name.startswith(OPENMP)}

    def more(self) -> list[str]:
        """What there is now and was not then, without what other processes use in /dev/shm or remove there soon."""
        patience = time.monotonic() + 5
        while (found := self._more()) and time.monotonic() < patience:
            time.sleep(0.2)
        return found

    def _more(self) -> list[str]:
        now = Opened()
        new = now.shared - self.shared
        left = [f"{SHM}/{name}" for name in sorted(new - _used_by_others())] if new else []
        extra = now.descriptors - self.descriptors
        return [*left, *([f"{extra} file descriptors"] if extra > 0 else [])]


def _used_by_others() -> set[str]:
    """Names in /dev/shm that other processes have mapped or open."""
    found: set[str] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/maps") as file:
                paths = [line.split(maxsplit=5)[-1].strip() for line in file if SHM in line]
            paths += [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue  # it ended, or is somebody else's
        found |= {path.removeprefix(SHM + "/") for path in paths if path.startswith(SHM + "/")}
    return found


def resident_bytes() -> int:
    """Memory that this process has in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
