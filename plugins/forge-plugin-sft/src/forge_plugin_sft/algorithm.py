"""The algorithm `sft`: what its config section holds and what it is made of. Torch-free.

    SFT(aggregation="sequence-mean").build()
"""

from __future__ import annotations

import attrs
from attrs.validators import ge, in_

from forge_host.api import KL, Aggregation, AlgorithmParts, SamplingParams, Use, field


@attrs.frozen(kw_only=True)
class SFT:
    """Maximum likelihood of the dataset's responses; nothing is generated and nothing graded."""

    aggregation: str = field(
        default="token-mean",
        help="token-mean (every token of the step weighs the same) or sequence-mean (every example does)",
        validator=in_(("token-mean", "sequence-mean")),
    )
    beta: float = field(
        default=0.0, help="KL penalty towards the starting model; 0 starts no reference model", validator=ge(0.0)
    )

    def build(self) -> AlgorithmParts:
        return AlgorithmParts(
            loss=Use("sft/sft"),
            # Every example's reward is 1 and so is its advantage.
            advantage=Use("builtin/batch", {"baseline": "none"}),
            sampling=SamplingParams(n=1, max_tokens=1),
            aggregation=Aggregation(mode=self.aggregation),
            kl=KL(beta=self.beta),
            offline=True,
        )
