"""What DAPO adds to GRPO: a raised upper clip, dynamic sampling, a soft punishment of overlong responses. Torch-free.

    SoftOverlong(cache_tokens=20)(length=90, max_tokens=100)      # -0.5
"""

from __future__ import annotations

import attrs
from attrs.validators import ge, optional

from forge_host.algorithm import preset
from forge_host.api import Group, Verdict, field
from forge_host.builtin.losses import PPOClip


@preset(clip_high=0.28)
class DAPOLoss(PPOClip):
    """-min(r A, clip(r, 0.8, 1.28) A) per token: unlikely tokens may grow more than in GRPO (clip-higher).

    As in the paper and TRL there is no dual clip; verl's default is `dual_clip: 3, log_ratio_clamp: 20`.
    """


@attrs.frozen(kw_only=True)
class DynamicSampler:
    """Keeps a group when some of its responses are right and some wrong: 0 < #right < G.

    The paper counts right answers. `part` names the reward to look at (`math`), so that a length penalty does not make
    equal answers look different; null takes the whole reward without the parts in `ignore`. Without `right_from`, any
    two different values count as right and wrong (verl, torchtitan).
    """

    part: str | None = field(default=None, help="name of the reward whose values decide; null is the whole reward")
    right_from: float | None = field(default=None, help="smallest value that is right; null compares for equality")
    ignore: tuple[str, ...] = field(default=("soft-overlong",), converter=tuple, help="shaping not counted")

    def verdict(self, group: Group) -> Verdict:
        graded = [e for e in group.episodes if e.reward is not None and (self.part is None or self.part in e.parts)]
        if self.part is None:
            values = [(e.reward or 0.0) - sum(e.parts.get(name, 0.0) for name in self.ignore) for e in graded]
        else:
            values = [e.parts[self.part] for e in graded]
        if not values:
            return Verdict(False, f"no response has a graded {self.part or 'reward'}")
        if self.right_from is None:
            differ = max(values) - min(values) > 1e-9
            return Verdict(True) if differ else Verdict(False, f"all rewards are {values[0]:g}")
        right = sum(value >= self.right_from for value in values)
        return Verdict(True) if 0 < right < len(values) else Verdict(False, f"{right} of {len(values)} are right")


@attrs.frozen(kw_only=True)
class SoftOverlong:
    """0 up to max_tokens - cache, then linearly down to -1 at max_tokens (the paper's eq. 13).

    verl does not stop at -1 beyond the budget (`capped: false`) and has a `factor`. A cache of 0 is a step there.
    """

    cache_tokens: int | None = field(
        default=None, help="tokens before the budget where it begins; null is a fifth", unit="tokens",
        validator=optional(ge(0)),
    )  # fmt: skip
    factor: float = field(default=1.0, help="size of the full penalty", validator=ge(0.0))
    capped: bool = field(default=True, help="stop at the full penalty beyond the budget")

    def __call__(self, length: int, max_tokens: int) -> float:
        cache = max_tokens // 5 if self.cache_tokens is None else self.cache_tokens
        if cache > max_tokens:
            raise ValueError(f"SoftOverlong.cache_tokens is {cache}, above max_tokens {max_tokens}; lower it")
        over = length - (max_tokens - cache)
        if over <= 0:
            return 0.0
        share = over / cache if cache else 1.0
        return -self.factor * (min(share, 1.0) if self.capped else share)
