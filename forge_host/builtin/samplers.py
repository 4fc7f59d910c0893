"""The sampler `group`: every scored group is trained on, or only those whose rewards differ.

    GroupSampler(drop_equal=True).verdict(group)      # Verdict(keep=False, reason="all rewards are 0.5")
"""

from __future__ import annotations

import attrs

from forge_host.types import Group, Verdict, field


@attrs.frozen(kw_only=True)
class GroupSampler:
    """Keeps a group as it is, unless too few of its responses could be graded.

    One graded response of several is dropped by default: a group baseline has nothing to compare it with.
    """

    drop_equal: bool = field(default=False, help="drop groups whose rewards are all equal: their advantages are 0")
    min_graded: int | None = field(
        default=None,
        help="graded responses that a group must have; null is 2, or 1 when one is drawn",
        validator=attrs.validators.optional(attrs.validators.ge(1)),
    )

    def verdict(self, group: Group) -> Verdict:
        rewards = group.rewards
        if len(rewards) < (self.min_graded or min(2, max(1, len(group.episodes)))):
            return Verdict(False, f"{len(rewards)} of {len(group.episodes)} responses could be graded")
        if self.drop_equal and min(rewards) == max(rewards):
            return Verdict(False, f"all rewards are {rewards[0]:g}")
        return Verdict(True)
