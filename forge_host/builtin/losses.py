"""The loss `ppo-clip`, which several algorithms are settings of.

    PPOClip(clip_high=0.28)(logprobs, old_logprobs, advantages)     # LossOutput of [B, T]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from forge_host.rl import fields

if TYPE_CHECKING:
    from torch import Tensor

    from forge_host.rl.types import LossOutput


@attrs.frozen(kw_only=True)
class PPOClip:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with r = exp(logprobs - old_logprobs), per token."""

    clip_low: float = fields.clip_low(0.2)
    clip_high: float = fields.clip_high(0.2)
    dual_clip: float | None = fields.dual_clip()
    log_ratio_clamp: float | None = fields.log_ratio_clamp()

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> LossOutput:
        from forge_host.rl.ppo import ppo_clip

        return ppo_clip(
            logprobs, old_logprobs, advantages, clip_low=self.clip_low, clip_high=self.clip_high,
            dual_clip=self.dual_clip, log_ratio_clamp=self.log_ratio_clamp,
        )  # fmt: skip
