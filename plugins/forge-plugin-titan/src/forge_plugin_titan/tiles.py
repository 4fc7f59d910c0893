"""Norms, rotations and gates on a CPU, tile by tile: PyTorch goes through memory ten times where these go once, in
pieces that stay in a core's cache.

    RMSNorm = TiledRMSNorm                       # the same Config, the same numbers but for rounding

On a CPU autograd writes every intermediate of these to memory and reads it again, which took longer than half of the
matrix products of a step. On a GPU, and for tensors that are spread over ranks, the modules are TorchTitan's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor
from torchtitan.models.common import ComplexRoPE, RMSNorm
from torchtitan.models.common.feed_forward import FeedForward

TILE = 2**17  #: elements of a tile


def _here(*tensors: Tensor) -> bool:
    """Whether these are a CPU's own."""
    return all(tensor.device.type == "cpu" and not isinstance(tensor, DTensor) for tensor in tensors)


def _rows(x: Tensor) -> int:
    """Rows of a tile of [L, ...]."""
    return max(1, TILE * len(x) // max(1, x.numel()))


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class TiledRMSNorm(RMSNorm):
    """TorchTitan's RMSNorm; sums in float32 (float64 for float64)."""

    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):
        pass

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None or self.eps is None or not _here(x, self.weight):
            return super().forward(x)
        out: Tensor = _Norm.apply(x.reshape(-1, x.shape[-1]), self.weight, self.eps)
        return out.view(x.shape)


class _Norm(torch.autograd.Function):
    """x [L, D] over its root mean square, times weight [D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out, scale = torch.empty_like(x), x.new_empty(len(x), 1, dtype=_wide(x))
        wide, rows = weight.to(scale.dtype), _rows(x)
        for tile, to, inverse in zip(x.split(rows), out.split(rows), scale.split(rows), strict=True):
            z = tile.to(scale.dtype, copy=True)
            norm = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
            inverse.copy_(norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_())
            to.copy_(z.mul_(inverse).mul_(wide))
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        wide, rows = weight.to(scale.dtype), _rows(x)
        grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(wide)
        tiles = (t.split(rows) for t in (x, grads[0], scale, grad_x))
        for tile, grad, inverse, to in zip(*tiles, strict=True):
            normed = tile.to(scale.dtype, copy=True).mul_(inverse)
            g = grad.to(scale.dtype, copy=True)
            grad_weight.add_((g * normed).sum(0))
            g.mul_(wide)
            shared = torch.linalg.vecdot(g, normed).div_(x.shape[-1]).unsqueeze(-1)
            to.copy_(g.addcmul_(normed, shared, value=-1).mul_(inverse))
        return grad_x, grad_weight.to(weight.dtype), None


class TiledFeedForward(FeedForward):
    """TorchTitan's SwiGLU feed-forward."""

    @dataclass(kw_only=True, slots=True)
    class Config(FeedForward.Config):
        pass

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w1(x), self.w3(x)
        if not _here(gate, up):
            return self.w2(F.silu(gate) * up)  # type: ignore[no-any-return]
        return self.w2(_Gate.apply(gate.flatten(0, -2), up.flatten(0, -2)).view(gate.shape))  # type: ignore[no-any-return]


class _Gate(torch.autograd.Function):
    """silu(gate) * up, both [L, D]."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        out, rows = torch.empty_like(gate), _rows(gate)
        for a, b, to in zip(gate.split(rows), up.split(rows), out.split(rows), strict=True):
            torch.mul(F.silu(a), b, out=to)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        grad_gate, grad_up, rows = torch.empty_like(gate), torch.empty_like(up), _rows(gate)
        tiles = (t.split(rows) for t in (gate, up, grads[0], grad_gate, grad_up))
        for a, b, grad, to_gate, to_up in zip(*tiles, strict=True):
            torch.mul(grad, F.silu(a), out=to_up)
            torch.ops.aten.silu_backward.grad_input(grad * b, a, grad_input=to_gate)
        return grad_gate, grad_up


class TiledRoPE(ComplexRoPE):
    """TorchTitan's rotary embedding of adjacent pairs (Llama's)."""

    @dataclass(kw_only=True, slots=True)
    class Config(ComplexRoPE.Config):
        pass

    @staticmethod
    def apply_rotary_emb(query: Tensor, key: Tensor, rope_cache: Tensor) -> tuple[Tensor, Tensor]:
        if not _here(query, key) or len(query) != 1:
            return ComplexRoPE.apply_rotary_emb(query, key, rope_cache)
        turned = (_Turn.apply(x[0], rope_cache[0])[None] for x in (query, key))
        return next(turned), next(turned)


class _Turn(torch.autograd.Function):
    """x [L, N, H] turned by [L, 1, H / 2] complex numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, angles: Tensor) -> Tensor:
        ctx.save_for_backward(angles)
        return _turned(x, angles)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _turned(grads[0], ctx.saved_tensors[0].conj()), None


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    out, rows = torch.empty_like(x, memory_format=torch.contiguous_format), _rows(x)
    for tile, angle, to in zip(x.split(rows), angles.split(rows), out.split(rows), strict=True):
        pairs = torch.view_as_complex(tile.to(torch.float32, copy=True).unflatten(-1, (-1, 2)))
        to.copy_(torch.view_as_real(pairs.mul_(angle)).flatten(2))
    return out
