"""Weights from the trainer's GPU to generators on other GPUs, through NCCL.

    sender = Nccl(); sender.open("run-1")
    receipt = sender.publish(1, model.state_dict().items())
    for name, tensor in reader.fetch(receipt):              # in another process, on another GPU
        parameters[name].copy_(tensor)

`publish` copies into GPU memory of its own and returns; a thread of the trainer's process sends a version to each
reader that asks for it. The newest two versions stay, so this takes twice the model's bytes on the trainer's GPU, and
once on each generator's, where `fetch` receives into. Each reader has a communicator of its own with the trainer, so
one that dies or comes again disturbs no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import attrs

from forge_host.api import Capabilities, Receipt, field
from forge_host.builtin.transports.flat import Index, Layout, fill, index_bytes, views
from forge_host.errors import RunError
from forge_plugin_nccl.group import Backend, NcclBackend
from forge_plugin_nccl.link import Link, Sender

if TYPE_CHECKING:
    import torch


@attrs.define(kw_only=True)
class Nccl:
    """The transport `nccl`."""

    address: str = field(
        default="127.0.0.1",
        help="address of the trainer's host at which generators reach it; change it when they are on other hosts",
    )
    timeout_s: float = field(default=60.0, help="deadline of one transfer", unit="s", validator=attrs.validators.gt(0))
    capabilities: Capabilities = attrs.field(
        default=Capabilities(cross_host=True, gpu_direct=True, partial=True), init=False
    )
    _version: int | None = attrs.field(default=None, init=False)
    _slots: list[_Slot] = attrs.field(factory=list, init=False)
    _sender: Sender | None = attrs.field(default=None, init=False)
    _links: dict[tuple[str, int], Link] = attrs.field(factory=dict, init=False)
    _backend: Backend | None = attrs.field(default=None, init=False)

    def open(self, namespace: str) -> None:
        """Nothing is shared by name: the receipt says where the trainer listens."""

    def publish(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]], *, checksums: bool = False) -> Receipt:
        """Copy every tensor in, as it is. A failure publishes nothing: the version before stays the newest.

        Each tensor has to stay as it is until this returns.

        Raises:
            ValueError: the version is not newer than the last, or a name comes twice.
            RunError: no GPU, or not enough memory on it.
        """
        if self._version is not None and version <= self._version:
            raise ValueError(f"version {version} was published after {self._version}")
        backend = self._on()
        if self._sender is None:
            self._sender = Sender(backend, self.address, self.timeout_s)
        slot = self._writable(backend)
        layout, digests = fill(slot, tensors, checksums)
        backend.synchronize()
        self._slots.append(slot)
        self._version = version
        self._sender.offer(version, slot.flat, slot)
        return Receipt(
            version=version,
            num_tensors=len(layout.index),
            num_bytes=layout.num_bytes,
            location={**self._sender.location(), "tensors": layout.index},
            checksums=digests if checksums else None,
        )

    def fetch(self, receipt: Receipt) -> Iterator[tuple[str, torch.Tensor]]:
        """Receive the receipt's version into memory of this process; its tensors are the reader's.

        They are valid until the next fetch.

        Raises:
            RunError: the version or its publisher is gone, or both are on one GPU.
        """
        index: Index = receipt.location["tensors"]
        where = (receipt.location["address"], receipt.location["port"])
        if self._sender is not None and where == (self._sender.address, self._sender.port):
            return views(self._sender.copy(receipt, index_bytes(index)), index)  # one's own version
        link = self._links.get(where)
        if link is None:
            link = self._links[where] = Link(self._on(), receipt, self.timeout_s)
        try:
            flat = link.receive(receipt, index_bytes(index))
        except RunError:
            if link.broken:
                self._links.pop(where).close()
            raise
        return views(flat, index)

    def close(self) -> None:
        """Free this process's versions and connections."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None
        self._slots.clear()
        while self._links:
            self._links.popitem()[1].close()

    def _on(self) -> Backend:
        if self._backend is None:
            self._backend = self._make_backend()
        return self._backend

    def _make_backend(self) -> Backend:
        return NcclBackend()

    def _writable(self, backend: Backend) -> _Slot:
        """The older of two slots when it is not being sent, else a new one."""
        assert self._sender is not None
        while len(self._slots) >= 2:
            oldest = self._slots.pop(0)
            if self._sender.withdraw(oldest):
                return oldest
        return _Slot(backend)


class _Slot:
    """Memory that holds a version."""

    def __init__(self, backend: Backend) -> None:
        import torch

        self.flat = torch.empty(0, dtype=torch.uint8, device=backend.device())
        self.layout: Layout | None = None

    def grow(self, num_bytes: int, keep: int) -> None:
        import torch

        before = self.flat
        try:
            self.flat = torch.empty(num_bytes, dtype=torch.uint8, device=before.device)
        except torch.OutOfMemoryError as error:
            raise RunError(
                f"out of memory while publishing the weights: {num_bytes / 2**30:.2f} GiB needed on the GPU",
                fix="lower training.micro_batch_tokens, set training.gradient_checkpointing, or set transport: shm",
            ) from error
        self.flat[:keep].copy_(before[:keep])


__all__: list[Any] = ["Nccl"]
