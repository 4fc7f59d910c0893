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
those that readers still hold.
"""

from __future__ import annotations

import fcntl
import io
import mmap
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from forge_host.api import Capabilities, Receipt
from forge_host.builtin.transports.memory import require_memory
from forge_host.errors import RunError
from forge_host.loop.checksum import tensor_digest

if TYPE_CHECKING:
    import torch

ALIGNMENT = 64  #: bytes; every tensor starts at a multiple, so that any dtype can be viewed in place
TOKEN_BYTES = 16  #: the buffer's first bytes: a random token of the version in it, written last


@attrs.define(kw_only=True)
class SharedMemory:
    """The transport `shm`. `fetch` gives private views of the shared pages: no copy, and a write stays local."""

    capabilities: Capabilities = attrs.field(default=Capabilities(resharding=True, partial=True), init=False)
    _namespace: str = attrs.field(default="", init=False)
    _version: int | None = attrs.field(default=None, init=False)
    _buffers: list[_Buffer] = attrs.field(factory=list, init=False)

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
            location={
                "boot": _boot_id(), "pid": os.getpid(), "fd": buffer.fd, "token": buffer.token, "tensors": index,
            },
            checksums=digests if checksums else None,
        )  # fmt: skip

    def fetch(self, receipt: Receipt) -> Iterator[tuple[str, torch.Tensor]]:
        """The receipt's tensors; the lease is taken here and ends when the iterator does.

        Raises:
            RunError: the version is gone, its publisher is, or it is on another host.
        """
        where = f"version {receipt.version} of the weights"
        location = receipt.location
        if location["boot"] != _boot_id():
            raise RunError(f"{where} is in another host's memory", fix="set transport: file, or one that crosses hosts")
        path = f"/proc/{location['pid']}/fd/{location['fd']}"
        try:
            lease = io.FileIO(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "r")
        except PermissionError as error:
            raise RunError(
                f"{where} cannot be read: no permission for {path}",
                fix="run trainer and generator as one user, or set transport: file",
            ) from error
        except OSError as error:
            raise _gone(receipt, "its publisher has closed it or died") from error
        return self._views(receipt, lease)

    def close(self) -> None:
        """Free this process's versions; readers that hold one keep it until they are done."""
        while self._buffers:
            self._buffers.pop().close()

    def _writable(self) -> _Buffer:
        """The older of two buffers when nobody reads it, else a new one."""
        while len(self._buffers) >= 2:
            oldest = self._buffers.pop(0)
            if oldest.lock():
                return oldest
            oldest.close()
        buffer = _Buffer(self._namespace)
        buffer.lock()
        return buffer

    @staticmethod
    def _views(receipt: Receipt, lease: io.FileIO) -> Iterator[tuple[str, torch.Tensor]]:
        import torch

        with lease:
            try:
                fcntl.flock(lease, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                raise _gone(receipt, "its memory is being used for a newer one") from error
            if os.pread(lease.fileno(), TOKEN_BYTES, 0) != receipt.location["token"]:
                raise _gone(receipt, "a newer one has taken its memory")
            pages = mmap.mmap(lease.fileno(), 0, access=mmap.ACCESS_COPY)  # unmapped with its last tensor
            for name, dtype, shape, offset, size in receipt.location["tensors"]:
                kind = getattr(torch, dtype)
                if size == 0:
                    yield name, torch.empty(shape, dtype=kind)
                    continue
                flat = torch.frombuffer(pages, dtype=torch.uint8, count=size, offset=offset)
                yield name, flat.view(kind).view(shape)


class _Buffer:
    """One memory file that holds a version, and its mapping."""

    def __init__(self, namespace: str) -> None:
        self.fd = os.memfd_create(f"forge-host {namespace}"[:200], os.MFD_CLOEXEC)
        self.token = b""
        self._pages: mmap.mmap | None = None
        self._touched = 0  # bytes that may have pages behind them

    def lock(self) -> bool:
        """Take the exclusive lock; False while a reader has a lease."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def write(
        self, tensors: Iterable[tuple[str, torch.Tensor]], checksums: bool
    ) -> tuple[list[tuple[str, str, tuple[int, ...], int, int]], dict[str, str]]:
        """Fill a locked buffer and unlock it: (name, dtype, shape, offset, bytes) of each tensor, and digests."""
        import torch

        self._reserve(TOKEN_BYTES)
        self._set_token(bytes(TOKEN_BYTES))
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
                pages = self._reserve(end)
                room = torch.frombuffer(pages, dtype=torch.uint8, count=tensor.nbytes, offset=offset)
                room.view(tensor.dtype).view(tensor.shape).copy_(tensor)
                del room  # or the mapping could not grow
            index.append((name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset, tensor.nbytes))
            if checksums:
                digests[name] = tensor_digest(tensor)
        self._set_token(secrets.token_bytes(TOKEN_BYTES))
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        return index, digests

    def close(self) -> None:
        if self._pages is not None:
            self._pages.close()
            self._pages = None
        os.close(self.fd)

    def _reserve(self, size: int) -> mmap.mmap:
        """The mapping, with room for `size` bytes; it grows by more than needed, as untouched pages cost nothing."""
        if self._pages is None or size > len(self._pages):
            room = max(size + size // 4, 1 << 20)
            require_memory(size - self._touched, "publish the weights")
            if self._pages is None:
                os.ftruncate(self.fd, room)
                self._pages = mmap.mmap(self.fd, room)
            else:
                self._pages.resize(room)
        self._touched = max(self._touched, size)
        return self._pages

    def _set_token(self, token: bytes) -> None:
        self.token = token
        os.pwrite(self.fd, token, 0)


def _boot_id() -> str:
    """Tells hosts apart, and a host from itself before a restart."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _gone(receipt: Receipt, why: str) -> RunError:
    return RunError(
        f"version {receipt.version} of the weights is gone: {why}",
        fix="fetch the newest version; only two are kept",
    )
