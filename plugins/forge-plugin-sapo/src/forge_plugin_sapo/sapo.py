"""SAPO: a sigmoid that fades a token's gradient out as its ratio leaves 1. Torch-free until called.

    SAPOLoss(tau_neg=1.05)(logprobs, old_logprobs, advantages)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from attrs.validators import gt

from forge_host.algorithm import BaseAlgorithm, preset
from forge_host.api import AlgorithmParts, Use, field
from forge_host.rl import fields

if TYPE_CHECKING:
    from torch import Tensor

    from forge_host.rl import LossOutput


@attrs.frozen(kw_only=True)
class SAPOLoss:
    """-f A with f = 4 / tau sigmoid(tau (r - 1)), tau = tau_pos where A > 0 and tau_neg elsewhere; per token [B, T].

    The gradient at r = 1 is the policy gradient, -A. verl bounds the log-ratio (`log_ratio_clamp: 20`); TRL rounds
    tau to float32 (`tau_neg: 1.0499999523162842`).
    """

    tau_pos: float = field(default=1.0, help="steepness of the gate for positive advantages", validator=gt(0.0))
    tau_neg: float = field(default=1.05, help="steepness of the gate for negative advantages", validator=gt(0.0))
    log_ratio_clamp: float | None = fields.log_ratio_clamp()

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> LossOutput:
        import torch

        from forge_host.rl import LossOutput, safe_exp

        ratio = safe_exp(logprobs - old_logprobs, self.log_ratio_clamp)
        tau = torch.full_like(advantages, self.tau_neg).masked_fill_(advantages > 0, self.tau_pos)
        return LossOutput(-4 / tau * torch.sigmoid(tau * (ratio - 1)) * advantages, ratio=ratio)


@preset(aggregation="sequence-mean")
class SAPO(BaseAlgorithm):
    """Soft adaptive policy optimisation, arXiv 2511.20347: tau 1 / 1.05, each response weighs the same, no penalty."""

    tau_pos: float = field(default=1.0, help="steepness of the gate for positive advantages", validator=gt(0.0))
    tau_neg: float = field(default=1.05, help="steepness of the gate for negative advantages", validator=gt(0.0))

    def build(self) -> AlgorithmParts:
        return self.parts(Use("sapo/sapo", self.pick("tau_pos", "tau_neg")), Use("builtin/group"))
