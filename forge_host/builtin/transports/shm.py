"""Weights through shared memory of one host: one copy in, none out, and nothing to clean up.

Why memfd and not /dev/shm: an anonymous memory file has no name, so the kernel frees it with its last user. Nothing
stays in /dev/shm after success, a crash or kill -9, and its size is bounded by memory, not by a mount's size. Readers
open it as /proc/<pid>/fd/<n>, which works between processes of one user that see each other in /proc.

    sender, reader = SharedMemory(), SharedMemory()
    sender.open("run-1")
    receipt = sender.publish(1, model.state_dict().items())
    for name, tensor in reader.fetch(receipt):
        parameters[name].copy_(tensor)

A reader holds a shared flock on the buffer while it iterates: its lease, which the kernel ends with the process. The
publisher keeps the newest two versions and writes the next one into the older buffer if it gets that buffer's
exclusive flock, otherwise into a new one. So a leased version is never overwritten, and memory is two versions plus
those that readers still hold. A reader on a CPU keeps two mappings for the next versions, and with them the buffers.
"""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import attrs

from forge_host.api import Capabilities, Receipt
from forge_host.builtin.transports.flat import index_bytes, views
from forge_host.builtin.transports.lease import TOKEN_BYTES, LeasedFile, take_lease
from forge_host.builtin.transports.memory import require_memory
from forge_host.builtin.transports.pinned import Pin, PinnedMaps, uses_gpu
from forge_host.builtin.transports.private import PrivateMaps
from forge_host.loop.checksum import tensor_digest

if TYPE_CHECKING:
    import torch

ALIGNMENT = 64  #: bytes; every tensor starts at a multiple, so that any dtype can be viewed in place


@attrs.define(kw_only=True)
class SharedMemory:
    """The transport `shm`. `fetch` gives views of the shared pages, without a copy.

    On a CPU they are private: what a reader writes while it iterates stays with it. In a process that uses a GPU the
    pages are locked for it (`forge_host.builtin.transports.pinned`) and shared, so the views are for reading.
    """

    capabilities: Capabilities = attrs.field(default=Capabilities(resharding=True, partial=True), init=False)
    _namespace: str = attrs.field(default="", init=False)
    _version: int | None = attrs.field(default=None, init=False)
    _buffers: list[_Buffer] = attrs.field(factory=list, init=False)
    _pinned: PinnedMaps = attrs.field(factory=PinnedMaps, init=False)
    _private: PrivateMaps = attrs.field(factory=PrivateMaps, init=False)

    def open(self, namespace: str) -> None:
        """`namespace` names the buffers in /proc/<pid>/maps."""
        self._namespace = namespace

    def publish(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]], *, checksums: bool = False) -> Receipt:
        """Copy every tensor in, as it is (any dtype, device and strides); the caller may change them afterwards.

        A failure while copying publishes nothing: the version before stays the newest.

        Raises:
            ValueError: the version is not newer than the last, or a name comes twice.
            RunError: not enough memory, with the size needed.
        """
        if self._version is not None and version <= self._version:
            raise ValueError(f"version {version} was published after {self._version}")
        buffer = self._writable()
        try:
            index, digests = buffer.write(tensors, checksums)
        except BaseException:
            buffer.close()
            raise
        self._buffers.append(buffer)
        self._version = version
        return Receipt(
            version=version,
            num_tensors=len(index),
            num_bytes=sum(size for *_, size in index),
            location={**buffer.location(), "tensors": index},
            checksums=digests if checksums else None,
        )  # fmt: skip

    def fetch(self, receipt: Receipt) -> Iterator[tuple[str, torch.Tensor]]:
        """The receipt's tensors; the lease is taken here and ends when the iterator does.

        Raises:
            RunError: the version is gone, its publisher is, or it is on another host.
        """
        return self._views(receipt, take_lease(receipt))

    def close(self) -> None:
        """Free this process's versions; readers that hold one keep it until they are done."""
        while self._buffers:
            self._buffers.pop().close()
        self._pinned.close()
        self._private.close()

    def _writable(self) -> _Buffer:
        """The older of two buffers when nobody reads it, else a new one."""
        while len(self._buffers) >= 2:
            oldest = self._buffers.pop(0)
            if oldest.lock():
                return oldest
            oldest.close()
        buffer = _Buffer(self._namespace, expected=max((b.touched for b in self._buffers), default=0))
        buffer.lock()
        return buffer

    def _views(self, receipt: Receipt, lease: io.FileIO) -> Iterator[tuple[str, torch.Tensor]]:
        index = receipt.location["tensors"]
        end = index_bytes(index)
        with lease:
            pages = self._pinned.get(lease.fileno(), receipt.location, end) if uses_gpu() else None
            if pages is not None:
                yield from views(_flat(pages, end), index)
                return
            with self._private.taken(lease.fileno()) as pages:
                yield from views(_flat(pages, end), index)


def _flat(pages: mmap.mmap, end: int) -> torch.Tensor:
    """One tensor, so that a reader of its views sees which of them lie next to each other."""
    import torch

    return torch.frombuffer(pages, dtype=torch.uint8, count=end) if end else torch.empty(0, dtype=torch.uint8)


class _Buffer(LeasedFile):
    """One memory file that holds a version behind its token, and its mapping.

    Args:
        expected: bytes of the version before; tensors on a GPU are copied faster into memory of a known size.
    """

    def __init__(self, namespace: str, expected: int = 0) -> None:
        super().__init__(namespace)
        self._pages: mmap.mmap | None = None
        self._pin: Pin | None = None
        self._places: dict[tuple[int, torch.dtype, tuple[int, ...]], torch.Tensor] = {}
        self._expected = expected
        self.touched = 0  # bytes that may have pages behind them

    def write(
        self, tensors: Iterable[tuple[str, torch.Tensor]], checksums: bool
    ) -> tuple[list[tuple[str, str, tuple[int, ...], int, int]], dict[str, str]]:
        """Fill a locked buffer and unlock it: (name, dtype, shape, offset, bytes) of each tensor, and digests."""
        import torch

        self._reserve(TOKEN_BYTES)
        self.unseal()
        index: list[tuple[str, str, tuple[int, ...], int, int]] = []
        digests: dict[str, str] = {}
        names: set[str] = set()
        end = TOKEN_BYTES
        for name, tensor in tensors:
            if name in names:
                raise ValueError(f"tensor {name!r} comes twice")
            names.add(name)
            tensor = tensor.detach()
            offset = -(-end // ALIGNMENT) * ALIGNMENT
            end = offset + tensor.nbytes
            if tensor.nbytes:
                self._reserve(end)
                self._place(offset, tensor).copy_(tensor, non_blocking=self._pin is not None)
            index.append((name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset, tensor.nbytes))
            if checksums:
                digests[name] = tensor_digest(tensor)
        if self._pin is not None:
            torch.cuda.synchronize()
        if len(self._places) > 2 * len(index):  # of versions of other sizes
            self._places.clear()
        self.seal()
        return index, digests

    def close(self) -> None:
        self._unpin()
        self._places.clear()
        if self._pages is not None:
            self._pages.close()
            self._pages = None
        super().close()

    def _place(self, offset: int, like: torch.Tensor) -> torch.Tensor:
        """A view of the mapping; a model's tensors are the same every time, and making views takes as long as small
        tensors' copies."""
        import torch

        key = offset, like.dtype, like.shape
        place = self._places.get(key)
        if place is None:
            assert self._pages is not None
            flat = torch.frombuffer(self._pages, dtype=torch.uint8, count=like.nbytes, offset=offset)
            place = self._places[key] = flat.view(like.dtype).view(like.shape)
        return place

    def _reserve(self, size: int) -> None:
        """Room for `size` bytes in the mapping; it grows by more than needed, as untouched pages cost nothing."""
        if self._pages is None or size > len(self._pages):
            room = max(size + size // 4, self._expected, 1 << 20)
            require_memory(size - self.touched, "publish the weights")
            self._unpin()
            self._places.clear()  # the mapping cannot grow with views of it
            if self._pages is None:
                os.ftruncate(self.fd, room)
                self._pages = mmap.mmap(self.fd, room)
            else:
                self._pages.resize(room)
        known = max(self.touched, self._expected)
        if self._pin is None and known > size and uses_gpu():
            self._pin = Pin.of(self._pages, known)
        self.touched = max(self.touched, size)

    def _unpin(self) -> None:
        if self._pin is not None:
            self._pin.release()
            self._pin = None
