"""Tensors one behind the other in one block of memory on a device, for transports that move the block.

    layout, digests = fill(block, model.state_dict().items(), checksums=False)     # block: a FlatBlock
    for name, tensor in views(block.flat, layout.index): ...

A model's tensors are the same every time, and handling 254 of them one by one takes longer than copying their 1 GB on
a GPU. So `fill` keeps what it made: a version that is laid out as the one before is compared with it and copied.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from forge_host.loop.checksum import tensor_digest

if TYPE_CHECKING:
    import torch

#: Name, dtype, shape, offset and bytes of each tensor.
Index = list[tuple[str, str, tuple[int, ...], int, int]]
Pairs = list[tuple[str, "torch.Tensor"]]

ALIGNMENT = 256  #: bytes; what CUDA's own allocations have
BATCH_BYTES = 128 << 20  #: a batch is complete with so many: copied by few launches while the next is looked at

_dtype, _shape = attrgetter("dtype"), attrgetter("shape")


class FlatBlock(Protocol):
    """`flat`: uint8 [bytes]; `grow` replaces it by a larger one that begins with the first `keep` bytes.

    `layout` is kept by `fill` for the next version, None at first; its views are of `flat`.
    """

    flat: torch.Tensor
    layout: Layout | None

    def grow(self, num_bytes: int, keep: int) -> None: ...


@attrs.frozen(eq=False)
class Layout:
    """Where a version's tensors lie."""

    batches: tuple[_Batch, ...]

    @cached_property
    def index(self) -> Index:
        return [entry for batch in self.batches for entry in batch.index]

    @cached_property
    def num_bytes(self) -> int:
        """The tensors', without what lies between them."""
        return sum(size for *_, size in self.index)

    @cached_property
    def packed(self) -> bytes:
        """The index as one piece, quick to send and to compare; `unpacked` reads it."""
        return json.dumps(self.index).encode()


def unpacked(packed: bytes) -> Iterable[Any]:
    """The index that `views` takes, of `Layout.packed`."""
    index: list[Any] = json.loads(packed)
    return index


def fill(
    block: FlatBlock, tensors: Iterable[tuple[str, torch.Tensor]], checksums: bool
) -> tuple[Layout, dict[str, str]]:
    """Copy every tensor in (any dtype, device and strides); on a GPU the copies are only queued.

    Each tensor has to stay as it is until the copies are done. Returns the layout, and digests when asked for.

    Raises:
        ValueError: a name comes twice.
    """
    given, digests = iter(tensors), dict[str, str]()
    known, block.layout = block.layout, None  # should this fail, the block holds no version
    batches: list[_Batch] = []
    for batch in () if known is None else known.batches:
        pairs = list(islice(given, len(batch.index)))
        if not batch.fits(pairs):
            given = chain(pairs, given)
            break
        if checksums:
            digests |= {name: tensor_digest(tensor) for name, tensor in pairs}
        batch.copy(pairs)
        batches.append(batch)

    pairs, waiting = _take(given), list[tuple[Index, Pairs]]()
    if known is not None and not pairs and len(batches) == len(known.batches):
        block.layout = known
        return known, digests
    names = {name for batch in batches for name in batch.names}
    begin = end = index_bytes(entry for batch in batches for entry in batch.index)
    while pairs:
        index, end = _place(pairs, end, names)
        if checksums:
            digests |= {name: tensor_digest(tensor) for name, tensor in pairs}
        waiting.append((index, pairs))
        if end <= block.flat.numel():
            _copy(block, waiting, batches)
            begin = end
        pairs = _take(given)
    if waiting:
        block.grow(end, begin)
        _copy(block, waiting, batches)
    layout = Layout(tuple(batches))
    if all(batch.flat is block.flat for batch in batches):  # else some views are of the memory before it grew
        block.layout = layout
    return layout, digests


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


class _Batch:
    """Tensors that are copied together, and views of where they go."""

    def __init__(self, flat: torch.Tensor, index: Index, pairs: Pairs) -> None:
        self.flat, self.index = flat, index
        sources = [tensor for _, tensor in pairs]
        self.names = [name for name, _ in pairs]
        self._dtypes, self._shapes = list(map(_dtype, sources)), list(map(_shape, sources))
        self._near: dict[torch.dtype, tuple[list[int], list[torch.Tensor]]] = {}  # one launch copies one dtype
        self._far: list[tuple[int, torch.Tensor]] = []  # from other devices
        for i, ((_, place), (*_, size)) in enumerate(zip(views(flat, index), index, strict=True)):
            if size and sources[i].device == flat.device:
                numbers, places = self._near.setdefault(place.dtype, ([], []))
                numbers.append(i)
                places.append(place)
            elif size:
                self._far.append((i, place))

    def fits(self, pairs: Pairs) -> bool:
        """Whether these are tensors of the same names, dtypes and shapes.

        A device or strides may differ: the copies are right then too, if slower.
        """
        return (
            [name for name, _ in pairs] == self.names
            and [tensor.shape for _, tensor in pairs] == self._shapes
            and [tensor.dtype for _, tensor in pairs] == self._dtypes
        )

    def copy(self, pairs: Pairs) -> None:
        import torch

        with torch.no_grad():
            for numbers, places in self._near.values():
                torch._foreach_copy_(places, [pairs[i][1] for i in numbers])
            for i, place in self._far:
                place.copy_(pairs[i][1])


def _take(given: Iterator[tuple[str, torch.Tensor]]) -> Pairs:
    """The next tensors, as many as make a batch."""
    pairs: Pairs = []
    size = 0
    for name, tensor in given:
        pairs.append((name, tensor))
        size += tensor.nbytes
        if size >= BATCH_BYTES:
            break
    return pairs


def _place(pairs: Pairs, end: int, names: set[str]) -> tuple[Index, int]:
    """Entries of tensors that come behind `end`, and where they end; their names are added to `names`."""
    index: Index = []
    for name, tensor in pairs:
        if name in names:
            raise ValueError(f"tensor {name!r} comes twice")
        names.add(name)
        offset, size = -(-end // ALIGNMENT) * ALIGNMENT, tensor.nbytes
        end = offset + size
        index.append((name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset, size))
    return index, end


def _copy(block: FlatBlock, waiting: list[tuple[Index, Pairs]], batches: list[_Batch]) -> None:
    """Make batches of what waits, and copy them."""
    for index, pairs in waiting:
        batch = _Batch(block.flat, index, pairs)
        batch.copy(pairs)
        batches.append(batch)
    waiting.clear()
