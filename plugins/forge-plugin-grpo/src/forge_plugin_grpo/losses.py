"""The losses of GRPO. Torch is imported when one is called, so a plan is checked without it.

    GRPOLoss(clip_high=0.28)(logprobs, old_logprobs, advantages, padding_mask, generator_logprobs)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from attrs.validators import ge, gt, optional

from forge_host.algorithm import preset
from forge_host.api import field
from forge_host.builtin.losses import PPOClip

if TYPE_CHECKING:
    from torch import Tensor

    from forge_host.rl import LossOutput


@preset()
class GRPOLoss(PPOClip):
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = exp(logprobs - old_logprobs), per token [B, T].

    The paper's form, without a dual clip and without a bound on the log-ratio; verl's default is `dual_clip: 3,
    log_ratio_clamp: 20`, torchtitan's `log_ratio_clamp: 10`. `max_ratio` is the upper bound of the unclipped branch
    (INTELLECT-2, TRL `delta`), `off_policy_kl` DeepSeek-V3.2's sequence mask (TRL `off_policy_mask_threshold`).
    """

    max_ratio: float | None = field(
        default=None, help="bound on the ratio in the unclipped branch; null is none", validator=optional(gt(0.0))
    )
    off_policy_kl: float | None = field(
        default=None,
        help="rows with a negative advantage that the policy left by more than this (mean per token) do not count",
        unit="nats",
        validator=optional(ge(0.0)),
    )

    def __call__(  # type: ignore[override]
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, padding_mask: Tensor,
        generator_logprobs: Tensor | None = None,
    ) -> LossOutput:  # fmt: skip
        from forge_host.rl.ppo import clip_ratio
        from forge_host.rl.ratio import safe_exp, sequence_log_ratio

        ratio = safe_exp(logprobs - old_logprobs, self.log_ratio_clamp)
        out = clip_ratio(
            ratio, advantages, self.clip_low, self.clip_high, dual_clip=self.dual_clip, max_ratio=self.max_ratio
        )
        if self.off_policy_kl is None:
            return out
        sampled = old_logprobs if generator_logprobs is None else generator_logprobs
        moved = sequence_log_ratio(sampled, logprobs.detach(), padding_mask)
        return attrs.evolve(out, loss=out.loss * ((advantages >= 0) | (moved <= self.off_policy_kl)))


@attrs.frozen(kw_only=True)
class SimpleGRPO:
    """-(exp(logprobs - sg(logprobs)) A) + beta k3(logprobs, ref_logprobs), per token [B, T]: torchforge's loss.

    The ratio is 1, so data from older weights gets no correction. It has its own penalty: leave `kl.beta` at 0.
    """

    beta: float = field(default=0.1, help="KL coefficient", validator=ge(0.0))

    def __call__(self, logprobs: Tensor, ref_logprobs: Tensor, advantages: Tensor) -> Tensor:
        from forge_host.api import KL
        from forge_host.rl import kl_estimate, safe_exp

        penalty = self.beta * kl_estimate(logprobs, ref_logprobs, KL())
        return penalty - safe_exp(logprobs - logprobs.detach()) * advantages


@attrs.frozen(kw_only=True)
class SimpleGRPOLoss(SimpleGRPO):
    """`SimpleGRPO` as torchforge has it: one number, the mean over all rows of each row's mean over its tokens.

    In a trainer take the component `simple-grpo`, whose mean is over the whole step, with `aggregation: sequence-mean`.
    """

    def __call__(self, logprobs: Tensor, ref_logprobs: Tensor, advantages: Tensor, padding_mask: Tensor) -> Tensor:  # type: ignore[override]
        from forge_host.rl.aggregation import batch_loss, zero_padding

        inputs = zero_padding(padding_mask, logprobs, ref_logprobs, advantages)
        return batch_loss(SimpleGRPO.__call__(self, *inputs), padding_mask, "sequence-mean")
