"""Log-probabilities and entropies of chosen tokens without a second copy of the logits.

`log_softmax` of [N, V] logits in float32 needs three arrays of that size, which for a vocabulary of 152k tokens is
most of the memory of a training step. Here the softmax exists for a part of the tokens or of the vocabulary at a
time, is always computed in float32 (float64 for float64 inputs), and is recomputed in the backward pass.

    >>> import torch
    >>> logprobs, entropy = token_logprobs(torch.zeros(2, 4), torch.tensor([0, 3]), with_entropy=True)
    >>> logprobs, entropy
    (tensor([-1.3863, -1.3863]), tensor([1.3863, 1.3863]))

`token_logprobs` starts from logits; `forge_host.rl.linear.linear_logprobs` from the last hidden state and the output
matrix, and never makes the logits at all.
"""

from __future__ import annotations

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


def _present(grads: tuple[Tensor | None, ...], lse: Tensor) -> tuple[Tensor, Tensor | None]:
    """Gradients of the log-probabilities (zeros when nothing used them) and of the entropy (None when nothing did)."""
    return torch.zeros_like(lse) if grads[0] is None else grads[0], grads[1]


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
