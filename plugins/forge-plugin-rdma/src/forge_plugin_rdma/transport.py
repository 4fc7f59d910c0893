"""Weights through Monarch's RDMA buffers: readers pull from the publisher's memory, between hosts too.

    sender, reader = Rdma(), Rdma()
    sender.open("run-1")
    receipt = sender.publish(1, model.state_dict().items())
    for name, tensor in reader.fetch(receipt):
        parameters[name].copy_(tensor)

Where there is no RDMA device, Monarch sends the same reads over TCP, and the transport says so once.
Tensors on a GPU are staged in pinned host memory: reads of live GPU memory race with the next optimizer step (seen in
torchtitan's pull request 3795). A reader gets the whole version into memory of its own before the first tensor is
yielded; that memory is kept and used for the next version.
"""

from __future__ import annotations

import math
import os
import pickle
import socket
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import structlog

from forge_host.api import Capabilities, Receipt, field
from forge_host.errors import RunError
from forge_host.runtime.blocking import Blocking

if TYPE_CHECKING:
    import torch

    from forge_plugin_rdma.memory import Slot

log = structlog.get_logger()

#: Monarch's own chunks went over TCP at 0.3 to 0.4 GB/s, these at 1.5 (1: 0.4 to 1.0, 16: 0.7 to 1.4; 2 CPU cores).
TCP_CHUNK_MB = 4


@attrs.define(kw_only=True)
class Rdma:
    """The transport `rdma`."""

    timeout_s: float = field(
        default=120.0, help="deadline of one publish or fetch", unit="s", validator=attrs.validators.gt(0)
    )
    tcp_fallback: bool = field(default=True, help="send over TCP where there is no RDMA device; otherwise refuse")
    capabilities: Capabilities = attrs.field(
        default=Capabilities(cross_host=True, resharding=True, partial=True), init=False
    )
    _slots: list[Slot] = attrs.field(factory=list, init=False)
    _version: int | None = attrs.field(default=None, init=False)
    _memory: list[torch.Tensor] = attrs.field(factory=list, init=False)
    _thread: Blocking = attrs.field(factory=lambda: Blocking("transport rdma"), init=False)

    def open(self, namespace: str) -> None:
        """Check that Monarch can do it here.

        Raises:
            RunError: no RDMA device on this host, and `tcp_fallback` is off.
        """
        import monarch
        from monarch.rdma import RDMATcpFallbackWarning, get_rdma_backend

        monarch.configure(rdma_allow_tcp_fallback=self.tcp_fallback)
        backend = get_rdma_backend()
        if backend == "none":
            raise RunError(
                f"Monarch finds no RDMA device (ibverbs) on host {socket.gethostname()}",
                where="transport rdma", fix="set transport.tcp_fallback: true, or take another transport",
            )  # fmt: skip
        if backend == "tcp":
            monarch.configure(rdma_max_chunk_size_mb=TCP_CHUNK_MB)
            warnings.simplefilter("ignore", RDMATcpFallbackWarning)  # said here, once
            log.warning("transport rdma: no RDMA device on this host, Monarch sends over TCP", namespace=namespace)

    def publish(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]], *, checksums: bool = False) -> Receipt:
        """Copy every tensor into registered host memory; the caller may change them afterwards.

        A failure while copying publishes nothing: the version before stays the newest.

        Raises:
            ValueError: the version is not newer than the last, or a name comes twice.
            RunError: not enough memory, or Monarch does not register it in time.
        """
        from forge_plugin_rdma.memory import Slot

        if self._version is not None and version <= self._version:
            raise ValueError(f"version {version} was published after {self._version}")
        slot = self._slots.pop(0) if len(self._slots) >= 2 else Slot()
        try:
            index, digests = slot.write(tensors, checksums)
            location = self._thread.call("register the weights", self.timeout_s, slot.location)
        except BaseException:
            self._thread.call("unregister the weights", self.timeout_s, slot.close)
            raise
        self._slots.append(slot)
        self._version = version
        entries = [attrs.astuple(entry) for entry in index]
        return Receipt(
            version=version,
            num_tensors=len(index),
            num_bytes=sum(entry.size for entry in index),
            location={**location, "boot": _boot_id(), "pid": os.getpid(), "tensors": entries},
            checksums=digests if checksums else None,
        )

    def fetch(self, receipt: Receipt) -> Iterator[tuple[str, torch.Tensor]]:
        """The receipt's tensors, all of them read before the first is yielded.

        Raises:
            RunError: the version is gone, its publisher is, or the deadline passed.
        """
        import torch

        if receipt.location["boot"] == _boot_id() and not Path(f"/proc/{receipt.location['pid']}").exists():
            raise _gone(receipt, "its publisher has ended")
        memory = self._thread.call("read the weights", 2 * self.timeout_s, lambda: self._read(receipt))
        try:
            for name, dtype, shape, segment, offset, size in receipt.location["tensors"]:
                kind = getattr(torch, dtype)
                if size == 0:
                    yield name, torch.empty(shape, dtype=kind)
                    continue
                yield name, memory[segment][offset : offset + size].view(kind).view(shape)
        finally:
            self._memory = memory

    def close(self) -> None:
        """Free this process's versions; a reader that has read one keeps it."""
        while self._slots:
            self._thread.call("unregister the weights", self.timeout_s, self._slots.pop().close)
        self._memory.clear()
        self._thread.close()

    def _read(self, receipt: Receipt) -> list[torch.Tensor]:
        """Every segment into memory of our own, then the token: it has to be the version's still."""
        import torch
        from monarch.rdma import RDMAAction

        held, self._memory = self._memory, []
        memory: list[torch.Tensor] = []
        action = RDMAAction()
        segments = receipt.location["segments"]
        for place, (size, buffer) in enumerate(segments):
            fits = place < len(held) and len(held[place]) == size
            memory.append(held[place] if fits else torch.empty(size, dtype=torch.uint8))
            action.read_remote(memory[-1], pickle.loads(buffer))
        token = torch.zeros(len(receipt.location["token"]), dtype=torch.uint8)
        timeout = math.ceil(self.timeout_s)
        try:
            if segments:
                action.submit(timeout=timeout).get()
            RDMAAction().read_remote(token, pickle.loads(receipt.location["token_buffer"])).submit(
                timeout=timeout
            ).get()
        except Exception as error:  # Monarch raises nothing narrower
            raise _gone(receipt, f"Monarch could not read it ({str(error).splitlines()[-1]})") from error
        if bytes(token.tolist()) != receipt.location["token"]:
            raise _gone(receipt, "a newer one has taken its memory")
        return memory


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _gone(receipt: Receipt, why: str) -> RunError:
    return RunError(
        f"version {receipt.version} of the weights is gone: {why}",
        where="transport rdma", fix="fetch the newest version; only two are kept",
    )  # fmt: skip
