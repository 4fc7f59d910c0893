"""The output head that gives log-probabilities of chosen tokens and never makes the whole logits.

TorchTitan's decoder calls its head last. `LogprobHead` is told beforehand, by a `Request`, which hidden states predict
a response token; prompts never reach the vocabulary. It must run inside the module's own call, where FSDP has gathered
the weight.

    model.lm_head.request = Request(pick=layout.pick, ids=layout.ids)
    logprobs, entropy = model(tokens, positions, masks)
"""

from __future__ import annotations

from dataclasses import dataclass

import attrs
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torchtitan.models.common.linear import Linear

from forge_host.rl.linear import linear_logprobs


@attrs.frozen(eq=False, kw_only=True)
class Request:
    """What the next forward pass should give: log-probabilities of `ids` [N] predicted at stream places `pick` [N].

    The rest is `linear_logprobs`'s.
    """

    pick: Tensor
    ids: Tensor
    temperature: float = 1.0
    block: int | None = None
    with_entropy: bool = False
    keep_bytes: int = 0
    fuse: bool = False


class LogprobHead(Linear):
    """Returns (logprobs [N], entropy [N] or None) in nats, float32, or logits [1, L, V] when there is no request."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        pass

    request: Request | None = None

    def forward(self, input: Tensor) -> Tensor | tuple[Tensor, Tensor | None]:
        # Under tensor parallelism the rows of the weight are spread over ranks and the hidden states are not; every
        # rank gathers the weight and computes the same. The gradient that goes back is each rank's own rows of it.
        hidden = input.to_local() if isinstance(input, DTensor) else input
        weight = self.weight.full_tensor() if isinstance(self.weight, DTensor) else self.weight
        if self.request is None:
            return torch.nn.functional.linear(hidden, weight)
        request, self.request = self.request, None
        chosen = hidden[0].index_select(0, request.pick)
        return linear_logprobs(
            chosen, weight, request.ids, request.temperature, request.block, request.with_entropy,
            keep_bytes=request.keep_bytes, fuse=request.fuse,
        )  # fmt: skip
