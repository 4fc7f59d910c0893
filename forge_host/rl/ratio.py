"""Ratios of probabilities that cannot overflow.

    >>> import torch
    >>> safe_exp(torch.tensor([0.0, 800.0, -800.0]))
    tensor([1.0000e+00, 2.3539e+17, 4.2484e-18])

exp overflows float32 at 88.7, and one infinite ratio turns every gradient into nan (0 * inf in the backward pass of
`min` and `clamp`). Log-ratios are therefore bounded to +-40 in float32 and +-300 in float64, where even a product
of two ratios, summed over a batch, is finite. A ratio of e^40 is no estimate of anything: inside the bound nothing
changes, outside it the gradient is 0, as for every clamp. Tighter bounds (verl 20, torchtitan 10) are options of the
losses.
"""

from __future__ import annotations

import torch
from torch import Tensor


def log_ratio_limit(dtype: torch.dtype) -> float:
    return 300.0 if dtype == torch.float64 else 40.0


def safe_exp(log_ratio: Tensor, limit: float | None = None) -> Tensor:
    """exp(log_ratio), the argument bounded to +-limit nats (None: the dtype's bound above)."""
    bound = log_ratio_limit(log_ratio.dtype)
    bound = bound if limit is None else min(limit, bound)
    return log_ratio.clamp(-bound, bound).exp()


def sequence_log_ratio(logprobs: Tensor, old_logprobs: Tensor, padding_mask: Tensor, mean: bool = True) -> Tensor:
    """Sum (or mean) over a row's valid tokens of logprobs - old_logprobs, [B, 1]; 0 for an empty row."""
    total = torch.where(padding_mask, logprobs - old_logprobs, 0.0).sum(-1, keepdim=True)
    return total / padding_mask.sum(-1, keepdim=True).clamp(min=1) if mean else total
