"""Tensors one behind the other in one block of memory on a device, for transports that move the block.

    index, digests = fill(block, model.state_dict().items(), checksums=False)     # block: a FlatBlock
    for name, tensor in views(block.flat, index): ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from forge_host.loop.checksum import tensor_digest

if TYPE_CHECKING:
    import torch

#: Name, dtype, shape, offset and bytes of each tensor.
Index = list[tuple[str, str, tuple[int, ...], int, int]]
Places = dict[tuple[int, "torch.dtype", tuple[int, ...]], "torch.Tensor"]

ALIGNMENT = 256  #: bytes; what CUDA's own allocations have
BATCH_BYTES = 256 << 20  #: tensors of so many bytes are copied by few kernel launches


class FlatBlock(Protocol):
    """`flat`: uint8 [bytes]; `grow` replaces it by a larger one that begins with the first `keep` bytes.

    `places` are views of `flat` that `fill` made, by offset, dtype and shape: a model's tensors are the same every
    time, and making 254 views takes longer than copying 1 GB on a GPU. `grow` empties it.
    """

    flat: torch.Tensor
    places: Places

    def grow(self, num_bytes: int, keep: int) -> None: ...


def fill(
    block: FlatBlock, tensors: Iterable[tuple[str, torch.Tensor]], checksums: bool
) -> tuple[Index, dict[str, str]]:
    """Copy every tensor in (any dtype, device and strides); on a GPU the copies are only queued.

    Each tensor has to stay as it is until the copies are done. Returns the index, and digests when asked for.

    Raises:
        ValueError: a name comes twice.
    """
    index: Index = []
    digests: dict[str, str] = {}
    waiting: list[tuple[torch.Tensor, int]] = []  # not copied yet, with their offsets
    names: set[str] = set()
    begin = end = 0
    for name, tensor in tensors:
        if name in names:
            raise ValueError(f"tensor {name!r} comes twice")
        names.add(name)
        tensor = tensor.detach()
        offset, size = -(-end // ALIGNMENT) * ALIGNMENT, tensor.nbytes
        end = offset + size
        index.append((name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset, size))
        if checksums:
            digests[name] = tensor_digest(tensor)
        if size:
            waiting.append((tensor, offset))
        if end - begin >= BATCH_BYTES and end <= block.flat.numel():
            _copy(block, waiting)
            begin = end
    if end > block.flat.numel():
        block.grow(end, begin)
    _copy(block, waiting)
    return index, digests


def views(flat: torch.Tensor, index: Iterable[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a filled block."""
    import torch

    for name, dtype, shape, offset, size in index:
        kind = getattr(torch, dtype)
        if size == 0:
            yield name, torch.empty(shape, dtype=kind, device=flat.device)
            continue
        yield name, flat[offset : offset + size].view(kind).view(shape)


def index_bytes(index: Iterable[Any]) -> int:
    """Bytes of a block that an index reaches."""
    return max((offset + size for *_, offset, size in index), default=0)


def _copy(block: FlatBlock, waiting: list[tuple[torch.Tensor, int]]) -> None:
    """Copy what waits into its places; in few launches where dtypes and layouts allow."""
    import torch

    flat, known = block.flat, block.places
    kinds: dict[tuple[torch.dtype, torch.device], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for tensor, offset in waiting:
        key = offset, tensor.dtype, tensor.shape
        place = known.get(key)
        if place is None:
            place = flat[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            known[key] = place
        places, sources = kinds.setdefault((tensor.dtype, tensor.device), ([], []))
        places.append(place)
        sources.append(tensor)
    for (_, device), (places, sources) in kinds.items():
        if device == flat.device:
            torch._foreach_copy_(places, sources)
        else:
            for place, source in zip(places, sources, strict=True):
                place.copy_(source)
    waiting.clear()
