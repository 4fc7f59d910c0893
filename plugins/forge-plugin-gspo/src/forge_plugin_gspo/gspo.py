"""GSPO: the ratio is the response's, its geometric mean over tokens. Torch-free until called.

    GSPOLoss()(logprobs, old_logprobs, advantages, padding_mask)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from forge_host.algorithm import ClippedAlgorithm, preset
from forge_host.api import AlgorithmParts, Use
from forge_host.rl import fields

if TYPE_CHECKING:
    from torch import Tensor

    from forge_host.rl import LossOutput


@attrs.frozen(kw_only=True)
class GSPOLoss:
    """-min(s A, clip(s, 1 - clip_low, 1 + clip_high) A), s = exp(mean over the row of logprobs - old_logprobs).

    [B, T], the same for every token of a row; aggregate with sequence-mean. (TRL's default aggregation, token-mean,
    weighs rows by their length.) Advantages must be equal within a row: the plan refuses others.
    """

    clip_low: float = fields.clip_low(3e-4)
    clip_high: float = fields.clip_high(4e-4)

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, padding_mask: Tensor) -> LossOutput:
        from forge_host.rl import safe_exp, sequence_log_ratio
        from forge_host.rl.ppo import clip_ratio

        ratio = safe_exp(sequence_log_ratio(logprobs, old_logprobs, padding_mask))
        return clip_ratio(ratio, advantages, self.clip_low, self.clip_high)


@attrs.frozen(kw_only=True)
class GSPOTokenLoss(GSPOLoss):
    """GSPO with s_t = sg(s) exp(logprobs - sg(logprobs)): same value and gradient when a row's advantages are equal."""

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, padding_mask: Tensor) -> LossOutput:
        from forge_host.rl import safe_exp, sequence_log_ratio
        from forge_host.rl.ppo import clip_ratio

        ratio = safe_exp(sequence_log_ratio(logprobs, old_logprobs, padding_mask)).detach()
        return clip_ratio(ratio * safe_exp(logprobs - logprobs.detach()), advantages, self.clip_low, self.clip_high)


@preset(aggregation="sequence-mean", clip_low=3e-4, clip_high=4e-4)
class GSPO(ClippedAlgorithm):
    """Group sequence policy optimisation, arXiv 2507.18071: clip 3e-4 / 4e-4 of the response's ratio, no KL penalty."""

    def build(self) -> AlgorithmParts:
        return self.parts(self.clipped("gspo/gspo"), Use("builtin/group"))


@preset()
class GSPOToken(GSPO):
    """GSPO for advantages that differ between the tokens of a response."""

    def build(self) -> AlgorithmParts:
        return self.parts(self.clipped("gspo/gspo-token"), Use("builtin/group"))
