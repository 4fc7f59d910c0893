"""The loss and advantage contracts catch what they are there for: each bad component fails the test made for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from forge_host.testing import AdvantageContract, LossContract, SamplerContract
from forge_host.types import Group, Verdict


def clipped(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
    """A third party's PPO clip, written without a thought of overflow."""
    ratio = torch.exp(logprobs - old_logprobs)
    return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)


def careful(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
    from forge_host.rl import safe_exp

    ratio = safe_exp(logprobs - old_logprobs)
    return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)


class TestThirdParty(LossContract):
    ref = careful


def centred(logprobs: Tensor, advantages: Tensor) -> Tensor:
    return -(logprobs - logprobs.mean()) * advantages


def by_width(logprobs: Tensor, advantages: Tensor) -> Tensor:
    return -logprobs * advantages / logprobs.shape[1]


def doubled(logprobs: Tensor, advantages: Tensor) -> Tensor:
    return -2 * logprobs * advantages


def noisy(logprobs: Tensor, advantages: Tensor) -> Tensor:
    return -logprobs * advantages * (1 + 0.1 * torch.rand(()))


def neighbour(logprobs: Tensor, advantages: Tensor) -> Tensor:
    return -logprobs * advantages.roll(1, 0)


class _Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def wrong_gradient(logprobs: Tensor, advantages: Tensor) -> Tensor:
    return -_Wrong.apply(logprobs) * advantages


def scalar_of_rows(logprobs: Tensor, advantages: Tensor, padding_mask: Tensor) -> Tensor:
    rows = (-logprobs * advantages * padding_mask).sum(1) / padding_mask.sum(1).clamp(min=1)
    return rows.mean()


CASES: list[tuple[Callable[..., Tensor], str, tuple[Any, ...]]] = [
    (clipped, "test_absurd_ratio_stays_finite", (800.0, torch.float32)),
    (clipped, "test_absurd_ratio_stays_finite", (800.0, torch.float64)),
    (centred, "test_same_under_micro_batches", ((2, 3),)),
    (centred, "test_same_with_more_padding", ()),
    (by_width, "test_same_with_more_padding", ()),
    (doubled, "test_ratio_one_gives_the_policy_gradient", ()),
    (noisy, "test_inputs_are_left_alone", ()),
    (neighbour, "test_same_in_any_row_order", ()),
    (neighbour, "test_same_under_micro_batches", ((2, 3),)),
    (wrong_gradient, "test_gradient_matches_finite_differences", ()),
    (scalar_of_rows, "test_same_under_micro_batches", ((2, 3),)),
    (neighbour, "test_same_on_two_processes", ()),
]


@pytest.mark.parametrize(("loss", "test", "arguments"), CASES, ids=[f"{c[0].__name__}-{c[1]}" for c in CASES])
def test_bad_loss_is_caught(loss: Callable[..., Tensor], test: str, arguments: tuple[Any, ...]) -> None:
    contract = type("TestBad", (LossContract,), {"ref": loss})()
    with pytest.raises((AssertionError, RuntimeError)):
        getattr(contract, test)(*arguments)


def naive_groups(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Standardises in float32, as most implementations do."""
    out = torch.zeros(len(rewards))
    for group in group_ids.unique():
        chosen = group_ids == group
        r = rewards[chosen].float()
        out[chosen] = (r - r.mean()) / (r.std() + 1e-6)
    return out


def by_position(rewards: Tensor, group_ids: Tensor) -> Tensor:
    return rewards - rewards.roll(1)


def upside_down(rewards: Tensor, group_ids: Tensor) -> Tensor:
    return rewards.mean() - rewards


@pytest.mark.parametrize(
    ("estimator", "test", "arguments"),
    [
        (naive_groups, "test_equal_rewards_give_exactly_zero", (0.7, torch.float32)),
        (naive_groups, "test_group_of_one", ()),
        (by_position, "test_row_order_does_not_matter", ()),
        (upside_down, "test_better_responses_of_a_group_get_more", ()),
        (upside_down, "test_other_groups_do_not_matter", ()),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_bad_advantage_is_caught(estimator: Any, test: str, arguments: tuple[Any, ...]) -> None:
    contract = type("TestBad", (AdvantageContract,), {"ref": estimator})()
    with pytest.raises(BaseException, match="") as caught:  # pytest.raises inside fails with its own exception
        getattr(contract, test)(*arguments)
    assert caught.type.__name__ in ("AssertionError", "Failed", "RunError")


class Silent:
    def verdict(self, group: Group) -> Verdict:
        return Verdict(bool(group.rewards) and max(group.rewards) > min(group.rewards))


class First:
    def verdict(self, group: Group) -> Verdict:
        return Verdict(True) if group.rewards and group.rewards[0] > 0.5 else Verdict(False, "starts badly")


class Hopeful:
    def verdict(self, group: Group) -> Verdict:
        return Verdict(True)


@pytest.mark.parametrize(
    ("sampler", "test"),
    [
        (Silent, "test_gives_verdicts"),
        (First, "test_order_of_responses_does_not_matter"),
        (Hopeful, "test_ungraded_group_is_dropped"),
    ],
)
def test_bad_sampler_is_caught(sampler: type, test: str) -> None:
    contract = type("TestBad", (SamplerContract,), {"ref": sampler})()
    with pytest.raises(AssertionError):
        getattr(contract, test)()
