"""Flex attention over a layout's segments, for CUDA: the block mask, made without an [L, L] array, and the attention.

    mask = flex_mask(layout.segments, device, layout.length)                   # once a micro-batch
    out = SegmentFlex.Config().build()(q, k, v, attention_masks=mask)          # q [1, L, N, H], k and v [1, L, M, H]

TorchTitan's `FlexAttention` searches for the fastest kernel at every new shape (21 s each, measured on an H200);
`SegmentFlex` takes the compiler's own choice. Inside a compiled transformer block both become part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torchtitan.models.common.attention import FlexAttention

from forge_plugin_titan.layout import Segment, send


class SegmentFlex(FlexAttention):
    """`FlexAttention` without its search for kernels."""

    @dataclass(kw_only=True, slots=True)
    class Config(FlexAttention.Config):
        pass

    compiled: ClassVar[Callable[..., Any]] = staticmethod(torch.compile(flex_attention))

    def forward(
        self,
        q_BLNH: Tensor,  # noqa: N803 - TorchTitan matches shardings to these names
        k_BLNH: Tensor,  # noqa: N803
        v_BLNH: Tensor,  # noqa: N803
        *,
        attention_masks: BlockMask,
        scale: float | None = None,
        enable_gqa: bool = False,
        **_: Any,
    ) -> Tensor:
        out = SegmentFlex.compiled(
            q_BLNH.transpose(1, 2), k_BLNH.transpose(1, 2), v_BLNH.transpose(1, 2),
            block_mask=attention_masks, scale=scale, enable_gqa=enable_gqa, kernel_options=self.kernel_options or None,
        )  # fmt: skip
        return out.transpose(1, 2)  # type: ignore[no-any-return]


def flex_mask(
    segments: Sequence[Segment], device: torch.device | str, length: int | None = None, block_size: int = 128
) -> BlockMask:
    """What `block_plan` says, as a flex-attention `BlockMask` over [Q, L], Q the segments' tokens.

    Whether a block of keys is seen by one query follows from the query's segment, so the blocks come from a
    [Q, L / block_size] table; `create_block_mask` makes the [Q, L] one, which takes longer than a layer does.

    Args:
        length: L; None when it is Q.
    """
    lengths = torch.tensor([s.length for s in segments])
    table = torch.tensor([[s.start - s.head, s.prefix, s.prefix_end] for s in segments], dtype=torch.int32)
    columns = send(table.repeat_interleave(lengths, 0).t().contiguous(), device)
    # Tensors of their own: autotuning rebuilds captured views by size and stride alone and then reads outside them.
    start, prefix, prefix_end = (column.clone() for column in columns.unbind())
    queries, begin = int(lengths.sum()), segments[0].start
    rows = torch.arange(begin, begin + queries, device=device, dtype=torch.int32)
    at = None if length is None or length == queries else rows  # of a part, each query's place in the stream

    def visible(_b: Tensor, _h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        own = (kv >= start[q]) & (kv <= (q if at is None else at[q]))
        return own | ((kv >= prefix[q]) & (kv < prefix_end[q]))

    length = length or queries
    above, blocks = -(-queries // block_size), -(-length // block_size)
    first = torch.arange(blocks, device=device, dtype=torch.int32) * block_size
    last = first + block_size - 1
    q, s, p, e = (column[:, None] for column in (rows, start, prefix, prefix_end))
    some = ((s <= last) & (q >= first)) | ((p <= last) & (e > first) & (e > p))
    full = ((s <= first) & (q >= last)) | ((p <= first) & (e > last))
    filling = (0, 0, 0, above * block_size - queries)
    some, full = (torch.nn.functional.pad(seen, filling).view(above, block_size, blocks) for seen in (some, full))
    all_of_block = full.all(1)
    return BlockMask.from_kv_blocks(
        *_ordered(some.any(1) & ~all_of_block), *_ordered(all_of_block),
        BLOCK_SIZE=block_size, mask_mod=visible, seq_lengths=(queries, length),
    )  # fmt: skip


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """bool [Q, K] to the number of True in each row and the columns, those that are True first; int32 [1, 1, ...]."""
    columns = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32)[None, None], columns.to(torch.int32)[None, None]
