"""Policy-gradient losses. Torch is imported when one is called, so a plan is checked without it.

    ReinforceLoss(clip_ratio=0.2)(logprobs, generator_logprobs, advantages, padding_mask)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from attrs.validators import and_, ge, gt, le, optional

from forge_host.api import field
from forge_host.rl import fields

if TYPE_CHECKING:
    from torch import Tensor

    from forge_host.rl import LossOutput


def clip_ratio_field() -> Any:
    text = "bounds the weight to [1 - c, 1 + c]; null takes ratio_low and ratio_high"
    return field(default=None, help=text, validator=optional(and_(ge(0.0), le(1.0))))


@attrs.frozen(kw_only=True)
class Reinforce:
    """-A w logprobs per token [B, T] with w = clamp(sg(pi / pi_generator), ratio_low, ratio_high).

    torchforge's ReinforceLoss, whose bounds are the defaults. `clip_ratio: c` sets them to [1 - c, 1 + c] (what the
    argument of that name says; torchforge itself has it hard-coded). `weighted: false` is -A logprobs (verl gpg). No
    token loses its gradient.
    """

    clip_ratio: float | None = clip_ratio_field()
    ratio_low: float = field(default=0.1, help="smallest weight", validator=ge(0.0))
    ratio_high: float = field(default=10.0, help="largest weight", validator=gt(0.0))
    weighted: bool = field(default=True, help="weight tokens by the clamped ratio to the generator's policy")

    def __call__(self, logprobs: Tensor, generator_logprobs: Tensor, advantages: Tensor) -> LossOutput:
        from forge_host.rl import LossOutput, safe_exp

        if not self.weighted:
            return LossOutput(-advantages * logprobs)
        c = self.clip_ratio
        low, high = (self.ratio_low, self.ratio_high) if c is None else (1 - c, 1 + c)
        ratio = safe_exp(logprobs - generator_logprobs)
        loss = -advantages * ratio.detach().clamp(low, high) * logprobs
        return LossOutput(loss, ratio=ratio, clipped_low=ratio < low, clipped_high=ratio > high)


@attrs.frozen(kw_only=True)
class ReinforceLoss(Reinforce):
    """`Reinforce` as torchforge has it: one number, the mean over the batch's tokens. In a trainer use `reinforce`."""

    def __call__(  # type: ignore[override]
        self, logprobs: Tensor, generator_logprobs: Tensor, advantages: Tensor, padding_mask: Tensor
    ) -> Tensor:
        from forge_host.rl.aggregation import batch_loss, zero_padding

        inputs = zero_padding(padding_mask, logprobs, generator_logprobs, advantages)
        return batch_loss(Reinforce.__call__(self, *inputs).loss, padding_mask)


@attrs.frozen(kw_only=True)
class RLOOLoss:
    """-min(s A, clip(s) A), s = exp(sum over the row of logprobs - old_logprobs): the response is one action.

    [B, T], the same for every token of a row; aggregate with sequence-mean. Not divided by the length: at s = 1 the
    gradient is -A for each token. TRL's RLOOTrainer (which counts an empty row's -A in the value; here it is 0).
    """

    clip_low: float = fields.clip_low(0.2)
    clip_high: float = fields.clip_high(0.2)

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, padding_mask: Tensor) -> LossOutput:
        from forge_host.rl import safe_exp, sequence_log_ratio
        from forge_host.rl.ppo import clip_ratio

        ratio = safe_exp(sequence_log_ratio(logprobs, old_logprobs, padding_mask, mean=False))
        return clip_ratio(ratio, advantages, self.clip_low, self.clip_high)
