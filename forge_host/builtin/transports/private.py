"""A reader's private mappings of the publisher's buffers, kept from version to version.

    with maps.taken(fd) as pages:     # what is written to `pages` in the block stays here
        ...

Mapping 270 MB anew takes 15 ms of the processor for every version: a fault for each 16 pages, and the unmapping. In a
kept mapping, pages that nobody wrote are the file's, so they show the next version by themselves. A page that was
written is a copy and would stay as it is: then a new mapping is made. The kernel's page map tells, in 2 ms.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

ENTRY_BYTES = 8  #: of a page in /proc/self/pagemap
PRESENT, SWAPPED, FILE = 0x80, 0x40, 0x20  #: bits of an entry's last byte
CLEAN = bytes(byte for byte in range(256) if byte & FILE or not byte & (PRESENT | SWAPPED))


class PrivateMaps:
    """Keeps the newest `most` mappings that are not in use; each keeps its buffer's memory alive."""

    def __init__(self, most: int = 2) -> None:
        self._free: dict[tuple[int, int], mmap.mmap] = {}
        self._most = most

    @contextmanager
    def taken(self, fd: int) -> Iterator[mmap.mmap]:
        """A mapping of the whole file that nobody else has while the block lasts."""
        stat = os.fstat(fd)
        key = stat.st_ino, stat.st_size  # a mapped file lives, so no other has its number
        pages = self._free.pop(key, None)
        if pages is None or written(pages):
            # Opened anew, because a mapping keeps a copy of its descriptor, and with it the lease's lock.
            own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                pages = mmap.mmap(own, stat.st_size, access=mmap.ACCESS_COPY)  # unmapped with its last tensor
            finally:
                os.close(own)
        try:
            yield pages
        finally:
            self._free[key] = pages
            while len(self._free) > self._most:
                self._free.pop(next(iter(self._free)))

    def close(self) -> None:
        self._free.clear()


def written(pages: mmap.mmap) -> bool:
    """Whether a private mapping of a file has pages of its own; True as well where the kernel does not say."""
    import torch

    begin = torch.frombuffer(pages, dtype=torch.uint8, count=1).data_ptr() // mmap.PAGESIZE
    size = -(-len(pages) // mmap.PAGESIZE) * ENTRY_BYTES
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            found = os.pread(file.fileno(), size, begin * ENTRY_BYTES)
    except OSError:
        return True
    return len(found) != size or bool(found[ENTRY_BYTES - 1 :: ENTRY_BYTES].translate(None, delete=CLEAN))
