"""Per-token losses to one number, over the whole step: every micro-batch and every rank.

With L [B, T] the per-token loss, m its mask, n_i = sum_t m_it and the step's totals N (tokens), R (rows):

    token-mean      sum(L m) / max(N, 1)                      TRL dapo/bnpo, verl token-mean, torchtitan
    sequence-mean   1/R sum_i (sum_t L m) / max(n_i, 1)       TRL grpo, torchforge (`empty_rows: count`, the default);
                                                              verl: `length_eps: 1e-8, empty_rows: skip`
    sequence-sum    1/R sum_i sum_t L m                       verl seq-mean-token-sum (`empty_rows: skip`)
    fixed-length    sum(L m) / (R length)                     Dr.GRPO, TRL dr_grpo; verl seq-mean-token-sum-norm

`empty_rows: skip` takes R = rows with at least one token. Denominators belong to the step, not to the micro-batch, so

    totals = StepTotals.of(masks_of_all_micro_batches_and_ranks)
    loss = sum(aggregate(L, m, aggregation, totals) for L, m in micro_batches)     # and over ranks

is the same number, with the same gradient, however the step was cut. Rows that only fill up a rank must not be in the
totals (or take `empty_rows: skip`): an empty row that is counted dilutes the mean, as in TRL and torchforge.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import torch
from torch import Tensor

from forge_host.errors import UsageError
from forge_host.types import Aggregation


@attrs.frozen
class StepTotals:
    """Denominators of one optimizer step, over all its micro-batches and ranks."""

    num_tokens: int
    num_rows: int
    num_nonempty_rows: int

    @classmethod
    def of(cls, padding_masks: Iterable[Tensor]) -> StepTotals:
        """Counts the padding masks [B, T] of the whole step."""
        tokens = rows = nonempty = 0
        for mask in padding_masks:
            lengths = mask.bool().sum(-1)
            tokens += int(lengths.sum())
            rows += lengths.numel()
            nonempty += int((lengths > 0).sum())
        return cls(tokens, rows, nonempty)


def aggregate(
    loss: Tensor,
    padding_mask: Tensor,
    aggregation: Aggregation,
    totals: StepTotals,
    max_tokens: int | None = None,
    valid: Tensor | None = None,
) -> Tensor:
    """This micro-batch's contribution (0-dim) to the step's loss; `loss` is [B, T] or [B, 1], the mask [B, T].

    Args:
        max_tokens: divisor of fixed-length when `aggregation.length` is None.
        valid: [B, T], tokens that add to the loss when they are fewer than those the mask counts in denominators.

    Raises:
        UsageError: fixed-length without a length.
    """
    masked = torch.where(padding_mask if valid is None else valid, loss, 0.0)
    if aggregation.mode == "token-mean":
        return masked.sum() / max(totals.num_tokens, 1)
    rows = max(totals.num_rows if aggregation.empty_rows == "count" else totals.num_nonempty_rows, 1)
    if aggregation.mode == "sequence-mean":
        lengths = padding_mask.sum(-1).clamp(min=1).to(masked.dtype) + aggregation.length_eps
        return (masked.sum(-1) / lengths).sum() / rows
    if aggregation.mode == "sequence-sum":
        return masked.sum() / rows
    return masked.sum() / (rows * fixed_length(aggregation, max_tokens))


def fixed_length(aggregation: Aggregation, max_tokens: int | None) -> int:
    """The constant divisor of `fixed-length`."""
    length = aggregation.length or max_tokens
    if not length:
        raise UsageError(
            "aggregation.mode is fixed-length but neither aggregation.length nor max_tokens is given",
            fix="set aggregation.length to the response budget in tokens",
        )
    return length


def batch_loss(loss: Tensor, padding_mask: Tensor, mode: str = "token-mean") -> Tensor:
    """`loss` [B, T] of a whole step as one number; for losses that are called outside a trainer."""
    mask = padding_mask.bool()
    return aggregate(loss, mask, Aggregation(mode=mode), StepTotals.of([mask]))


def zero_padding(padding_mask: Tensor, *tensors: Tensor) -> list[Tensor]:
    """Each tensor with 0 at padding: multiplying by the mask would let a nan through."""
    return [torch.where(padding_mask.bool(), tensor, 0.0) for tensor in tensors]
