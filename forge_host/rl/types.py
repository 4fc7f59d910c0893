"""What a loss may return when it wants to report more than its value.

return LossOutput(-torch.min(ratio * advantages, clipped * advantages), ratio=ratio)
"""

from __future__ import annotations

import attrs
from torch import Tensor


@attrs.frozen
class LossOutput:
    """Per-token policy loss, and what the metrics need to know of it.

    Args:
        loss: [B, T] nats-free per-token losses; the host masks and aggregates them.
        ratio: [B, T] or [B, 1], pi / pi_old as the loss uses it, not detached and not clipped: `kl.bias_correction`
            multiplies by it, the metrics `policy/ratio_*` and `policy/effective_sample_size` read it.
        clipped_low: [B, T] or [B, 1] bool, places where the lower bound took effect.
        clipped_high: the same for the upper bound.
    """

    loss: Tensor
    ratio: Tensor | None = None
    clipped_low: Tensor | None = None
    clipped_high: Tensor | None = None
