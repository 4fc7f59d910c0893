"""What the REINFORCE family owes: contracts of its losses and estimators, and torchforge's class."""

from __future__ import annotations

import pytest
import torch

from forge_host.losses.reinforce_loss import ReinforceLoss
from forge_host.testing import AdvantageContract, LossContract, PluginContract, evaluate_loss, load_component


class TestPlugin(PluginContract):
    plugin = "reinforce"


class TestReinforceLoss(LossContract):
    ref = "reinforce/reinforce"


class TestReinforceLossWithClipRatio(LossContract):
    ref = "reinforce/reinforce"
    config = {"clip_ratio": 0.2}


class TestRLOOLoss(LossContract):
    ref = "reinforce/rloo"
    aggregation = "sequence-mean"
    policy_gradient = "sequence-sum"  # the response is one action


class TestReinforcePPLoss(LossContract):
    ref = "builtin/ppo-clip"
    kl = {"beta": 0.001, "estimator": "k2"}


class TestBatchBaseline(AdvantageContract):
    ref = "reinforce/reinforce"
    baseline = "batch"


class TestNoBaseline(AdvantageContract):
    ref = "reinforce/reinforce"
    config = {"baseline": "none"}
    baseline = "none"


class TestLeaveOneOut(AdvantageContract):
    ref = "reinforce/rloo"


class TestReinforcePP(AdvantageContract):
    ref = "reinforce/reinforce-pp"
    baseline = "batch"


class TestReinforcePPBaseline(AdvantageContract):
    ref = "reinforce/reinforce-pp-baseline"
    batch_statistics = True


def test_clip_ratio_bounds_the_weight_around_one() -> None:
    tensors = {
        "logprobs": torch.full((1, 3), -1.0, requires_grad=True),
        "generator_logprobs": torch.tensor([[-2.0, -1.0, 0.0]]),
        "advantages": torch.ones(1, 3),
        "padding_mask": torch.ones(1, 3, dtype=torch.bool),
    }
    loss = ReinforceLoss(clip_ratio=0.2)(**tensors)
    (grad,) = torch.autograd.grad(loss, tensors["logprobs"])
    assert loss.shape == () and float(loss.detach()) == pytest.approx(1.0)
    torch.testing.assert_close(grad, -torch.tensor([[1.2, 1.0, 0.8]]) / 3)


def test_seed_class_has_the_components_value() -> None:
    generator = torch.Generator().manual_seed(0)
    names = ("logprobs", "generator_logprobs", "advantages")
    tensors = {name: -torch.rand(3, 4, generator=generator) for name in names}
    mask = torch.rand(3, 4, generator=generator) > 0.4
    step = evaluate_loss("reinforce/reinforce", {**tensors, "padding_mask": mask})
    assert float(ReinforceLoss()(**tensors, padding_mask=mask)) == pytest.approx(step.loss, rel=1e-6)


def test_token_advantages_are_declared() -> None:
    assert not load_component("advantage", "reinforce/reinforce-pp").token_level
    assert load_component("advantage", "reinforce/reinforce-pp", {"gamma": 0.9}).token_level
