"""Tensors as byte blobs for a store that takes about a millisecond for each entry: small ones share a blob.

    for key, blob in packed(model.state_dict().items(), index):
        ...                                                       # put the blob under the key
    for entry in index:
        tensor = entry.tensor(blobs)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs
import torch

ALIGNMENT = 64  #: bytes; every tensor starts at a multiple, so that any dtype can be viewed in place
PACK_BYTES = 1 << 20  #: size of a shared blob; a tensor of as much has a blob of its own


@attrs.frozen
class Entry:
    """Where a tensor is: dtype without "torch.", shape, key of the blob ("" for no bytes), place and size in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    key: str
    offset: int
    size: int

    def tensor(self, blobs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A view of the blob."""
        kind = getattr(torch, self.dtype)
        if not self.key:
            return torch.empty(self.shape, dtype=kind)
        return blobs[self.key][self.offset : self.offset + self.size].view(kind).view(self.shape)


def packed(tensors: Iterable[tuple[str, torch.Tensor]], index: list[Entry]) -> Iterator[tuple[str, torch.Tensor]]:
    """Keys and blobs, uint8 [bytes] on the tensors' device; appends to `index`.

    Equal names and shapes in equal order give equal keys and sizes.

    Raises:
        ValueError: a name comes twice.
    """
    names: set[str] = set()
    pack: torch.Tensor | None = None
    packs = end = 0
    for name, tensor in tensors:
        if name in names:
            raise ValueError(f"tensor {name!r} comes twice")
        names.add(name)
        dtype, shape, size = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.nbytes
        if size == 0 or size >= PACK_BYTES:
            key = f"{name}/{size}" if size else ""
            index.append(Entry(name, dtype, shape, key, 0, size))
            if size:
                yield key, _bytes(tensor)
            continue
        start = -(-end // ALIGNMENT) * ALIGNMENT
        if pack is None or start + size > PACK_BYTES:
            if pack is not None:
                yield f"pack{packs}", pack
                packs += 1
            pack, start = torch.zeros(PACK_BYTES, dtype=torch.uint8, device=tensor.device), 0
        end = start + size
        pack[start:end].copy_(_bytes(tensor))
        index.append(Entry(name, dtype, shape, f"pack{packs}", start, size))
    if pack is not None:
        yield f"pack{packs}", pack


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
