"""Attention over a layout's segments as dense blocks, on any device (`flex` and `varlen` are for CUDA).

TorchTitan's language models use flex attention only, which has no backward pass on CPU, so `BlockAttention` takes its
place there: segments of like size are stacked, and each stack is two batched products with a float32 softmax between
(CPU flash attention's backward pass took ten times as long for the lengths of a reply; it is used for long segments,
where the scores would not fit in memory).

    masks = block_plan(layout.segments, device)          # once a micro-batch
    out = BlockAttention.Config().build()(q, k, v, attention_masks=masks)    # q [1, L, N, H], k and v [1, L, M, H]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor
from torchtitan.models.common.attention import FlexAttention

from forge_plugin_titan.layout import Segment, send

#: Scores of one segment above which flash attention is used, in elements a head.
FLASH_ELEMENTS = 512 * 512
#: A stack may hold this much more than its segments need before another one is begun.
STACK_WASTE = 1.25


@attrs.frozen(eq=False)
class Stack:
    """Segments computed together: B of them, at most Q queries and P prefix keys each.

    Args:
        blocked: bool [1 or B, 1, Q, P + Q], True where a query must not look.
        prefixes: int64 [U, P] stream index of the different prefixes' tokens, or None when no segment has one. A
            prefix is all that every token of the segment sees: its prompt, its head.
        owner: int64 [B], which prefix each segment has.
    """

    batch: int
    queries: int
    blocked: Tensor
    prefixes: Tensor | None
    owner: Tensor | None


@attrs.frozen(eq=False)
class BlockPlan:
    """Stacks, and the places of the segments' tokens in them laid end to end.

    Args:
        spread: int64 [S], index of the token in every place, 0 for the first segment's first; filling places repeat 0.
        collect: int64 [L], the place of every token.
        filling: int64 [F], places that hold no token.
        begin: stream index of the first token; not 0 in parts after the first.
    """

    stacks: tuple[Stack, ...]
    spread: Tensor
    collect: Tensor
    filling: Tensor
    begin: int


def block_plan(segments: Sequence[Segment], device: torch.device | str) -> BlockPlan:
    """Stack segments of like prefix and length so that little is computed for nothing."""
    begin = segments[0].start
    order = sorted(segments, key=lambda s: (s.num_ahead, s.length))
    parts: list[list[Segment]] = []
    for segment in order:
        part = parts[-1] if parts else []
        if part and _cost([*part, segment]) <= STACK_WASTE * sum(_cost([s]) for s in [*part, segment]):
            part.append(segment)
        else:
            parts.append([segment])
    spread: list[int] = []
    filling: list[int] = []
    collect = [0] * sum(s.length for s in segments)
    stacks = []
    for part in parts:
        queries = max(s.length for s in part)
        for segment in part:
            for i in range(queries):
                if i < segment.length:
                    collect[segment.start - begin + i] = len(spread)
                    spread.append(segment.start - begin + i)
                else:
                    filling.append(len(spread))
                    spread.append(0)
        stacks.append(_stack(part, queries, device))
    place = lambda values: send(torch.tensor(values, dtype=torch.int64), device)  # noqa: E731
    return BlockPlan(tuple(stacks), place(spread), place(collect), place(filling), begin)


def _cost(part: Sequence[Segment]) -> int:
    queries = max(s.length for s in part)
    # A query costs its keys' scores, and about 64 keys' worth of copying.
    return len(part) * queries * (max(s.num_ahead for s in part) + queries + 64)


def _stack(part: Sequence[Segment], queries: int, device: torch.device | str) -> Stack:
    causal = torch.ones(queries, queries, dtype=torch.bool).triu(1)[None, None]
    width = max(s.num_ahead for s in part)
    if width == 0:
        return Stack(len(part), queries, send(causal, device), None, None)
    ahead = [tuple(r for r in s.ahead if r[0] < r[1]) for s in part]
    unique = list(dict.fromkeys(ahead))
    prefixes = torch.zeros(len(unique), width, dtype=torch.int64)
    for row, ranges in zip(prefixes, unique, strict=True):
        tokens = [i for r in ranges for i in range(*r)]
        row[: len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
    owner = torch.tensor([unique.index(ranges) for ranges in ahead])
    lengths = torch.tensor([s.num_ahead for s in part])
    beyond = (torch.arange(width) >= lengths[:, None])[:, None, None, :].expand(-1, 1, queries, -1)
    if bool((lengths == width).all()):
        beyond = beyond[:1]
    blocked = torch.cat([beyond, causal.expand(beyond.shape[0], -1, -1, -1)], dim=-1)
    return Stack(len(part), queries, send(blocked, device), send(prefixes, device), send(owner, device))


class BlockAttention(FlexAttention):
    """Inner attention over a `BlockPlan`; a `FlexAttention` because TorchTitan accepts no other on CPU.

    Keys and values may be those of the whole stream where queries are a part of it.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(FlexAttention.Config):
        pass

    def forward(
        self,
        q_BLNH: Tensor,  # noqa: N803 - TorchTitan matches shardings to these names
        k_BLNH: Tensor,  # noqa: N803
        v_BLNH: Tensor,  # noqa: N803
        *,
        attention_masks: BlockPlan,
        scale: float | None = None,
        **_: Any,
    ) -> Tensor:
        plan = attention_masks
        q, k, v = q_BLNH[0], k_BLNH[0], v_BLNH[0]
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        own = (q, *(x if len(x) == len(q) else x.narrow(0, plan.begin, len(q)) for x in (k, v)))
        q_all, k_all, v_all = (_Spread.apply(x, plan.spread, plan.collect) for x in own)
        outs, begin = [], 0
        for stack in plan.stacks:
            size = stack.batch * stack.queries
            q_s, k_s, v_s = (
                x.narrow(0, begin, size).view(stack.batch, stack.queries, *x.shape[1:]) for x in (q_all, k_all, v_all)
            )
            begin += size
            if stack.prefixes is not None:
                k_s = torch.cat([_prefix(k, stack), k_s], dim=1)
                v_s = torch.cat([_prefix(v, stack), v_s], dim=1)
            outs.append(_attend(q_s, k_s, v_s, scale, stack.blocked).reshape(size, *q.shape[1:]))
        return _Collect.apply(torch.cat(outs), plan.spread, plan.collect, plan.filling)[None]


def _prefix(x: Tensor, stack: Stack) -> Tensor:
    """[L, M, H] to each segment's prefix, [B, P, M, H]."""
    assert stack.prefixes is not None
    prefixes = _Rows.apply(x, stack.prefixes.flatten()).view(*stack.prefixes.shape, *x.shape[1:])
    return _Repeat.apply(prefixes, stack.owner)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, blocked: Tensor) -> Tensor:
    """q [B, Q, N, H], k and v [B, K, M, H] with N a multiple of M; `blocked` bool [1 or B, 1, Q, K]. [B, Q, N, H]"""
    batch, queries, heads, dim = q.shape
    keys, kv_heads = k.shape[1], k.shape[2]
    if queries * keys > FLASH_ELEMENTS:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=~blocked, scale=scale, enable_gqa=heads != kv_heads)
        return out.transpose(1, 2)
    out = _Blocks.apply(q, k, v, scale, blocked)
    return out  # type: ignore[no-any-return]


class _Blocks(torch.autograd.Function):
    """`_attend` with all scores at once. Only the weights are kept, in the inputs' dtype; autograd would also keep the
    scores in float32 and mask them again. The softmax is taken in float32."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, blocked: Tensor) -> Tensor:
        batch, queries, heads, _ = q.shape
        keys, kv_heads = k.shape[1], k.shape[2]
        q, k, v = (_by_kv_head(x, kv_heads) for x in (q * scale, k, v))
        scores = torch.bmm(q, k.transpose(1, 2))
        beyond = torch.zeros(blocked.shape, dtype=scores.dtype, device=scores.device)
        scores.view(batch, heads, queries, keys).add_(beyond.masked_fill_(blocked, float("-inf")))
        weights = torch.softmax(scores, dim=-1)
        ctx.save_for_backward(q, k, v, weights)
        ctx.scale, ctx.kv_heads, ctx.batch = scale, kv_heads, batch
        return _by_token(torch.bmm(weights, v), batch, heads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        grad = _by_kv_head(grads[0], ctx.kv_heads)
        to_scores = torch.ops.aten._softmax_backward_data(
            torch.bmm(grad, v.transpose(1, 2)), weights, -1, weights.dtype
        )  # the masked ones have weight 0, and so no gradient
        heads = grads[0].shape[2]
        return (
            _by_token(torch.bmm(to_scores, k).mul_(ctx.scale), ctx.batch, heads),
            _by_token(torch.bmm(to_scores.transpose(1, 2), q), ctx.batch, ctx.kv_heads),
            _by_token(torch.bmm(weights.transpose(1, 2), grad), ctx.batch, ctx.kv_heads),
            None, None,
        )  # fmt: skip


def _by_kv_head(x: Tensor, kv_heads: int) -> Tensor:
    """[B, Q, N, H] to [B * M, N / M * Q, H]: the queries that share keys below one another."""
    batch, tokens, heads, dim = x.shape
    grouped = x.unflatten(2, (kv_heads, heads // kv_heads)).permute(0, 2, 3, 1, 4)
    return grouped.reshape(batch * kv_heads, heads // kv_heads * tokens, dim)


def _by_token(x: Tensor, batch: int, heads: int) -> Tensor:
    """The inverse of `_by_kv_head`, [B, Q, N, H]."""
    kv_heads = len(x) // batch
    grouped = x.view(batch, kv_heads, heads // kv_heads, -1, x.shape[-1]).permute(0, 3, 1, 2, 4)
    return grouped.reshape(batch, -1, heads, x.shape[-1])


class _Spread(torch.autograd.Function):
    """x[spread]. Every token has one place, so the gradient is a gather too (`index_select`'s own scatters: slow)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, spread: Tensor, collect: Tensor) -> Tensor:
        ctx.save_for_backward(collect)
        return x.index_select(0, spread)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0].index_select(0, ctx.saved_tensors[0]), None, None


class _Collect(torch.autograd.Function):
    """x[collect]; the inverse of `_Spread`. Filling places get no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, spread: Tensor, collect: Tensor, filling: Tensor) -> Tensor:
        ctx.save_for_backward(spread, filling)
        return x.index_select(0, collect)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        spread, filling = ctx.saved_tensors
        grad = grads[0].index_select(0, spread)
        return (grad.index_fill_(0, filling, 0) if len(filling) else grad), None, None, None


class _Rows(torch.autograd.Function):
    """x[index] of whole rows, which may repeat; the gradient adds rows in float32 (`index_select`'s adds elements)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, owner: Tensor) -> Tensor:
        ctx.save_for_backward(owner)
        ctx.rows = x.shape[0]
        return x.index_select(0, owner)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0]
        out = torch.zeros(ctx.rows, *grad.shape[1:], dtype=torch.float32, device=grad.device)
        return out.index_add_(0, ctx.saved_tensors[0], grad.float()).to(grad.dtype), None


class _Repeat(torch.autograd.Function):
    """x[owner] for few large blocks; the gradient is a product with a 0-1 matrix (6 times faster than `index_add_`)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, owner: Tensor) -> Tensor:
        ctx.save_for_backward(owner)
        ctx.blocks = x.shape[0]
        return x.index_select(0, owner)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0]
        members = F.one_hot(ctx.saved_tensors[0], ctx.blocks).float().t()
        total = members @ grad.float().flatten(1)
        return total.view(ctx.blocks, *grad.shape[1:]).to(grad.dtype), None
