"""REINFORCE, RLOO, REINFORCE++ and its baseline variant: config keys and parts. Torch-free.

    RLOO(n_samples=4).build()
"""

from __future__ import annotations

from attrs.validators import and_, gt, le

from forge_host.algorithm import BaseAlgorithm, ClippedAlgorithm, preset
from forge_host.api import AlgorithmParts, Use, field
from forge_plugin_reinforce.losses import clip_ratio_field


@preset()
class REINFORCE(BaseAlgorithm):
    """-A w logprobs with the batch's mean reward as baseline; w corrects for the generator's policy (torchforge)."""

    clip_ratio: float | None = clip_ratio_field()

    def build(self) -> AlgorithmParts:
        return self.parts(Use("reinforce/reinforce", self.pick("clip_ratio")), Use("reinforce/reinforce"))


@preset(n_samples=4, beta=0.05, kl_estimator="k1", kl_placement="reward", aggregation="sequence-mean")
class RLOO(ClippedAlgorithm):
    """Leave-one-out REINFORCE, arXiv 2402.14740: the response is one action, the KL (TRL's 0.05) is in the reward."""

    def build(self) -> AlgorithmParts:
        return self.parts(self.clipped("reinforce/rloo"), Use("reinforce/rloo"))


@preset(beta=0.001, kl_estimator="k1", kl_placement="reward")
class ReinforcePP(ClippedAlgorithm):
    """REINFORCE++, arXiv 2501.03262: token returns with the KL in the reward, whitened over the batch; PPO clip 0.2."""

    gamma: float = field(default=1.0, help="discount per token", validator=and_(gt(0.0), le(1.0)))

    def build(self) -> AlgorithmParts:
        return self.parts(self.clipped("builtin/ppo-clip"), Use("reinforce/reinforce-pp", self.pick("gamma")))


@preset(beta=0.001, kl_estimator="k2")
class ReinforcePPBaseline(ClippedAlgorithm):
    """REINFORCE++ with the group's mean as baseline, then whitened over the batch; the KL is in the loss (k2)."""

    def build(self) -> AlgorithmParts:
        return self.parts(self.clipped("builtin/ppo-clip"), Use("reinforce/reinforce-pp-baseline"))
