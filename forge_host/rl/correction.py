"""Importance correction between the policy that sampled and the trainer's own at the start of the step.

The generator computes in another dtype, with other kernels, and perhaps with older weights, so its log-probabilities
differ from the trainer's. With rho = pi_trainer / pi_generator (per token, or multiplied over the row):

    truncate   min(max(rho, low), high)           TIS (token: verl C = 2; sequence: TRL sequence_truncate)
    mask       rho if low <= rho <= high else 0   IcePop (token, 0.5 to 5.0), MIS (sequence; TRL's default, high 3.0)

The weight is a constant that multiplies the policy loss, not the KL penalty; a token of weight 0 stays in the
denominators (as in TRL, slime and verl's IcePop).

    weights, outside = correction_weights(old, generator, mask, Correction(mode="truncate", high=2.0))
"""

from __future__ import annotations

import torch
from torch import Tensor

from forge_host.rl.ratio import safe_exp
from forge_host.types import Correction


@torch.no_grad()
def correction_weights(
    old_logprobs: Tensor, generator_logprobs: Tensor, padding_mask: Tensor, correction: Correction
) -> tuple[Tensor, Tensor]:
    """Weights and where a bound took effect, both [B, T]: a clipped weight for truncate, a 0 for mask."""
    log_rho = torch.where(padding_mask, old_logprobs - generator_logprobs, 0.0)
    if correction.level == "sequence":
        log_rho = log_rho.sum(-1, keepdim=True)
    rho = safe_exp(log_rho, correction.log_ratio_clamp)
    outside = torch.zeros_like(rho, dtype=torch.bool)
    if correction.low is not None:
        outside = outside | (rho < correction.low)
    if correction.high is not None:
        outside = outside | (rho > correction.high)
    if correction.mode == "mask":
        weights = torch.where(outside, 0.0, rho)
    else:
        bounded = correction.low is not None or correction.high is not None
        weights = rho.clamp(correction.low, correction.high) if bounded else rho
    return weights.expand_as(padding_mask), outside.expand_as(padding_mask) & padding_mask
