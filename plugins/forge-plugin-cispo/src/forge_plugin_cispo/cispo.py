"""CISPO: clips the weight of a token's gradient instead of dropping the gradient. Torch-free until called.

    CISPOLoss(clip_high=4.0)(logprobs, old_logprobs, advantages)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from forge_host.algorithm import BaseAlgorithm, preset
from forge_host.api import AlgorithmParts, Use
from forge_host.rl import fields

if TYPE_CHECKING:
    from torch import Tensor

    from forge_host.rl import LossOutput


@attrs.frozen(kw_only=True)
class CISPOLoss:
    """-sg(clip(r, 1 - clip_low, 1 + clip_high)) A logprobs, per token [B, T]: every token keeps a gradient.

    The paper tunes only the upper bound and gives no number; 4 (weights up to 5) is what TRL's documentation advises.
    TRL's `epsilon_high` is the bound itself, here 1 + clip_high; verl has both bounds (0.2 / 0.2, log_ratio_clamp 20).
    """

    clip_low: float | None = fields.clip_low(None)
    clip_high: float = fields.clip_high(4.0)
    log_ratio_clamp: float | None = fields.log_ratio_clamp()

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> LossOutput:
        from forge_host.rl import LossOutput, safe_exp

        ratio = safe_exp(logprobs - old_logprobs, self.log_ratio_clamp)
        low = 0.0 if self.clip_low is None else 1 - self.clip_low
        high = 1 + self.clip_high
        loss = -ratio.detach().clamp(low, high) * advantages * logprobs
        return LossOutput(loss, ratio=ratio, clipped_low=ratio < low, clipped_high=ratio > high)


@preset(n_samples=16)
class CISPO(BaseAlgorithm):
    """Clipped IS-weight policy optimisation (MiniMax-M1), arXiv 2506.13585: each token weighs the same, no penalty."""

    clip_low: float | None = fields.clip_low(None)
    clip_high: float = fields.clip_high(4.0)

    def build(self) -> AlgorithmParts:
        return self.parts(Use("cispo/cispo", self.pick("clip_low", "clip_high")), Use("builtin/group"))
