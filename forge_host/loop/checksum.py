"""Digests of tensors and of whole sets of weights, so that a trainer and a generator can prove they hold the same.

    weights_digest((name, tensor_digest(t)) for name, t in model.state_dict().items())

A digest covers dtype, shape and every byte in row-major order: equal tensors mean bitwise equal, so 0.0 and -0.0
differ and a NaN equals itself. XXH3-128 finds every accidental change for practical purposes at memory speed; it is no
defence against somebody who wants two sets of weights to collide. A tensor on a GPU is copied to the host first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    import torch


def tensor_digest(tensor: torch.Tensor) -> str:
    """128-bit hex digest of a dense tensor's dtype, shape and bytes (any device, any strides, zero elements too)."""
    import torch

    digest = xxhash.xxh3_128(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if tensor.numel():
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(flat.numpy().data)
    return digest.hexdigest()


def weights_digest(digests: Iterable[tuple[str, str]]) -> str:
    """One 128-bit hex digest of named tensor digests, whatever order they come in.

    Raises:
        ValueError: a name comes twice.
    """
    named = sorted(digests)
    whole = xxhash.xxh3_128()
    for index, (name, digest) in enumerate(named):
        if index and named[index - 1][0] == name:
            raise ValueError(f"weight {name!r} comes twice")
        whole.update(f"{name}\0{digest}\n".encode())
    return whole.hexdigest()
