"""Advantages from rewards: the statistics that estimators are made of, and the call that the loop makes.

    >>> import torch
    >>> rewards, groups = torch.tensor([1.0, 0.0, 0.7, 0.7]), torch.tensor([0, 0, 1, 1])
    >>> standardized(rewards, groups, eps=1e-4)
    tensor([ 0.7070, -0.7070,  0.0000,  0.0000], dtype=torch.float64)

Everything is float64, and a group whose rewards are all equal gives exactly 0: in float32 the mean of seven rewards of
0.7 is not 0.7, and dividing the difference by the deviation makes it an advantage of up to 0.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

from forge_host.errors import RunError, UsageError

LONE_CHOICES = ("error", "reward", "zero")


@attrs.frozen(eq=False)
class GroupStatistics:
    """Of each row's group, one value a row [B], float64 (`equal` bool): its mean, deviation and size."""

    rewards: Tensor
    mean: Tensor
    std: Tensor
    size: Tensor
    equal: Tensor


def group_statistics(rewards: Tensor, group_ids: Tensor, *, bessel: bool = True) -> GroupStatistics:
    """Statistics of each row's group. `bessel` divides the variance by size - 1, otherwise by size.

    Raises:
        ValueError: rewards and group ids are not two [B] tensors, or there are none.
    """
    if rewards.dim() != 1 or rewards.shape != group_ids.shape or rewards.numel() == 0:
        raise ValueError(
            f"rewards {tuple(rewards.shape)} and group_ids {tuple(group_ids.shape)} are not one value a row, [B]"
        )
    r = rewards.double()
    _, index = torch.unique(group_ids, return_inverse=True)
    groups = int(index.max()) + 1

    def per_group(values: Tensor, how: str) -> Tensor:
        return values.new_zeros(groups).scatter_reduce(0, index, values, how, include_self=False)[index]

    size = per_group(torch.ones_like(r), "sum")
    equal = per_group(r, "amax") == per_group(r, "amin")
    mean = torch.where(equal, r, per_group(r, "sum") / size)
    squares = per_group((r - mean).square(), "sum")
    std = (squares / (size - 1 if bessel else size).clamp(min=1)).sqrt()
    return GroupStatistics(r, mean, std, size, equal)


def standardized(
    rewards: Tensor,
    group_ids: Tensor,
    *,
    eps: float = 1e-4,
    scale: str = "group",
    bessel: bool = True,
    lone: str = "error",
) -> Tensor:
    """(r - mean of its group) / (deviation + eps), [B] float64.

    Args:
        scale: deviation of the "group", of the whole "batch" (of the rewards themselves, as TRL), or "none" (Dr.GRPO).
        bessel: sample (size - 1) or population deviation.
        lone: a group of one is an "error", keeps its "reward" (verl: mean 0, deviation 1), or gets "zero".
    """
    s = group_statistics(rewards, group_ids, bessel=bessel)
    check_lone(s.size, lone)
    centred = s.rewards - s.mean
    if lone == "reward":
        centred = torch.where(s.size == 1, s.rewards, centred)
    if scale == "none":
        return centred
    if scale == "batch":
        count = len(s.rewards)
        deviation = s.rewards.std(correction=1 if bessel and count > 1 else 0)
        return centred / (deviation + eps)
    return centred / (torch.where(s.size == 1, 1.0, s.std) + eps)


def leave_one_out(rewards: Tensor, group_ids: Tensor, *, lone: str = "error") -> Tensor:
    """r_i minus the mean of the others of its group, [B] float64 (RLOO)."""
    s = group_statistics(rewards, group_ids)
    check_lone(s.size, lone)
    scaled = (s.rewards - s.mean) * s.size / (s.size - 1).clamp(min=1)
    return torch.where(s.size == 1, s.rewards, scaled) if lone == "reward" else scaled


def check_lone(sizes: Tensor, lone: str) -> None:
    """Raises ValueError when a group has one response and that is not allowed."""
    if lone == "error" and bool((sizes == 1).any()):
        raise ValueError(
            "a group has one response, which gives a group baseline nothing to compare with; raise n_samples to 2 or "
            "more, let the sampler drop such groups, or set `lone` to reward or zero"
        )


def whitened(values: Tensor, padding_mask: Tensor | None = None, *, eps: float = 1e-8, bessel: bool = True) -> Tensor:
    """(x - mean) / sqrt(variance + eps) over all valid places, 0 elsewhere; exactly 0 when all are equal.

    Without a mask every value of `values` counts. With [B, T] values each token counts, so long rows weigh more (verl's
    masked_whiten). `bessel=False` is the population variance (OpenRLHF, which also floors it: `eps` is added here).
    """
    x = values.double()
    mask = torch.ones_like(x, dtype=torch.bool) if padding_mask is None else padding_mask.bool()
    chosen = x[mask]
    if chosen.numel() < 2:
        raise ValueError(f"whitening needs 2 or more values and got {chosen.numel()}; raise training.batch_size")
    if bool((chosen == chosen[0]).all()):
        return torch.zeros_like(x)
    centred = x - chosen.mean()
    return torch.where(mask, centred * (chosen.var(correction=int(bessel)) + eps).rsqrt(), 0.0)


def returns(rewards: Tensor, padding_mask: Tensor, token_kl: Tensor | None = None, gamma: float = 1.0) -> Tensor:
    """Discounted sum of what follows each token, [B, T] float64, 0 at padding.

    The reward stands on a row's last valid token; `token_kl` [B, T] (already times beta) is subtracted at its own.
    Masked places in between carry the return on unchanged (verl >= 0.9).
    """
    mask = padding_mask.bool()
    r = torch.zeros(mask.shape, dtype=torch.float64)
    if token_kl is not None:
        r -= torch.where(mask, token_kl.double(), 0.0)
    nonempty = mask.any(-1)
    last = (mask * torch.arange(mask.shape[1])).amax(-1)
    r[torch.arange(len(r))[nonempty], last[nonempty]] += rewards.double()[nonempty]
    out, running = torch.zeros_like(r), torch.zeros(len(r), dtype=torch.float64)
    for t in reversed(range(mask.shape[1])):
        running = torch.where(mask[:, t], r[:, t] + gamma * running, running)
        out[:, t] = running
    return torch.where(mask, out, 0.0)


def compute_advantages(
    estimator: Callable[..., Any],
    rewards: Tensor,
    group_ids: Tensor,
    padding_mask: Tensor,
    token_kl: Tensor | None = None,
    *,
    name: str | None = None,
    row_constant: bool = False,
) -> Tensor:
    """Calls an estimator by name and checks what it gives; [B, T] float64, 0 at padding.

    Args:
        estimator: an advantage component, plain or wrapped in `CallByName`.
        rewards, group_ids: [B]; `padding_mask` [B, T].
        token_kl: [B, T] from `forge_host.rl.kl.token_kl` when the KL is placed in the reward. An estimator that does
            not name it gets rewards from which its sum over the row is already subtracted.
        row_constant: the loss needs one advantage a row (a sequence-level ratio).

    Raises:
        UsageError: shapes that do not fit, or the estimator refused (a group of one, for instance).
        RunError: a reward or an advantage is not finite.
    """
    from forge_host.api import ADVANTAGE_ARGUMENTS
    from forge_host.plugins.calling import CallByName

    what = name or f"advantage `{getattr(estimator, '__name__', type(estimator).__name__)}`"
    call = estimator if isinstance(estimator, CallByName) else CallByName(estimator, ADVANTAGE_ARGUMENTS, what)
    what = call.what
    mask = padding_mask.bool()
    if mask.dim() != 2 or mask.numel() == 0:
        raise UsageError(f"padding_mask has shape {tuple(mask.shape)}", where=what, fix="give a non-empty batch [B, T]")
    for label, value in (("rewards", rewards), ("group_ids", group_ids)):
        if value.shape != mask.shape[:1]:
            raise UsageError(
                f"{label} has shape {tuple(value.shape)} beside padding_mask {tuple(mask.shape)}", where=what,
                fix=f"give {label} one value a row, [B]",
            )  # fmt: skip
    rewards = rewards.double()
    if not bool(torch.isfinite(rewards).all()):
        raise RunError(f"reward {rewards[~torch.isfinite(rewards)][0]} is not finite", where=what,
                       fix="a reward that cannot grade returns None")  # fmt: skip
    given = {"rewards": rewards, "group_ids": group_ids, "padding_mask": mask, "lengths": mask.sum(-1)}
    if token_kl is not None and "token_kl" in call.names:
        given["token_kl"] = token_kl
    elif token_kl is not None:
        given["rewards"] = rewards - torch.where(mask, token_kl.double(), 0.0).sum(-1)
    try:
        values = torch.as_tensor(call(**given)).double()
    except ValueError as error:
        raise UsageError(str(error), where=what) from error
    return _spread(values, mask, what, row_constant)


def _spread(values: Tensor, mask: Tensor, what: str, row_constant: bool) -> Tensor:
    if values.shape == mask.shape[:1]:
        values = values.unsqueeze(-1)
    if values.shape not in (mask.shape, (mask.shape[0], 1)):
        raise UsageError(
            f"returned shape {tuple(values.shape)} for a batch {tuple(mask.shape)}", where=what,
            fix="return one advantage a row [B] or a token [B, T]",
        )  # fmt: skip
    values = torch.where(mask, values, 0.0)
    if not bool(torch.isfinite(values).all()):
        raise RunError("an advantage is not finite", where=what, fix="check its divisor for groups of equal rewards")
    if row_constant:
        highest = torch.where(mask, values, -torch.inf).amax(-1)
        lowest = torch.where(mask, values, torch.inf).amin(-1)
        if bool((mask.any(-1) & (highest != lowest)).any()):
            raise UsageError(
                "gives the tokens of a row different advantages, and the loss has one ratio a row", where=what,
                fix="take a token-level loss (gspo-token for gspo), or an estimator with one advantage a row",
            )  # fmt: skip
    return values
