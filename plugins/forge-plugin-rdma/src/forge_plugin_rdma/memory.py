"""A version's memory on the publisher: segments that Monarch registers, and the token that says what is in them.

    slot = Slot()
    index = slot.write(model.state_dict().items(), checksums=False)
    location = slot.location()

One-sided reads cannot lock. So the token is cleared before the segments are written again and set when they are
whole: a reader that finds its version's token after its last read has read that version only.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Iterable
from typing import Any

import attrs
import torch
from monarch.rdma import RDMABuffer

from forge_host.builtin.transports.memory import require_memory
from forge_host.loop.checksum import tensor_digest

ALIGNMENT = 64  #: bytes; every tensor starts at a multiple, so that any dtype can be viewed in place
SEGMENT_BYTES = 256 << 20  #: a larger tensor gets a segment of its own
TOKEN_BYTES = 16


@attrs.frozen
class Entry:
    """Where a tensor lies: dtype without "torch.", shape, segment, and bytes within it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    segment: int
    offset: int
    size: int


@attrs.define
class Segment:
    """Memory, how much of it is used, and the registration of that much."""

    memory: torch.Tensor
    used: int = 0
    buffer: RDMABuffer | None = None
    _registered: int = 0

    def register(self) -> None:
        if self._registered != self.used:
            self.unregister()
            self.buffer, self._registered = RDMABuffer(self.memory[: self.used]), self.used

    def unregister(self) -> None:
        if self.buffer is not None:
            self.buffer.drop().get()
            self.buffer, self._registered = None, 0


class Slot:
    """Room for one version; written again and again, it keeps its memory and registrations."""

    def __init__(self) -> None:
        self.token = torch.zeros(TOKEN_BYTES, dtype=torch.uint8)
        self._token_buffer: RDMABuffer | None = None
        self._segments: list[Segment] = []

    def write(
        self, tensors: Iterable[tuple[str, torch.Tensor]], checksums: bool
    ) -> tuple[list[Entry], dict[str, str]]:
        """Copy the tensors in; the slot holds nothing readable until `location`.

        Raises:
            ValueError: a name comes twice.
            RunError: not enough memory.
        """
        self.token.zero_()
        for segment in self._segments:
            segment.used = 0
        index: list[Entry] = []
        digests: dict[str, str] = {}
        names: set[str] = set()
        current = 0
        for name, tensor in tensors:
            if name in names:
                raise ValueError(f"tensor {name!r} comes twice")
            names.add(name)
            tensor = tensor.detach()
            current, offset = self._room(current, tensor)
            if tensor.nbytes:
                room = self._segments[current].memory[offset : offset + tensor.nbytes]
                room.view(tensor.dtype).view(tensor.shape).copy_(tensor)
                self._segments[current].used = offset + tensor.nbytes
            dtype = str(tensor.dtype).removeprefix("torch.")
            index.append(Entry(name, dtype, tuple(tensor.shape), current, offset, tensor.nbytes))
            if checksums:
                digests[name] = tensor_digest(tensor)
        return index, digests

    def location(self) -> dict[str, Any]:
        """Register what was written and make it readable: what a reader needs, as plain data."""
        if self._token_buffer is None:
            self._token_buffer = RDMABuffer(self.token)
        while self._segments and not self._segments[-1].used:
            self._segments.pop().unregister()  # the model became smaller
        for segment in self._segments:
            segment.register()
        token = secrets.token_bytes(TOKEN_BYTES)
        self.token.copy_(torch.frombuffer(bytearray(token), dtype=torch.uint8))
        return {
            "token": token,
            "token_buffer": pickle.dumps(self._token_buffer),
            "segments": [(segment.used, pickle.dumps(segment.buffer)) for segment in self._segments],
        }

    def close(self) -> None:
        self.token.zero_()
        for segment in self._segments:
            segment.unregister()
        self._segments.clear()
        if self._token_buffer is not None:
            self._token_buffer.drop().get()
            self._token_buffer = None

    def _room(self, current: int, tensor: torch.Tensor) -> tuple[int, int]:
        """The segment and the offset where a tensor fits, from segment `current` on."""
        size = tensor.nbytes
        while current < len(self._segments):
            segment = self._segments[current]
            offset = -(-segment.used // ALIGNMENT) * ALIGNMENT
            if offset + size <= len(segment.memory):
                return current, offset
            if segment.used == 0:  # too small for this tensor: a new one takes its place
                self._segments.pop(current).unregister()
                break
            current += 1
        room = max(size, SEGMENT_BYTES)
        require_memory(size, "publish the weights")  # untouched pages cost nothing
        memory = torch.empty(room, dtype=torch.uint8, pin_memory=tensor.is_cuda)
        self._segments.insert(current, Segment(memory))
        return current, 0
