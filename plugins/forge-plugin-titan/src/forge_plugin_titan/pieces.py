"""What one rank holds of a split model, as pieces of Hugging Face tensors: published without gathering the model.

    receipt = publish_pieces(transport, 1, hf_pieces(model, spec, torch.bfloat16), checksums=True)   # on every rank

Of replicas, the mesh's first rank publishes. A tensor that TorchTitan reorders on its way to Hugging Face's form
(llama's queries and keys) or that has adapters is gathered as in `forge_plugin_titan.weights`, and comes whole, from
rank 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from forge_plugin_titan import lora
from forge_plugin_titan.models import ModelSpec
from forge_plugin_titan.shards import Index, place
from forge_plugin_titan.weights import module_state, modules, whole


def hf_pieces(model: Any, spec: ModelSpec, dtype: torch.dtype) -> Iterator[tuple[str, Tensor, Index, Index]]:
    """This rank's pieces in `dtype`: name, piece, index of its first element, shape of the whole tensor.

    Every rank has to go through the whole iterator: what cannot stay in pieces is gathered, which is a collective.
    """
    adapter = spec.adapter(spec.config, None)
    for prefix, module in modules(model):
        part = module_state(module, prefix, spec)
        adapted = any(lora.is_adapter(name) for name in part)
        gathered = {}
        for name, value in part.items():
            renamed = None if adapted else _renamed(adapter, name, value)
            if renamed is None:
                gathered[name] = value
                continue
            found = _held(value.detach())
            if found is not None:
                piece, start = found
                yield renamed, piece.to(dtype), start, tuple(value.shape)
        for name, tensor in whole(adapter, gathered, spec, dtype) if gathered else ():
            if dist.get_rank() == 0:
                yield name, tensor, (0,) * tensor.dim(), tuple(tensor.shape)


def _renamed(adapter: Any, name: str, value: Tensor) -> str | None:
    """The Hugging Face name, when that is all TorchTitan changes."""
    blank = torch.empty(value.shape, device="meta")
    found = adapter.to_hf({name: blank})
    return next((key for key, tensor in found.items() if tensor is blank), None) if len(found) == 1 else None


def _held(value: Tensor) -> tuple[Tensor, Index] | None:
    """This rank's piece and where it begins; None when it has none, or when another rank publishes the same."""
    if not isinstance(value, DTensor):
        return (value, (0,) * value.dim()) if dist.get_rank() == 0 else None
    mesh, coordinate = value.device_mesh, value.device_mesh.get_coordinate()
    # A mesh without rank 0 holds a copy of what the mesh with it holds.
    if coordinate is None or not bool((mesh.mesh == 0).any()):
        return None
    if any(at and placement.is_replicate() for at, placement in zip(coordinate, value.placements, strict=True)):
        return None
    local = value.to_local()
    if not local.numel():
        return None
    shape, start = place(value)
    if shape != tuple(local.shape):
        raise RuntimeError(f"a shard of shape {tuple(local.shape)} where {shape} belongs")
    return local, start
