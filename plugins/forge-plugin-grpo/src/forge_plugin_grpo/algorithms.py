"""GRPO and Dr.GRPO: the keys of their config sections and what they are made of. Torch-free.

    GRPO(clip_high=0.28, beta=0.0).build()
"""

from __future__ import annotations

from forge_host.algorithm import ClippedAlgorithm, preset
from forge_host.api import AlgorithmParts, Use
from forge_host.builtin.advantages import GroupAdvantage
from forge_host.rl import fields


@preset()
class GRPOAdvantage(GroupAdvantage):
    """(r - mean) / (deviation + eps) within the group; see `GroupAdvantage` for what libraries have."""


@preset(scale="none")
class DrGRPOAdvantage(GroupAdvantage):
    """r - mean of the group: dividing by the deviation favours prompts that are almost solved or almost hopeless."""


@preset(beta=0.04, aggregation="sequence-mean")
class GRPO(ClippedAlgorithm):
    """Group-relative policy optimisation, arXiv 2402.03300: clip 0.2, k3 penalty 0.04, each response weighs the same.

    TRL's default differs: `beta: 0, aggregation: token-mean`. verl's: token-mean and a dual clip. With one update a
    batch the ratio to the trainer's own policy is 1 and the clip idle; for data from older weights take
    `old_policy: generator`, or a `correction`.
    """

    dual_clip: float | None = fields.dual_clip()

    def build(self) -> AlgorithmParts:
        return self.parts(self.clipped("grpo/grpo", "dual_clip"), Use("grpo/grpo"))


@preset(beta=0.0, aggregation="fixed-length")
class DrGRPO(GRPO):
    """GRPO done right, arXiv 2503.20783: no deviation in the advantage, a constant divisor (`max_tokens`), no penalty.

    TRL's `loss_type: dr_grpo` keeps dividing by the deviation unless told otherwise: `advantage: grpo` gives that.
    """

    def build(self) -> AlgorithmParts:
        return self.parts(self.clipped("grpo/grpo", "dual_clip"), Use("grpo/dr-grpo"))
