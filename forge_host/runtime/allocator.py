"""What glibc's allocator is told in processes that compute on a CPU; read when a process starts.

    environment = {**keep_memory(), "OMP_NUM_THREADS": "2"}
"""

from __future__ import annotations

import os


def keep_memory() -> dict[str, str]:
    """Freed memory stays with the process, at any size.

    By default big blocks go back to the kernel at once, and come back page by page: 14,000 faults for 57 MB. An older
    glibc (RHEL 9) refuses so large a threshold and would then map more than without any; it keeps its own.
    """
    if glibc() < (2, 35):
        return {}
    return {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**34)}


def glibc() -> tuple[int, ...]:
    """Version of the C library; (0,) of another one."""
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION") or ""  # "glibc 2.36"
    except (ValueError, OSError):
        return (0,)
    return tuple(int(part) for part in name.split()[-1].split(".")) if name else (0,)
