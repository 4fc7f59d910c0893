"""What a process holds of a tensor that is split over processes: its place, copying it in, gathering the whole.

    fill(parameter, full)              # this process's part of `full`
    shape, start = place(parameter)
    full = gather(parameter)           # a collective: on every process

FSDP2 splits what tensor parallelism has split: along the mesh's last axis first, each time into chunks of
ceil(size / processes), the last ones smaller or empty. DTensor's own conversions (`distribute_tensor`, `full_tensor`)
need both axes to divide a dimension that they share, which is too much to ask of a vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

Index = tuple[int, ...]


def place(tensor: DTensor) -> tuple[Index, Index]:
    """Shape of this process's part, and where its first element is in the whole."""
    return _place(tensor, _coordinate(tensor), 0)


def fill(target: Tensor, full: Tensor) -> None:
    """Copy this process's part of `full`, a tensor of the whole's shape, into `target`; the dtype is the target's."""
    if isinstance(target, DTensor):
        for dim, (size, start) in enumerate(zip(*place(target), strict=True)):
            full = full.narrow(dim, start, size)
        target = target.to_local()
    target.copy_(full)


def gather(tensor: Tensor) -> Tensor:
    """The whole tensor, on every process; a tensor that is not split is returned as it is."""
    if not isinstance(tensor, DTensor):
        return tensor
    part, here = tensor.to_local(), _coordinate(tensor)
    for axis, placement in enumerate(tensor.placements):  # first what was split last
        if not placement.is_replicate():
            dim = placement.dim  # type: ignore[attr-defined]
            ranks = range(tensor.device_mesh.size(axis))
            sizes = [_place(tensor, (*here[:axis], rank, *here[axis + 1 :]), axis)[0][dim] for rank in ranks]
            part = _joined(part, dim, sizes, tensor.device_mesh.get_group(axis))
    return part


def _coordinate(tensor: DTensor) -> Index:
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None, "this process is not in the tensor's mesh"
    return tuple(coordinate)


def _place(tensor: DTensor, coordinate: Index, first: int) -> tuple[Index, Index]:
    """Shape and start of the part of the process at `coordinate`, the mesh's axes before `first` not split."""
    shape, start = list(tensor.shape), [0] * tensor.dim()
    for axis in reversed(range(first, len(coordinate))):
        placement = tensor.placements[axis]
        if not placement.is_replicate():
            dim = placement.dim  # type: ignore[attr-defined]
            chunk = -(-shape[dim] // tensor.device_mesh.size(axis))
            begin = min(coordinate[axis] * chunk, shape[dim])
            start[dim] += begin
            shape[dim] = min(chunk, shape[dim] - begin)
    return tuple(shape), tuple(start)


def _joined(part: Tensor, dim: int, sizes: list[int], group: Any) -> Tensor:
    """The group's parts one after the other along `dim`, where they have `sizes`; the first is the largest."""
    shape = list(part.shape)
    if shape[dim] < sizes[0]:  # what is gathered has one shape
        shape[dim] = sizes[0]
        padded = part.new_empty(shape)
        padded.narrow(dim, 0, part.shape[dim]).copy_(part)
        part = padded
    gathered = part.new_empty([len(sizes) * shape[0], *shape[1:]])
    dist.all_gather_single(gathered, part.contiguous(), group=group)
    if dim == 0 and sizes[-1] == sizes[0]:
        return gathered
    parts = gathered.view(len(sizes), *shape)
    return torch.cat([each.narrow(dim, 0, size) for each, size in zip(parts, sizes, strict=True)], dim)
