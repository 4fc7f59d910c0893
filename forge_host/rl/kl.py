"""Estimates of the divergence from a reference policy, per token, from samples of the current one.

With d = logprobs - ref_logprobs:   k1 = d    abs = |d|    k2 = d^2 / 2    k3 = exp(-d) + d - 1

A trailing + keeps the value and takes the gradient of k2 (d), the only one of the four whose gradient is the
gradient of the divergence.

    >>> import torch
    >>> kl_estimate(torch.tensor([-1.0]), torch.tensor([-1.5]), KL(estimator="k3"))
    tensor([0.1065])

What implementations do: TRL and torchforge k3 without bounds (the default here); verl bounds k3 (`clamp: 20,
max_value: 10`, so its gradient vanishes where the policy has drifted most); OpenRLHF bounds every estimator's value
(`max_value: 10`). k3 is computed as expm1(x) - x, which keeps its digits for small x.
"""

from __future__ import annotations

import torch
from torch import Tensor

from forge_host.rl.ratio import log_ratio_limit
from forge_host.types import KL


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, kl: KL) -> Tensor:
    """The configured estimate without its coefficient, same shape as `logprobs`, nats; gradient to `logprobs` only."""
    delta = logprobs - ref_logprobs.detach()
    base = kl.estimator.removesuffix("+")
    value = _bounded(_value(delta, base, kl.clamp), kl.max_value)
    if base == kl.estimator:
        return value
    k2 = delta.square() / 2
    return k2 - k2.detach() + value.detach()


def token_kl(old_logprobs: Tensor, ref_logprobs: Tensor, padding_mask: Tensor, kl: KL) -> Tensor:
    """`kl.beta` times the estimate, [B, T] float64, 0 at padding: what `placement: reward` subtracts from rewards.

    A non-finite log-probability at a valid place counts as 0 here; the objective drops and counts that token.
    """
    old, ref = (torch.nan_to_num(x.detach().double(), 0.0, 0.0, 0.0) for x in (old_logprobs, ref_logprobs))
    usable = padding_mask & torch.isfinite(old_logprobs) & torch.isfinite(ref_logprobs)
    return torch.where(usable, kl.beta * kl_estimate(old, ref, kl), 0.0)


def _value(delta: Tensor, base: str, clamp: float | None) -> Tensor:
    if clamp is not None:
        delta = delta.clamp(-clamp, clamp)
    if base == "k1":
        return delta
    if base == "abs":
        return delta.abs()
    if base == "k2":
        return delta.square() / 2
    limit = log_ratio_limit(delta.dtype)
    x = -delta
    return torch.expm1(x.clamp(-limit, limit)) - x


def _bounded(value: Tensor, bound: float | None) -> Tensor:
    return value if bound is None else value.clamp(-bound, bound)
