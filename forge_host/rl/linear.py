"""Log-probabilities straight from the last hidden states and the output matrix; the logits never exist as a whole.

The [N, V] logits are made block by block of the vocabulary. A block's share of the softmax is taken in float32 (float64
for float64), and the block is made again in the backward pass unless it was kept (`keep_bytes`). So each block of the
matrix's gradient is finished in one product, and memory stays at a few blocks whatever N and V are.

    logprobs, entropy = linear_logprobs(hidden, model.lm_head.weight, ids, with_entropy=True)

On CUDA, `fuse=True` compiles the passes over a block (float32 copy, maximum, exponentials, sums) into one kernel each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import attrs
import torch
from torch import Tensor

from forge_host.rl.logprobs import _check_temperature, _present, _slices, _softmax_dtype, _softmax_grad

#: Logits of one block, counted as float32, in bytes; a GPU wants larger products.
BLOCK_BYTES = {"cpu": 64 * 2**20, "cuda": 512 * 2**20}
#: Elements of the piece of a block that eager passes work on: it stays in a CPU core's cache.
TILE = 2**18


def linear_logprobs(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    temperature: float = 1.0,
    block: int | None = None,
    with_entropy: bool = False,
    *,
    keep_bytes: int = 0,
    fuse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`token_logprobs(hidden @ weight.T, ids)` that never holds the [N, V] logits.

    The matrix products run in the inputs' dtype (under autocast: the autocast dtype), the softmax in float32 (float64
    for float64). Working memory beyond the gradients: two to four blocks of logits, and `keep_bytes`.

    Args:
        hidden: [N, H] last hidden states of the tokens that count (select before calling: padding costs as much).
        weight: [V, H] output matrix.
        ids: [N] int64, the tokens whose log-probability is wanted.
        block: vocabulary entries per block; None sizes it to `BLOCK_BYTES`.
        keep_bytes: logits kept for the backward pass, in the products' dtype; what does not fit is made again.
        fuse: compile the passes over a block (CUDA only; the first call takes seconds).

    Returns:
        logprobs [N] and entropy [N] or None, in nats, float32 (float64 for float64 inputs).

    Raises:
        ValueError: shapes that do not fit, or a temperature that is not positive.
    """
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1] or ids.shape != hidden.shape[:1]:
        raise ValueError(
            f"hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)} and ids {tuple(ids.shape)} "
            "are not [N, H], [V, H] and [N]"
        )
    _check_temperature(temperature)
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    options = _Options(
        temperature=temperature, block=block or _block(len(ids), device), with_entropy=with_entropy, dtype=dtype,
        keep_bytes=keep_bytes, fuse=fuse and device == "cuda",
    )  # fmt: skip
    logprobs, entropy = _LinearLogprobs.apply(hidden, weight, ids, options)
    return logprobs, entropy if with_entropy else None


def _block(num_tokens: int, device: str) -> int:
    """Columns of a block, a multiple of 512.

    Rows of an odd length send cuBLAS to unaligned kernels: 267 ms instead of about 60 of a 1.1 s step on an H200.
    """
    return max(512, BLOCK_BYTES.get(device, BLOCK_BYTES["cuda"]) // (4 * max(1, num_tokens)) // 512 * 512)


@attrs.frozen(kw_only=True)
class _Options:
    temperature: float
    block: int
    with_entropy: bool
    dtype: torch.dtype
    keep_bytes: int
    fuse: bool


class _LinearLogprobs(torch.autograd.Function):
    """Blocks of the vocabulary, not of tokens: each block of the weight's gradient is then finished in one product."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, ids: Tensor, options: _Options) -> tuple[Tensor, Tensor]:
        stats = (_fused_stats if options.fuse else _tiled_stats)(options.temperature, options.with_entropy)
        left = options.keep_bytes if any(ctx.needs_input_grad) else 0
        kept: dict[int, Tensor] = {}
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        with torch.autocast(hidden.device.type, enabled=False):
            h, w = hidden.to(options.dtype), weight.to(options.dtype)
            buffer = h.new_empty(0)
            for start in range(0, len(w), options.block):
                width = min(options.block, len(w) - start)
                size = len(h) * width
                if size * h.element_size() <= left:
                    left -= size * h.element_size()
                    kept[start] = h @ w[start : start + width].t()
                    logits = kept[start]
                else:
                    buffer = buffer if len(buffer) >= size else h.new_empty(size)
                    logits = torch.mm(h, w[start : start + width].t(), out=buffer[:size].view(len(h), width))
                parts.append(stats(logits, ids - start))
            lses, picked, means = (torch.stack(column) for column in zip(*parts, strict=True))
            lse = torch.logsumexp(lses, 0)
            # Each block's mean logit counts as much as the block's share of the probability.
            entropy = lse - ((lses - lse).exp_() * means).sum(0) if options.with_entropy else torch.zeros_like(lse)
            logprobs = picked.sum(0) - lse
        ctx.save_for_backward(hidden, weight, ids, lse, entropy)
        ctx.options, ctx.kept = options, kept
        ctx.set_materialize_grads(False)
        if not options.with_entropy:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, ids, lse, entropy = ctx.saved_tensors
        options: _Options = ctx.options
        grad, grad_entropy = _present(grads, lse)
        to_logits = (_fused_grad if options.fuse else _tiled_grad)(options.temperature, grad_entropy is not None)
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        with torch.autocast(hidden.device.type, enabled=False):
            h, w = hidden.to(options.dtype), weight.to(options.dtype)
            grad_hidden = torch.zeros_like(h, dtype=lse.dtype) if need_hidden else None
            grad_weight = torch.empty_like(w) if need_weight else None
            buffer = h.new_empty(0)
            for start in range(0, len(w), options.block):
                width = min(options.block, len(w) - start)
                size = len(h) * width
                logits = ctx.kept.pop(start, None)  # a second backward pass makes it again
                if logits is None:
                    buffer = buffer if len(buffer) >= size else h.new_empty(size)
                    logits = torch.mm(h, w[start : start + width].t(), out=buffer[:size].view(len(h), width))
                dz = to_logits(logits, ids - start, lse, grad, grad_entropy, entropy)
                if grad_hidden is not None and grad_hidden.dtype == dz.dtype:
                    grad_hidden.addmm_(dz, w[start : start + width])
                elif grad_hidden is not None:
                    grad_hidden.add_(dz @ w[start : start + width])
                if grad_weight is not None:
                    torch.mm(dz.t(), h, out=grad_weight[start : start + width])
        return (
            None if grad_hidden is None else grad_hidden.to(hidden.dtype),
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None, None,
        )  # fmt: skip


# Each pair below takes logits [N, width] of one block and `column` [N], the wanted id counted from the block's start
# (outside [0, width) when the id is in another block). Stats: log-sum-exp, the wanted logit or 0, mean logit or 0.


def _tiled_stats(temperature: float, with_entropy: bool) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    def stats(logits: Tensor, column: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        lse, picked, mean = logits.new_zeros(3, len(logits), dtype=_softmax_dtype(logits)).unbind()
        inside = (column >= 0) & (column < logits.shape[1])
        at = torch.where(inside, column, 0).unsqueeze(-1)
        for rows in _tiles(logits):
            z = _float(logits[rows], temperature)
            picked[rows] = z.gather(-1, at[rows]).squeeze(-1)
            top = z.amax(-1, keepdim=True).clamp_(min=torch.finfo(z.dtype).min)
            z.sub_(top)
            e = z.exp() if with_entropy else z.exp_()
            total, top = e.sum(-1), top.squeeze(-1)
            lse[rows] = total.log() + top
            if with_entropy:
                mean[rows] = e.mul_(z).sum(-1) / total + top
        return lse, picked.masked_fill_(~inside, 0.0), mean

    return stats


def _tiled_grad(temperature: float, has_entropy: bool) -> Callable[..., Tensor]:
    def to_logits(
        logits: Tensor, column: Tensor, lse: Tensor, grad: Tensor, grad_entropy: Tensor | None, entropy: Tensor
    ) -> Tensor:
        """Writes the gradient over the logits."""
        for rows in _tiles(logits):
            z = _float(logits[rows], temperature)
            pair = (grad_entropy[rows], entropy[rows]) if has_entropy and grad_entropy is not None else None
            logits[rows] = _softmax_grad(z, column[rows], lse[rows], grad[rows], pair, temperature)
        return logits

    return to_logits


def _tiles(logits: Tensor) -> list[slice]:
    tile = TILE // logits.shape[1] if logits.device.type == "cpu" else len(logits)
    return _slices(len(logits), max(1, tile))


def _float(logits: Tensor, temperature: float) -> Tensor:
    """A copy in the softmax's dtype, divided by the temperature."""
    z = logits.to(_softmax_dtype(logits), copy=True)
    return z if temperature == 1.0 else z.div_(temperature)


@cache
def _fused_stats(temperature: float, with_entropy: bool) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    return torch.compile(_stats(temperature, with_entropy), dynamic=True)


@cache
def _fused_grad(temperature: float, has_entropy: bool) -> Callable[..., Tensor]:
    return torch.compile(_grad(temperature, has_entropy), dynamic=True)


def _stats(temperature: float, with_entropy: bool) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    def stats(logits: Tensor, column: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = logits.to(_softmax_dtype(logits)) / temperature
        here = torch.arange(logits.shape[1], device=logits.device)[None] == column[:, None]
        picked = torch.where(here, z, 0.0).sum(-1)
        top = z.amax(-1, keepdim=True)
        e = (z - top).exp()
        total = e.sum(-1)
        mean = (e * z).sum(-1) / total if with_entropy else torch.zeros_like(total)
        return total.log() + top[:, 0], picked, mean

    return stats


def _grad(temperature: float, has_entropy: bool) -> Callable[..., Tensor]:
    def to_logits(
        logits: Tensor, column: Tensor, lse: Tensor, grad: Tensor, grad_entropy: Tensor | None, entropy: Tensor
    ) -> Tensor:
        """As `forge_host.rl.logprobs._softmax_grad`, in one pass."""
        log_p = logits.to(lse.dtype) / temperature - lse[:, None]
        here = torch.arange(logits.shape[1], device=logits.device)[None] == column[:, None]
        weight = grad / temperature
        factor, active = weight[:, None], weight != 0
        if has_entropy and grad_entropy is not None:
            of_entropy = grad_entropy / temperature
            factor = factor + of_entropy[:, None] * (log_p + entropy[:, None])
            active = active | (of_entropy != 0)
        dz = torch.where(here, weight[:, None], 0.0) - log_p.exp() * factor
        return torch.where(active[:, None], dz, 0.0).to(logits.dtype)

    return to_logits
