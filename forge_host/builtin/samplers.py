"""The sampler `group`: every scored group is trained on, or only those whose rewards differ.

    GroupSampler(drop_equal=True).verdict(group)      # Verdict(keep=False, reason="all rewards are 0.5")
"""

from __future__ import annotations

import attrs

from forge_host.types import Group, Verdict, field


@attrs.frozen(kw_only=True)
class GroupSampler:
    """Keeps a group as it is. One without a graded response is dropped, whatever the settings."""

    drop_equal: bool = field(default=False, help="drop groups whose rewards are all equal: their advantages are 0")
    min_graded: int = field(default=1, help="graded responses that a group must have")

    def verdict(self, group: Group) -> Verdict:
        rewards = group.rewards
        if len(rewards) < max(self.min_graded, 1):
            return Verdict(False, f"{len(rewards)} of {len(group.episodes)} responses could be graded")
        if self.drop_equal and min(rewards) == max(rewards):
            return Verdict(False, f"all rewards are {rewards[0]:g}")
        return Verdict(True)
