"""Log-probabilities and entropies of chosen tokens without a second copy of the logits.

`log_softmax` of [N, V] logits in float32 needs three arrays of that size, which for a vocabulary of 152k tokens is
most of the memory of a training step. Here the softmax exists for a part of the tokens or of the vocabulary at a
time, is always computed in float32 (float64 for float64 inputs), and is recomputed in the backward pass.

    >>> import torch
    >>> logprobs, entropy = token_logprobs(torch.zeros(2, 4), torch.tensor([0, 3]), with_entropy=True)
    >>> logprobs, entropy
    (tensor([-1.3863, -1.3863]), tensor([1.3863, 1.3863]))

`token_logprobs` starts from logits; `linear_logprobs` from the last hidden state and the output matrix, and never
makes the logits at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

#: Largest float32 working array of one chunk, in bytes. 64 MiB is 110 tokens of a 152k vocabulary.
CHUNK_BYTES = 64 * 2**20


def token_logprobs(
    logits: Tensor,
    ids: Tensor,
    temperature: float = 1.0,
    chunk: int | None = None,
    *,
    with_entropy: bool = False,
    overwrite_logits: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each id under softmax(logits / temperature), and the entropy of that distribution.

    Memory beyond the logits: one chunk in the forward pass; in the backward pass the logits' gradient (in their own
    dtype) and one chunk. With `overwrite_logits` the gradient is written over the logits: nothing else may read them.

    Args:
        logits: [..., V], any float dtype. -inf (a token that cannot be drawn) is allowed and adds 0 to the entropy.
        ids: [...] int64.
        temperature: divides the logits, > 0.
        chunk: tokens per chunk; None sizes it to `CHUNK_BYTES`.

    Returns:
        logprobs [...] and entropy [...] or None, in nats, float32 (float64 for float64 logits).

    Raises:
        ValueError: shapes that do not fit, or a temperature that is not positive.
    """
    if logits.shape[:-1] != ids.shape:
        raise ValueError(f"ids {tuple(ids.shape)} are not one a row of logits {tuple(logits.shape)}")
    _check_temperature(temperature)
    vocabulary = logits.shape[-1]
    flat = logits.reshape(-1, vocabulary)
    logprobs, entropy = _TokenLogprobs.apply(
        flat, ids.reshape(-1), temperature, chunk or _tokens_per_chunk(vocabulary), with_entropy, overwrite_logits
    )
    return logprobs.view(ids.shape), entropy.view(ids.shape) if with_entropy else None


def linear_logprobs(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    temperature: float = 1.0,
    block: int | None = None,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`token_logprobs(hidden @ weight.T, ids)` that never holds the [N, V] logits.

    The matrix products run in the inputs' dtype (under autocast: the autocast dtype), the softmax in float32 (float64
    for float64), block by block of the vocabulary. Working memory beyond the gradients: two to four blocks of logits.
    The price is one more product; the gain is that few passes over memory are left, so it is not slower than the
    plain form (`contrib/bench/loss_overhead.py` measures both).

    Args:
        hidden: [N, H] last hidden states of the tokens that count (select before calling: padding costs as much).
        weight: [V, H] output matrix.
        ids: [N] int64, the tokens whose log-probability is wanted.
        block: vocabulary entries per block; None sizes it to `CHUNK_BYTES`.

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
    block = block or _vocabulary_block(len(ids))
    logprobs, entropy = _LinearLogprobs.apply(hidden, weight, ids, temperature, block, with_entropy, dtype)
    return logprobs, entropy if with_entropy else None


def _vocabulary_block(tokens: int) -> int:
    """Entries of a block that `tokens` fill `CHUNK_BYTES` with, a multiple of 512.

    Rows of an odd length send cuBLAS to unaligned kernels: 267 ms instead of about 60 of a 1.1 s step on an H200.
    """
    return max(1, CHUNK_BYTES // (4 * 512 * max(1, tokens))) * 512


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, ids: Tensor, temperature: float, chunk: int, with_entropy: bool, overwrite: bool
    ) -> tuple[Tensor, Tensor]:
        stats = _Stats(len(ids), logits)
        for rows in _slices(len(ids), chunk):
            stats.fill(rows, _scaled(logits[rows], stats.dtype, temperature), ids[rows], with_entropy)
        ctx.save_for_backward(logits, ids, stats.lse, stats.entropy)
        ctx.options = temperature, chunk, overwrite
        ctx.set_materialize_grads(False)  # an entropy that is only a metric costs nothing in backward
        if not with_entropy:
            ctx.mark_non_differentiable(stats.entropy)
        return stats.logprobs, stats.entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        logits, ids, lse, entropy = ctx.saved_tensors
        temperature, chunk, overwrite = ctx.options
        grad_logits = logits.data if overwrite else torch.empty_like(logits)
        grad, grad_of_entropy = _present(grads, lse)
        for rows in _slices(len(ids), chunk):
            z = _scaled(logits[rows], lse.dtype, temperature)
            grad_entropy = None if grad_of_entropy is None else (grad_of_entropy[rows], entropy[rows])
            grad_logits[rows] = _softmax_grad(z, ids[rows], lse[rows], grad[rows], grad_entropy, temperature)
        return grad_logits, None, None, None, None, None


class _LinearLogprobs(torch.autograd.Function):
    """Blocks of the vocabulary, not of tokens: each block of the weight's gradient is then finished in one product."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        ids: Tensor,
        temperature: float,
        block: int,
        with_entropy: bool,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(hidden.device.type, enabled=False):
            h, w = hidden.to(dtype), weight.to(dtype)
            blocks = _LogitBlocks(h, w, temperature, block)
            # A running maximum m, sum of exp(z - m) and, for the entropy, sum of exp(z - m) z.
            top = h.new_full((len(ids),), torch.finfo(blocks.softmax_dtype).min, dtype=blocks.softmax_dtype)
            total, weighted, picked = torch.zeros_like(top), torch.zeros_like(top), torch.zeros_like(top)
            for start, z in blocks:
                picked += _at(z, ids, start)
                new_top = torch.maximum(top, z.amax(-1))
                shrink = (top - new_top).exp_()
                if with_entropy:
                    e = (z - new_top.unsqueeze(-1)).exp_()
                    weighted.mul_(shrink).add_(e.mul(z).sum(-1))
                else:
                    e = z.sub_(new_top.unsqueeze(-1)).exp_()
                total.mul_(shrink).add_(e.sum(-1))
                top = new_top
            lse = top + total.log()
            entropy = lse - weighted / total if with_entropy else weighted
        ctx.save_for_backward(hidden, weight, ids, lse, entropy)
        ctx.options = temperature, block, dtype
        ctx.set_materialize_grads(False)
        if not with_entropy:
            ctx.mark_non_differentiable(entropy)
        return picked - lse, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, ids, lse, entropy = ctx.saved_tensors
        temperature, block, dtype = ctx.options
        grad, grad_of_entropy = _present(grads, lse)
        grad_entropy = None if grad_of_entropy is None else (grad_of_entropy, entropy)
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        with torch.autocast(hidden.device.type, enabled=False):
            h, w = hidden.to(dtype), weight.to(dtype)
            blocks = _LogitBlocks(h, w, temperature, block)
            grad_hidden = torch.zeros_like(h, dtype=lse.dtype) if need_hidden else None
            grad_weight = torch.empty_like(w) if need_weight else None
            for start, z in blocks:
                stop = start + z.shape[-1]
                dz = blocks.to_matmul(_softmax_grad(z, ids, lse, grad, grad_entropy, temperature, start))
                if grad_hidden is not None and dtype == grad_hidden.dtype:
                    grad_hidden.addmm_(dz, w[start:stop])
                elif grad_hidden is not None:
                    grad_hidden.add_(dz @ w[start:stop])
                if grad_weight is not None:
                    torch.mm(dz.t(), h, out=grad_weight[start:stop])
        return (
            None if grad_hidden is None else grad_hidden.to(hidden.dtype),
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None, None, None, None, None,
        )  # fmt: skip


def _present(grads: tuple[Tensor | None, ...], lse: Tensor) -> tuple[Tensor, Tensor | None]:
    """Gradients of the log-probabilities (zeros when nothing used them) and of the entropy (None when nothing did)."""
    return torch.zeros_like(lse) if grads[0] is None else grads[0], grads[1]


class _LogitBlocks:
    """Yields (first id, scaled logits [N, block] in the softmax's dtype); the buffers are used again for each block."""

    def __init__(self, hidden: Tensor, weight: Tensor, temperature: float, block: int) -> None:
        self.hidden, self.weight, self.temperature, self.block = hidden, weight, temperature, block
        self.softmax_dtype = _softmax_dtype(hidden)
        size = len(hidden) * min(block, len(weight))
        self._logits = hidden.new_empty(size)
        same = hidden.dtype == self.softmax_dtype
        self._z = self._logits if same else hidden.new_empty(size, dtype=self.softmax_dtype)

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        num_tokens, vocabulary = len(self.hidden), len(self.weight)
        for start in range(0, vocabulary, self.block):
            stop = min(start + self.block, vocabulary)
            shape = num_tokens, stop - start
            logits = self._logits[: shape[0] * shape[1]].view(shape)
            torch.mm(self.hidden, self.weight[start:stop].t(), out=logits)
            z = self._z[: shape[0] * shape[1]].view(shape)
            if self._z is not self._logits:
                z.copy_(logits)
            yield start, z if self.temperature == 1.0 else z.div_(self.temperature)

    def to_matmul(self, dz: Tensor) -> Tensor:
        """`dz` in the matrix products' dtype, in the logits' buffer."""
        return dz if self._z is self._logits else self._logits[: dz.numel()].view(dz.shape).copy_(dz)


class _Stats:
    """What one pass over the tokens leaves: per token, in float32 or float64."""

    def __init__(self, num_tokens: int, like: Tensor) -> None:
        self.dtype = _softmax_dtype(like)
        self.lse, self.logprobs, self.entropy = (
            torch.zeros(num_tokens, dtype=self.dtype, device=like.device) for _ in range(3)
        )

    def fill(self, rows: slice, z: Tensor, ids: Tensor, with_entropy: bool) -> None:
        lse = torch.logsumexp(z, dim=-1)
        self.lse[rows] = lse
        self.logprobs[rows] = z.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - lse
        if with_entropy:
            log_p = _finite_below(z.sub_(lse.unsqueeze(-1)))
            self.entropy[rows] = -(log_p.exp() * log_p).sum(-1)


def _softmax_grad(
    z: Tensor,
    ids: Tensor,
    lse: Tensor,
    grad: Tensor,
    entropy: tuple[Tensor, Tensor] | None,
    temperature: float,
    start: int = 0,
) -> Tensor:
    """Gradient of the loss with respect to logits `start` to `start + block` of some tokens; `z` [n, block] is used up.

    d logprob / dz = onehot - p;  d entropy / dz = -p (log p + entropy).
    """
    log_p = z.sub_(lse.unsqueeze(-1))
    grad = grad / temperature
    if entropy is None:
        active = grad != 0
        dz = log_p.exp_().mul_(-grad.unsqueeze(-1))
    else:
        grad_entropy, value = entropy[0] / temperature, entropy[1]
        active = (grad != 0) | (grad_entropy != 0)
        _finite_below(log_p)
        p = log_p.exp()
        factor = log_p.add_(value.unsqueeze(-1)).mul_(grad_entropy.unsqueeze(-1)).add_(grad.unsqueeze(-1))
        dz = p.mul_(factor).neg_()
    column, inside = _columns(ids, start, z.shape[-1])
    dz.scatter_add_(-1, column.unsqueeze(-1), torch.where(inside, grad, 0.0).unsqueeze(-1))
    # A place without weight gets exactly 0, even where its logits are not finite (0 * nan).
    return dz.masked_fill_(~active.unsqueeze(-1), 0.0)


def _columns(ids: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    """Each id's column in a block that begins at id `start`, and whether it is inside."""
    column = ids - start
    inside = (column >= 0) & (column < width)
    return torch.where(inside, column, 0), inside


def _at(z: Tensor, ids: Tensor, start: int) -> Tensor:
    """z [n, block] at each token's id, 0 where the id is in another block."""
    column, inside = _columns(ids, start, z.shape[-1])
    return torch.where(inside, z.gather(-1, column.unsqueeze(-1)).squeeze(-1), 0.0)


def _finite_below(log_p: Tensor) -> Tensor:
    """Replaces -inf by the lowest finite number, in place: p is still 0 there, and p * log p is 0 instead of nan."""
    return log_p.clamp_(min=torch.finfo(log_p.dtype).min / 4)


def _scaled(logits: Tensor, dtype: torch.dtype, temperature: float) -> Tensor:
    """A fresh copy of the logits in the softmax's dtype, divided by the temperature."""
    z = logits.to(dtype, copy=True)
    return z if temperature == 1.0 else z.div_(temperature)


def _softmax_dtype(like: Tensor) -> torch.dtype:
    return torch.float64 if like.dtype == torch.float64 else torch.float32


def _slices(num_tokens: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, num_tokens)) for start in range(0, num_tokens, chunk)]


def _tokens_per_chunk(vocabulary: int) -> int:
    return max(1, CHUNK_BYTES // (4 * vocabulary))


def _check_temperature(temperature: float) -> None:
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; log-probabilities need one above 0")
