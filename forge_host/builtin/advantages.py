"""Advantage estimators of the host; algorithms choose among them, `advantage:` in a configuration replaces them.

    GroupAdvantage(scale="none")(rewards, group_ids)       # r minus its group's mean, [B] float64

Torch is imported when one is called, so that a plan can be checked without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from attrs.validators import ge, in_

from forge_host.types import field

if TYPE_CHECKING:
    from torch import Tensor

LONE = field(
    default="error",
    help="a group of one: error, reward (keeps it, as verl) or zero",
    validator=in_(("error", "reward", "zero")),
)


@attrs.frozen(kw_only=True)
class GroupAdvantage:
    """(r - mean of the group) / (deviation + eps), float64; exactly 0 in a group of equal rewards.

    Defaults are torchforge's and TRL's: sample deviation, eps 1e-4. verl: `eps: 1e-6, lone: reward`; torchtitan:
    `bessel: false, eps: 1e-6`; TRL's `scale_rewards`: `scale`; Dr.GRPO: `scale: none`.
    """

    scale: str = field(
        default="group", help="divide by the deviation of the group, the batch, or none", validator=in_(("group", "batch", "none"))
    )
    eps: float = field(default=1e-4, help="added to the deviation", validator=ge(0.0))
    bessel: bool = field(default=True, help="sample deviation (n - 1) rather than population (n)")
    lone: str = LONE

    def __call__(self, rewards: Tensor, group_ids: Tensor) -> Tensor:
        from forge_host.rl.advantages import standardized

        return standardized(
            rewards, group_ids, eps=self.eps, scale=self.scale, bessel=self.bessel, lone=self.lone
        )


@attrs.frozen(kw_only=True)
class LeaveOneOut:
    """r minus the mean of the group's other rewards (RLOO), float64.

    `normalize` standardises the result over the batch, as TRL's `normalize_advantages`. A group of one is an error;
    verl keeps its reward (`lone: reward`), verl's vectorised form gives 0 (`lone: zero`).
    """

    normalize: bool = field(default=False, help="standardise the advantages over the batch")
    eps: float = field(default=1e-4, help="added to the deviation when normalising", validator=ge(0.0))
    lone: str = LONE

    def __call__(self, rewards: Tensor, group_ids: Tensor) -> Tensor:
        from forge_host.rl.advantages import leave_one_out

        values = leave_one_out(rewards, group_ids, lone=self.lone)
        if not self.normalize or bool((values == values[0]).all()):
            return values
        return (values - values.mean()) / (values.std() + self.eps)
