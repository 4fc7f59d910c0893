"""Advantage estimators of the host; algorithms choose among them, `advantage:` in a configuration replaces them.

    GroupAdvantage(scale="none")(rewards, group_ids)       # r minus its group's mean, [B] float64

Torch is imported when one is called, so that a plan can be checked without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from attrs.validators import and_, ge, gt, in_, le

from forge_host.types import field

if TYPE_CHECKING:
    from torch import Tensor


def lone_field() -> Any:
    return field(
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
        default="group",
        help="divide by the deviation of the group, the batch, or none",
        validator=in_(("group", "batch", "none")),
    )
    eps: float = field(default=1e-4, help="added to the deviation", validator=ge(0.0))
    bessel: bool = field(default=True, help="sample deviation (n - 1) rather than population (n)")
    lone: str = lone_field()

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
    lone: str = lone_field()

    def __call__(self, rewards: Tensor, group_ids: Tensor) -> Tensor:
        from forge_host.rl.advantages import leave_one_out

        values = leave_one_out(rewards, group_ids, lone=self.lone)
        if not self.normalize or bool((values == values[0]).all()):
            return values
        return (values - values.mean()) / (values.std() + self.eps)


@attrs.frozen(kw_only=True)
class BatchBaseline:
    """r minus the mean over the batch, or r itself; [B] float64. Works with one response a prompt."""

    baseline: str = field(default="batch", help="batch (its mean) or none", validator=in_(("batch", "none")))

    def __call__(self, rewards: Tensor) -> Tensor:
        r = rewards.double()
        if self.baseline == "none":
            return r
        return r - (r[0] if bool((r == r[0]).all()) else r.mean())


@attrs.frozen(kw_only=True)
class BatchWhitened:
    """The return of each token, whitened over all tokens of the batch (REINFORCE++); [B, T] float64.

    The reward stands on the last token; with the KL placed in the reward each token's share is subtracted at its own.
    Long responses weigh more in mean and variance, as in verl. `bessel: false` is the authors' population variance.
    """

    gamma: float = field(default=1.0, help="discount per token", validator=and_(gt(0.0), le(1.0)))
    bessel: bool = field(default=True, help="sample variance (verl) rather than population (OpenRLHF)")

    @property
    def token_level(self) -> bool:
        """Whether a row's tokens get different advantages even without a KL in the reward."""
        return self.gamma != 1.0

    def __call__(self, rewards: Tensor, padding_mask: Tensor, token_kl: Tensor | None = None) -> Tensor:
        from forge_host.rl.advantages import returns, whitened

        return whitened(returns(rewards, padding_mask, token_kl, self.gamma), padding_mask, bessel=self.bessel)


@attrs.frozen(kw_only=True)
class GroupThenBatchWhitened:
    """r minus its group's mean, whitened over all tokens of the batch (REINFORCE++ with baseline); [B, T] float64.

    A group of equal rewards keeps exactly 0. verl and OpenRLHF shift it by the batch's mean, so that it gets an
    advantage again: `shift_equal: true`.
    """

    bessel: bool = field(default=True, help="sample variance (verl) rather than population (OpenRLHF)")
    shift_equal: bool = field(default=False, help="let the whitening move groups of equal rewards off 0")
    lone: str = lone_field()

    def __call__(self, rewards: Tensor, group_ids: Tensor, padding_mask: Tensor) -> Tensor:
        from forge_host.rl.advantages import group_statistics, standardized, whitened

        centred = standardized(rewards, group_ids, scale="none", lone=self.lone)
        values = whitened(centred.unsqueeze(-1).expand(padding_mask.shape), padding_mask, bessel=self.bessel)
        if self.shift_equal:
            return values
        equal = group_statistics(rewards, group_ids).equal & (centred == 0)
        return values.masked_fill(equal.unsqueeze(-1), 0.0)
