"""What GSPO owes: contracts, and that its token form is the same for equal advantages."""

from __future__ import annotations

import torch

from forge_host.testing import LossContract, PluginContract, evaluate_loss


class TestPlugin(PluginContract):
    plugin = "gspo"


class TestGSPOLoss(LossContract):
    ref = "gspo/gspo"
    config = {"clip_low": 0.2, "clip_high": 0.28}
    aggregation = "sequence-mean"


class TestGSPOTokenLoss(LossContract):
    ref = "gspo/gspo-token"
    config = {"clip_low": 0.2, "clip_high": 0.28}
    aggregation = "sequence-mean"


def test_token_form_is_gspo_when_a_row_has_one_advantage() -> None:
    generator = torch.Generator().manual_seed(3)
    logprobs = -torch.rand(6, 5, generator=generator, dtype=torch.float64)
    tensors = {
        "logprobs": logprobs,
        "old_logprobs": logprobs + 0.1 * torch.randn(6, 5, generator=generator, dtype=torch.float64),
        "advantages": torch.randn(6, 1, generator=generator, dtype=torch.float64).expand(6, 5),
        "padding_mask": torch.rand(6, 5, generator=generator) > 0.3,
    }
    one, two = (evaluate_loss(f"gspo/{name}", tensors, aggregation="sequence-mean") for name in ("gspo", "gspo-token"))
    torch.testing.assert_close(two.gradients["logprobs"], one.gradients["logprobs"], rtol=1e-12, atol=1e-15)
    assert abs(two.loss - one.loss) < 1e-12
