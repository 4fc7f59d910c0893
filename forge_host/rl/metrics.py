"""Metrics that can be merged over micro-batches and ranks, because each carries its own reduction.

    >>> merge_metrics([{"policy/kl": MetricSum.mean(3.0, 2)}, {"policy/kl": MetricSum.mean(0.0, 1)}])
    {'policy/kl': 1.0}

A mean of means is wrong when micro-batches hold different numbers of tokens; a sum and a weight are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import attrs
import torch
from torch import Tensor

Number = float | Tensor


@attrs.frozen
class MetricSum:
    """One metric's share of a step; fields are floats or 0-dim tensors (a device is not waited for until `floats`).

    Args:
        how: "mean" is total / weight, "sum" is total, "max" is the largest total, "ess" is total^2 / (weight * square),
            the effective sample size as a share of the samples (1 when all weights are equal).
        total: sum of the values, or their maximum.
        weight: number of values.
        square: sum of the squared values ("ess" only).
    """

    how: Literal["mean", "sum", "max", "ess"]
    total: Number
    weight: Number = 1.0
    square: Number = 0.0

    @classmethod
    def mean(cls, total: Number, weight: Number) -> MetricSum:
        return cls("mean", total, weight)


def floats(shares: Sequence[Mapping[str, MetricSum]]) -> list[dict[str, MetricSum]]:
    """The same shares as plain floats, which pickle without a device. Few transfers, however many there are."""
    values = [v for share in shares for m in share.values() for v in (m.total, m.weight, m.square)]
    tensors = [v for v in values if isinstance(v, Tensor)]
    found: dict[int, float] = {}
    for kind in {(t.device, t.dtype) for t in tensors}:
        here = [t for t in tensors if (t.device, t.dtype) == kind]
        numbers = torch.stack([t.detach().reshape(()) for t in here]).tolist()
        found |= {id(t): float(number) for t, number in zip(here, numbers, strict=True)}

    def plain(value: Number) -> float:
        return found[id(value)] if isinstance(value, Tensor) else float(value)

    return [
        {name: MetricSum(m.how, plain(m.total), plain(m.weight), plain(m.square)) for name, m in share.items()}
        for share in shares
    ]


def merge_metrics(shares: Iterable[Mapping[str, MetricSum]]) -> dict[str, float]:
    """Combines the shares of all micro-batches and ranks of a step. A metric without any value is left out."""
    parts: dict[str, list[MetricSum]] = {}
    for share in floats(list(shares)):
        for name, metric in share.items():
            parts.setdefault(name, []).append(metric)
    return {name: value for name, found in parts.items() if (value := _combine(found)) is not None}


def _combine(found: list[MetricSum]) -> float | None:
    how = found[0].how
    total, weight, square = (sum(float(getattr(m, key)) for m in found) for key in ("total", "weight", "square"))
    if how == "sum":
        return total
    if how == "max":
        values = [float(m.total) for m in found if m.weight]
        return max(values) if values else None
    if how == "mean":
        return total / weight if weight else None
    return total * total / (weight * square) if weight and square else None
