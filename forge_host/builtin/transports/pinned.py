"""Page-locks mapped memory, so that a GPU copies from and to it at the speed of the bus, asynchronously.

    pin = Pin.of(pages, num_bytes)      # None in a process that does not use a GPU
    tensor_on_gpu.copy_(view_of_pages, non_blocking=True)
    pin.release()                       # before the pages are unmapped or moved

Pageable memory is copied through a small buffer of the driver instead, by the CPU.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from typing import Any

import attrs
import structlog

log = structlog.get_logger()


@attrs.frozen(eq=False)
class Pin:
    """The first `num_bytes` of `pages`, registered; they stay mapped as long as this is there."""

    pages: mmap.mmap
    address: int
    num_bytes: int

    @classmethod
    def of(cls, pages: mmap.mmap, num_bytes: int) -> Pin | None:
        """Lock the first bytes of a writable mapping; None when this process uses no GPU or the driver refuses."""
        if not uses_gpu() or not num_bytes:
            return None
        import torch

        size = min(len(pages), -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        address = torch.frombuffer(pages, dtype=torch.uint8, count=size).data_ptr()
        code = int(_runtime().cudaHostRegister(address, size, 0))
        if code:
            log.warning("the GPU driver refuses to page-lock the weights' memory; copies take longer", error=code)
            return None
        return cls(pages, address, size)

    def release(self) -> None:
        import torch

        torch.cuda.synchronize()  # no copy may be under way
        _runtime().cudaHostUnregister(self.address)


class PinnedMaps:
    """A reader's page-locked mappings of the publisher's buffers, kept from version to version."""

    def __init__(self, most: int = 2) -> None:
        self._maps: dict[tuple[int, int, int], Pin] = {}
        self._most = most

    def get(self, fd: int, location: Mapping[str, Any], num_bytes: int) -> mmap.mmap | None:
        """The buffer's pages, shared with the publisher (for reading only); None when they cannot be locked.

        Args:
            fd: of the buffer.
            location: the receipt's.
            num_bytes: to be locked.
        """
        stat = os.fstat(fd)
        key = (location["pid"], stat.st_ino, stat.st_size)
        if key not in self._maps:
            while len(self._maps) >= self._most:
                self._maps.pop(next(iter(self._maps))).release()
            # Writable, since the driver locks pages for writing; through /proc because the lease is read-only.
            own = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
            try:
                pages = mmap.mmap(own, stat.st_size)
            finally:
                os.close(own)
            pin = Pin.of(pages, num_bytes)
            if pin is None:
                return None
            self._maps[key] = pin
        held = self._maps[key]
        return held.pages if held.num_bytes >= num_bytes else None

    def close(self) -> None:
        while self._maps:
            self._maps.popitem()[1].release()


def uses_gpu() -> bool:
    """Whether this process works on a CUDA device; asking does not make it so."""
    import torch

    return torch.cuda.is_initialized()


def _runtime() -> Any:
    import torch

    return torch.cuda.cudart()
