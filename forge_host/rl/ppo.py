"""The clipped surrogate of PPO, with the variants that libraries have, as one function of [B, T] tensors.

    out = ppo_clip(logprobs, old_logprobs, advantages, clip_low=0.2, clip_high=0.28)

Per token, with r = exp(logprobs - old_logprobs):  L = -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)
"""

from __future__ import annotations

import torch
from torch import Tensor

from forge_host.rl.ratio import safe_exp
from forge_host.rl.types import LossOutput


def ppo_clip(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    max_ratio: float | None = None,
    log_ratio_clamp: float | None = None,
) -> LossOutput:
    """Clipped policy loss of ratios taken token by token (see `clip_ratio` for a ratio made otherwise).

    Args:
        logprobs, old_logprobs, advantages: [B, T] float.
        clip_low, clip_high: the ratio's band is [1 - clip_low, 1 + clip_high].
        dual_clip: c > 1 bounds the loss of tokens with a negative advantage by -c A (verl has 3.0 by default; the
            papers of GRPO and DAPO have none).
        max_ratio: bounds the ratio in the unclipped branch only (INTELLECT-2's two-sided clip, TRL `delta`).
        log_ratio_clamp: bounds logprobs - old_logprobs before exp (verl 20, torchtitan 10).
    """
    ratio = safe_exp(logprobs - old_logprobs, log_ratio_clamp)
    return clip_ratio(ratio, advantages, clip_low, clip_high, dual_clip=dual_clip, max_ratio=max_ratio)


def clip_ratio(
    ratio: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    *,
    dual_clip: float | None = None,
    max_ratio: float | None = None,
) -> LossOutput:
    """The clipped loss of a given ratio, [B, T] or [B, 1] (one a row), and where each bound took effect.

    min(r A, clip(r) A) is (bound if r is beyond it on the side that A pushes to, else r) A: one product instead of two,
    and no `min` whose backward pass compares again.
    """
    with torch.no_grad():
        raising = advantages > 0
        low, high = (ratio < 1 - clip_low) & (advantages < 0), (ratio > 1 + clip_high) & raising
        # `torch.where` of two Python numbers would be float32 even among float64 tensors.
        bound = torch.full_like(advantages, 1 - clip_low).masked_fill_(raising, 1 + clip_high)
    if max_ratio is None:
        loss = torch.where(low | high, bound, ratio) * -advantages
    else:
        banded = ratio.clamp(1 - clip_low, 1 + clip_high)
        loss = -torch.min(ratio.clamp(max=max_ratio) * advantages, banded * advantages)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.min(loss, -dual_clip * advantages), loss)
    return LossOutput(loss, ratio=ratio, clipped_low=low, clipped_high=high)
