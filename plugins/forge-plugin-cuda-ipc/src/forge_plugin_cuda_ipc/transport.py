"""Weights between a trainer and generators on one GPU: one copy in, none through the host.

    sender = CudaIpc(); sender.open("run-1")
    receipt = sender.publish(1, model.state_dict().items())
    for name, tensor in reader.fetch(receipt):              # in another process on the same GPU
        parameters[name].copy_(tensor)

`publish` copies into GPU memory of its own and waits for the copy, so the trainer may change its tensors afterwards.
The newest two versions stay, so this takes twice the model's bytes on the GPU, and those that readers still hold.
`fetch` gives views of that memory: they are for reading, what a reader writes into them every other reader sees. A
reader's lease (`forge_host.builtin.transports.lease`) keeps its version from being overwritten or freed and ends with
the reader's process.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import attrs

from forge_host.api import Capabilities, Receipt
from forge_host.builtin.transports.flat import Layout, fill, unpacked, views
from forge_host.builtin.transports.lease import LeasedFile, gone, take_lease
from forge_host.errors import RunError
from forge_plugin_cuda_ipc.driver import CudaDriver, Driver, Memory

if TYPE_CHECKING:
    import torch

MAPS = 2  #: publisher's memories that a reader keeps mapped


@attrs.define(kw_only=True)
class CudaIpc:
    """The transport `cuda-ipc`."""

    capabilities: Capabilities = attrs.field(default=Capabilities(gpu_direct=True, partial=True), init=False)
    _namespace: str = attrs.field(default="", init=False)
    _version: int | None = attrs.field(default=None, init=False)
    _slots: list[_Slot] = attrs.field(factory=list, init=False)
    _maps: dict[bytes, Memory] = attrs.field(factory=dict, init=False)
    _views_of: dict[bytes, tuple[bytes, list[tuple[str, torch.Tensor]]]] = attrs.field(factory=dict, init=False)
    _in_use: list[bytes] = attrs.field(factory=list, init=False)
    _device: Driver | None = attrs.field(default=None, init=False)

    def open(self, namespace: str) -> None:
        self._namespace = namespace

    def publish(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]], *, checksums: bool = False) -> Receipt:
        """Copy every tensor in, as it is. A failure publishes nothing: the version before stays the newest.

        Each tensor has to stay as it is until this returns.

        Raises:
            ValueError: the version is not newer than the last, or a name comes twice.
            RunError: not enough memory on the GPU, with the size needed.
        """
        if self._version is not None and version <= self._version:
            raise ValueError(f"version {version} was published after {self._version}")
        slot = self._writable()
        try:
            layout, digests = slot.write(tensors, checksums)
        except BaseException:
            slot.close()
            raise
        self._slots.append(slot)
        self._version = version
        return Receipt(
            version=version,
            num_tensors=len(layout.index),
            num_bytes=layout.num_bytes,
            location={
                **slot.location(), "gpu": self._driver().device(), "memory": slot.name, "handle": slot.handle,
                "bytes": slot.flat.numel(), "tensors": layout.packed,
            },
            checksums=digests if checksums else None,
        )  # fmt: skip

    def fetch(self, receipt: Receipt) -> Iterator[tuple[str, torch.Tensor]]:
        """The receipt's tensors, views of the publisher's memory; the lease is taken here.

        Raises:
            RunError: the version is gone, or this process is on another host or GPU.
        """
        lease = take_lease(receipt)
        try:
            gpu = self._driver().device()
            if receipt.location["gpu"] != gpu:
                raise RunError(
                    f"version {receipt.version} of the weights is on another GPU ({receipt.location['gpu']}) than this "
                    f"generator ({gpu})",
                    fix="set transport: nccl, or services.generator.colocate_with: trainer",
                )
            return self._views(receipt, lease, self._mapped(receipt))
        except BaseException:
            lease.close()
            raise

    def close(self) -> None:
        """Free this process's versions and unmap the others'."""
        while self._slots:
            self._slots.pop().close()
        for name in list(self._maps):
            self._unmap(name)

    def _driver(self) -> Driver:
        if self._device is None:
            self._device = self._make_driver()
        return self._device

    def _make_driver(self) -> Driver:
        return CudaDriver()

    def _writable(self) -> _Slot:
        """A slot that is not the newest and that nobody reads, else a new one.

        What is being read stays where it is: its reader may have taken the lease and not mapped the memory yet, and
        the driver leaves open what becomes of mapped memory that is freed.
        """
        free: list[_Slot] = []
        for slot in self._slots[:-1]:
            if slot.lock():
                free.append(slot)
                self._slots.remove(slot)
            else:
                slot.unseal()  # it is older than the two that are kept: nobody else may begin to read it
        if not free:
            free = [_Slot(self._namespace, self._driver())]
            free[0].lock()
        for slot in free[1:]:
            slot.close()
        return free[0]

    def _mapped(self, receipt: Receipt) -> torch.Tensor:
        """The publisher's memory in this process; uint8 [bytes]."""
        name = receipt.location["memory"]
        if name is None:  # a version without a single byte
            import torch

            return torch.empty(0, dtype=torch.uint8)
        if name not in self._maps:
            for old in [n for n in self._maps if n not in self._in_use][: max(0, len(self._maps) - MAPS + 1)]:
                self._unmap(old)
            self._maps[name] = self._driver().map(receipt.location["handle"], receipt.location["bytes"])
        return self._maps[name].tensor

    def _unmap(self, name: bytes) -> None:
        self._views_of.pop(name, None)
        self._driver().unmap(self._maps.pop(name))

    def _views(self, receipt: Receipt, lease: io.FileIO, flat: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        name = receipt.location["memory"]
        self._in_use.append(name)
        try:
            with lease:
                if name is not None and name not in self._maps:
                    raise gone(receipt, "this transport was closed")
                packed, made = receipt.location["tensors"], self._views_of.get(name)
                if made is None or made[0] != packed:
                    # Kept, as making the views takes longer than copying what they show.
                    made = packed, list(views(flat, unpacked(packed)))
                    if name is not None:
                        self._views_of[name] = made
                yield from made[1]
        finally:
            self._in_use.remove(name)


class _Slot(LeasedFile):
    """Memory on the GPU that holds a version, and the file that its readers lock."""

    def __init__(self, namespace: str, driver: Driver) -> None:
        import torch

        super().__init__(namespace)
        self._driver = driver
        self._memory: Memory | None = None
        self.flat = torch.empty(0, dtype=torch.uint8)
        self.layout: Layout | None = None
        self.name: bytes | None = None  # of this memory, never used again

    @property
    def handle(self) -> bytes:
        return b"" if self._memory is None else self._memory.handle

    def write(self, tensors: Iterable[tuple[str, torch.Tensor]], checksums: bool) -> tuple[Layout, dict[str, str]]:
        """Fill a locked slot and unlock it: where the tensors are, and digests."""
        self.unseal()
        found = fill(self, tensors, checksums)
        self._driver.synchronize()
        self.seal()
        return found

    def grow(self, num_bytes: int, keep: int) -> None:
        old, self._memory = self._memory, self._driver.allocate(num_bytes)
        self.name = secrets.token_bytes(8)
        before, self.flat = self.flat, self._memory.tensor
        self.flat[:keep].copy_(before[:keep])
        if old is not None:
            self._driver.synchronize()
            self._driver.free(old)

    def close(self) -> None:
        self.layout = None
        if self._memory is not None:
            self._driver.free(self._memory)
            self._memory = None
        super().close()
