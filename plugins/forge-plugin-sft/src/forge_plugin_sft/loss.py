"""The loss `sft`.

    SFTLoss()(logprobs)         # [B, T]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from torch import Tensor


@attrs.frozen(kw_only=True)
class SFTLoss:
    """-logprobs, nats per token [B, T]: maximum likelihood of the tokens that count."""

    def __call__(self, logprobs: Tensor) -> Tensor:
        return -logprobs
