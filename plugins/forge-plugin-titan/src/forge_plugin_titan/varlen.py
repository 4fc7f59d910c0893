"""Flash attention over segments of different lengths, for CUDA: torch's own `varlen_attn` (bfloat16, float16).

A segment's keys are what all of it sees (a prompt, a head), if anything, and itself; the causal mask of flash attention
is aligned to the last key, so a query sees all that is ahead and its own segment up to itself. Keys of shared prefixes
are copied once a segment, their gradients added up in float32.

    plan = varlen_plan(layout.segments, device, layout.length)                 # once a micro-batch
    out = SegmentVarlen.Config().build()(q, k, v, attention_masks=plan)        # q [1, L, N, H], k and v [1, L, M, H]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torchtitan.models.common.attention import FlexAttention

from forge_plugin_titan.attention import _Rows
from forge_plugin_titan.layout import Segment, send


class VarlenPlan(NamedTuple):
    """Where segments begin: `queries` and `keys` int32 [S + 1], `take` int64 [K] or None, and a bound of their lengths.

    The bound is a power of two of at least 256 and S a multiple of 64 (empty segments), so that a compiled block meets
    few different ones; too large a bound costs idle thread blocks only.
    """

    queries: Tensor
    keys: Tensor
    take: Tensor | None
    longest: int


def varlen_plan(segments: Sequence[Segment], device: torch.device | str, length: int | None = None) -> VarlenPlan:
    """The plan for keys and values of `length` stream tokens; None when there are as many as queries."""
    queries = [s.length for s in segments]
    keys = [s.num_ahead + s.length for s in segments]
    take = None
    if queries != keys or length not in (None, sum(queries)):
        ranges = ((*s.ahead, (s.start, s.start + s.length)) for s in segments)
        take = torch.cat([torch.arange(*r) for three in ranges for r in three])
    return VarlenPlan(
        send(_starts(queries), device), send(_starts(keys), device), None if take is None else send(take, device),
        max(256, 1 << (max(keys) - 1).bit_length()),
    )  # fmt: skip


def _starts(lengths: list[int]) -> Tensor:
    lengths = lengths + [0] * (-len(lengths) % 64)
    return torch.nn.functional.pad(torch.tensor(lengths).cumsum(0), (1, 0)).to(torch.int32)


class SegmentVarlen(FlexAttention):
    """Inner attention over a `VarlenPlan`; a `FlexAttention` because TorchTitan's models accept that one always."""

    @dataclass(kw_only=True, slots=True)
    class Config(FlexAttention.Config):
        pass

    def forward(
        self,
        q_BLNH: Tensor,  # noqa: N803 - TorchTitan matches shardings to these names
        k_BLNH: Tensor,  # noqa: N803
        v_BLNH: Tensor,  # noqa: N803
        *,
        attention_masks: VarlenPlan,
        scale: float | None = None,
        enable_gqa: bool = False,
        **_: Any,
    ) -> Tensor:
        plan = attention_masks
        k, v = k_BLNH[0], v_BLNH[0]
        if plan.take is not None:
            k, v = _Rows.apply(k, plan.take), _Rows.apply(v, plan.take)
        out: Any = varlen_attn(
            q_BLNH[0], k, v, plan.queries, plan.keys, plan.longest, plan.longest,
            scale=scale, window_size=(-1, 0), enable_gqa=enable_gqa,
        )  # fmt: skip
        return out[None]  # type: ignore[no-any-return]
