"""What GRPO owes: the plugin's and every loss's and estimator's contract, and its own options."""

from __future__ import annotations

import pytest
import torch

from forge_host.losses import SimpleGRPOLoss
from forge_host.testing import AdvantageContract, LossContract, PluginContract, evaluate_loss, load_component


class TestPlugin(PluginContract):
    plugin = "grpo"


class TestGRPOLoss(LossContract):
    ref = "grpo/grpo"
    aggregation = "sequence-mean"
    kl = {"beta": 0.04}


class TestGRPOLossWithEverything(LossContract):
    ref = "grpo/grpo"
    config = {"clip_high": 0.28, "dual_clip": 3.0, "max_ratio": 4.0, "off_policy_kl": 0.3}
    kl = {"beta": 0.04, "bias_correction": True}
    correction = {"mode": "truncate", "level": "sequence"}
    entropy_coef = 0.01
    policy_gradient = ""  # the bias-corrected penalty has a gradient at ratio 1


class TestSimpleGRPO(LossContract):
    ref = "grpo/simple-grpo"
    aggregation = "sequence-mean"


class TestGRPOAdvantage(AdvantageContract):
    ref = "grpo/grpo"


class TestDrGRPOAdvantage(AdvantageContract):
    ref = "grpo/dr-grpo"


def test_seed_class_gives_one_number_as_the_component_does() -> None:
    generator = torch.Generator().manual_seed(0)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]).bool()
    tensors = {name: -torch.rand(3, 3, generator=generator) for name in ("logprobs", "ref_logprobs", "advantages")}
    value = SimpleGRPOLoss(beta=0.1)(**tensors, padding_mask=mask)
    step = evaluate_loss("simple-grpo", {**tensors, "padding_mask": mask}, {"beta": 0.1}, aggregation="sequence-mean")
    assert value.shape == () and float(value) == pytest.approx(step.loss, rel=1e-6)


def test_seed_class_lets_no_nan_through_padding() -> None:
    mask = torch.tensor([[True, False]])
    logprobs = torch.tensor([[-1.0, torch.nan]], requires_grad=True)
    ref, advantages = logprobs.detach(), torch.ones(1, 1)
    SimpleGRPOLoss()(logprobs=logprobs, ref_logprobs=ref, advantages=advantages, padding_mask=mask).backward()
    assert logprobs.grad is not None and logprobs.grad.tolist() == [[-1.0, 0.0]]


def test_off_policy_rows_with_negative_advantage_do_not_count() -> None:
    loss = load_component("loss", "grpo/grpo", {"off_policy_kl": 0.5})
    logprobs = torch.tensor([[-2.0, -2.0], [-2.0, -2.0], [-1.1, -1.1]])
    sampled, advantages = torch.full((3, 2), -1.0), torch.tensor([[1.0], [-1.0], [-1.0]]).expand(3, 2)
    mask = torch.ones(3, 2, dtype=torch.bool)
    out = loss(logprobs, logprobs, advantages, padding_mask=mask, generator_logprobs=sampled)
    assert out.loss[:, 0].tolist() == [-1.0, 0.0, 1.0]
