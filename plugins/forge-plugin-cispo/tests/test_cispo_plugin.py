"""What CISPO owes: contracts, and that clipping never takes a token's gradient."""

from __future__ import annotations

import torch

from forge_host.testing import LossContract, PluginContract, evaluate_loss


class TestPlugin(PluginContract):
    plugin = "cispo"


class TestCISPOLoss(LossContract):
    ref = "cispo/cispo"


class TestCISPOLossWithBothBounds(LossContract):
    ref = "cispo/cispo"
    config = {"clip_low": 0.2, "clip_high": 0.2}


def test_every_token_keeps_a_gradient() -> None:
    tensors = {"logprobs": [[-1.0, -1.0]], "old_logprobs": [[-9.0, 7.0]], "advantages": [[1.0, 1.0]]}
    step = evaluate_loss("cispo", {**tensors, "padding_mask": [[1, 1]]}, {"clip_low": 0.2, "clip_high": 0.28})
    torch.testing.assert_close(step.gradients["logprobs"], torch.tensor([[-0.64, -0.4]], dtype=torch.float64))
    assert step.metrics["policy/clip_high"] == 0.5 and step.metrics["policy/clip_low"] == 0.5
