"""DAPO: the keys of its config section and what it is made of. Torch-free.

    DAPO(max_tokens=20480, overlong_cache=4096).build()      # the paper's setting
"""

from __future__ import annotations

from attrs.validators import ge, optional

from forge_host.algorithm import ClippedAlgorithm, preset
from forge_host.api import AlgorithmParts, Use, field
from forge_host.rl import fields


@preset(n_samples=16, clip_high=0.28)
class DAPO(ClippedAlgorithm):
    """Decoupled clip and dynamic sampling, arXiv 2503.14476: 16 samples, clip 0.2 / 0.28, each token weighs the same,
    no KL penalty, groups all right or all wrong are dropped, responses near the budget are punished.

    The paper's rewards are +1 and -1 and its budget 20480 tokens, of which 4096 are the punished zone; here that zone
    is a fifth of `max_tokens` unless `overlong_cache` says otherwise. `mask_truncated` is its overlong filtering.
    """

    dual_clip: float | None = fields.dual_clip()
    dynamic_sampling: bool = field(default=True, help="drop groups whose responses are all right or all wrong")
    soft_overlong: bool = field(default=True, help="punish responses that come near the budget")
    overlong_cache: int | None = field(
        default=None, help="length of the punished zone before the budget; null is a fifth of it", unit="tokens",
        validator=optional(ge(0)),
    )  # fmt: skip

    def build(self) -> AlgorithmParts:
        return self.parts(
            self.clipped("dapo/dapo", "dual_clip"),
            Use("builtin/group"),
            sampler=Use("dapo/dynamic") if self.dynamic_sampling else None,
            shaping=(Use("dapo/soft-overlong", {"cache_tokens": self.overlong_cache}),) if self.soft_overlong else (),
        )
