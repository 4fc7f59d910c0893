"""The objective: what it refuses, what it counts, and how its parts compose."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from torch import Tensor, nn

from forge_host.errors import PluginError, UsageError
from forge_host.rl import LossOutput, Objective, StepTotals, merge_metrics
from forge_host.rl.metrics import MetricSum
from forge_host.testing import evaluate_loss
from forge_host.types import KL, Correction


def tensors(**changes: Any) -> dict[str, Any]:
    base = {
        "logprobs": [[-1.0, -2.0, -0.5], [-0.3, -1.0, -1.0]],
        "old_logprobs": [[-1.1, -1.9, -0.5], [-0.4, -1.0, -1.0]],
        "generator_logprobs": [[-1.2, -1.7, -0.5], [-0.4, -1.1, -1.0]],
        "advantages": [[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]],
        "padding_mask": [[True, True, True], [True, True, False]],
    }
    return {**base, **changes}


# --- bad input: component, field, remedy ---


@pytest.mark.parametrize(
    ("changes", "config", "options", "message"),
    [
        ({"advantages": [1.0, -1.0]}, {}, {}, r"loss `grpo/grpo`: got `advantages` of shape \(2,\) .*\[B, T\]"),
        ({"padding_mask": [[True], [True]]}, {}, {}, r"loss `grpo/grpo`: got `padding_mask` of shape \(2, 1\)"),
        ({"logprobs": torch.zeros(0, 3)}, {}, {}, r"loss `grpo/grpo`: got an empty batch: .*give at least one row"),
        ({"old_logprobs": None}, {}, {}, r"loss `grpo/grpo`: has no `old_logprobs` .* its signature needs; give"),
        ({}, {}, {"kl": {"beta": 0.1}}, r"loss `grpo/grpo`: has no `ref_logprobs` .* kl.beta 0.1 needs; .*beta.* to 0"),
        ({}, {}, {"entropy_coef": 0.01}, r"has no `entropy` in its batch, which entropy_coef 0.01 needs"),
        ({}, {"clip_low": -0.1}, {}, r"loss `grpo/grpo`: `clip_low` must be >= 0.0, got -0.1"),
        ({}, {"clip_low": 1.5}, {}, r"loss `grpo/grpo`: `clip_low` must be <= 1.0, got 1.5"),
        ({}, {"clip_high": -0.2}, {}, r"loss `grpo/grpo`: .*`clip_high`"),
        ({}, {"dual_clip": 0.5}, {}, r"loss `grpo/grpo`: .*`dual_clip`"),
        ({}, {}, {"aggregation": "tokens-mean"}, r"aggregation: .*mode.*token-mean"),
        ({}, {}, {"kl": {"beta": 0.1, "estimator": "k4"}}, r"kl: .*estimator.*k3"),
        ({}, {}, {"aggregation": "fixed-length"}, r"aggregation.mode is fixed-length .*set aggregation.length"),
    ],
    ids=str,
)
def test_bad_input_is_one_clear_sentence(changes: Any, config: Any, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        evaluate_loss("grpo/grpo", tensors(**changes), config, **options)


def test_unknown_argument_of_a_loss_is_refused_before_anything_runs() -> None:
    def loss(logprobs: Tensor, advantage: Tensor) -> Tensor:
        return logprobs * advantage

    with pytest.raises(PluginError, match="asks for `advantage`.*did you mean `advantages`"):
        Objective(loss)


@pytest.mark.parametrize(
    ("result", "message"),
    [(torch.zeros(3), r"returned shape \(3,\), not \(2, 3\)"), (1.0, "returned float; return a tensor")],
    ids=["shape", "type"],
)
def test_unusable_result_is_refused(result: Any, message: str) -> None:
    def mine(logprobs: Tensor) -> Any:
        return result

    with pytest.raises(UsageError, match=f"loss `mine`: {message}"):
        evaluate_loss(mine, tensors())


# --- the seed's loss ---


class CustomLoss(nn.Module):
    """Word for word the example of the seed."""

    def __init__(self, clip_range: float = 0.2, beta: float = 0.1) -> None:
        super().__init__()
        self.clip_range = clip_range
        self.beta = beta

    def forward(
        self, logprobs: Tensor, ref_logprobs: Tensor, advantages: Tensor, padding_mask: Tensor
    ) -> Tensor:
        ratio = torch.exp(logprobs - ref_logprobs)
        clipped_ratio = torch.clamp(ratio, 1 - self.clip_range, 1 + self.clip_range)
        pg_loss = -torch.min(ratio * advantages, clipped_ratio * advantages)
        kl = ref_logprobs - logprobs
        masked_loss = (pg_loss + self.beta * kl) * padding_mask
        return masked_loss.sum() / padding_mask.sum()


def test_scalar_loss_is_the_same_in_micro_batches_and_without_tokens() -> None:
    given = {n: torch.as_tensor(v) for n, v in tensors(ref_logprobs=[[-1.0, -2.1, -0.4], [-0.2, -1.3, 0.0]]).items()}
    given = {n: torch.cat([v, v[:1]]) for n, v in given.items()}
    given["padding_mask"][2] = False
    objective, totals = Objective(CustomLoss()), StepTotals.of([given["padding_mask"]])
    whole = given["logprobs"].clone().requires_grad_()
    loss, _ = objective({**given, "logprobs": whole}, totals)
    (expected,) = torch.autograd.grad(loss, whole)
    cut = given["logprobs"].clone().requires_grad_()
    rows = [{**{n: v[i : i + 1] for n, v in given.items()}, "logprobs": cut[i : i + 1]} for i in range(3)]
    total = sum(objective(row, totals)[0] for row in rows)
    (found,) = torch.autograd.grad(total, cut)
    torch.testing.assert_close(total, loss)
    torch.testing.assert_close(found, expected)
    assert torch.isfinite(found).all() and objective.needs == {"ref_logprobs"}


def test_scalar_loss_cannot_be_corrected() -> None:
    def scalar(logprobs: Tensor, padding_mask: Tensor) -> Tensor:
        return logprobs.sum() / padding_mask.sum()

    with pytest.raises(UsageError, match="returns a scalar.*correction.mode to none"):
        evaluate_loss(scalar, tensors(), correction={"mode": "truncate"})


# --- composition ---


def plain(logprobs: Tensor, advantages: Tensor) -> Tensor:
    return -logprobs * advantages


def test_needs_are_what_is_asked_for() -> None:
    def optional(logprobs: Tensor, advantages: Tensor, entropy: Tensor | None = None, **more: Tensor) -> Tensor:
        return -logprobs * advantages

    assert Objective(optional).needs == frozenset()
    assert Objective(plain, kl=KL(beta=0.1)).needs == {"ref_logprobs"}
    assert Objective(plain, kl=KL(beta=0.1, placement="reward")).needs == frozenset()
    assert Objective(plain, entropy_coef=0.1).needs == {"entropy"}
    assert Objective(plain, correction=Correction(mode="mask")).needs == {"old_logprobs", "generator_logprobs"}


def test_penalty_is_not_weighted_by_the_correction() -> None:
    """Policy loss x weight + beta KL - coefficient x entropy, in that order (TRL)."""
    given = tensors(ref_logprobs=[[-1.5, -1.5, -1.5], [-1.0, -1.0, -1.0]], entropy=[[0.5, 0.6, 0.7], [0.8, 0.9, 1.0]])
    kl, correction = {"beta": 0.3, "estimator": "k1"}, {"mode": "truncate", "high": 1.05}
    step = evaluate_loss(plain, given, kl=kl, correction=correction, entropy_coef=0.2)
    lp, old, gen, a, ref, h = (
        torch.tensor(given[n], dtype=torch.float64)
        for n in ("logprobs", "old_logprobs", "generator_logprobs", "advantages", "ref_logprobs", "entropy")
    )
    per_token = -lp * a * (old - gen).exp().clamp(max=1.05) + 0.3 * (lp - ref) - 0.2 * h
    expected = per_token[torch.tensor(given["padding_mask"])].mean()
    assert step.loss == pytest.approx(float(expected), rel=1e-12)
    torch.testing.assert_close(
        step.gradients["entropy"], -0.2 / 5 * torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.float64)
    )
    assert step.metrics["policy/loss"] == pytest.approx(
        float((-lp * a * (old - gen).exp().clamp(max=1.05))[torch.tensor(given["padding_mask"])].mean()), rel=1e-12
    )
    assert step.metrics["correction/clipped"] == pytest.approx(2 / 5)


def test_ratio_to_the_generator_needs_no_old_logprobs() -> None:
    corrected = {"old_policy": "generator"}
    one = evaluate_loss("grpo/grpo", tensors(old_logprobs=None), correction=corrected)
    two = evaluate_loss("grpo/grpo", tensors(old_logprobs=tensors()["generator_logprobs"]))
    assert one.loss == two.loss and torch.equal(one.gradients["logprobs"], two.gradients["logprobs"])


@pytest.mark.parametrize("mode", ["token-mean", "sequence-mean", "sequence-sum", "fixed-length"])
def test_aggregations(mode: str) -> None:
    given = tensors(padding_mask=[[True, True, True], [True, False, False]])
    loss = evaluate_loss(plain, given, aggregation=mode, max_tokens=10).loss
    first, second = 3.5, -0.3
    expected = {
        "token-mean": (first + second) / 4, "sequence-mean": (first / 3 + second) / 2,
        "sequence-sum": (first + second) / 2, "fixed-length": (first + second) / 20,
    }[mode]  # fmt: skip
    assert loss == pytest.approx(expected, rel=1e-12)


def test_empty_rows_count_or_not() -> None:
    given = tensors(padding_mask=[[True, True, True], [False, False, False]])
    counted = evaluate_loss(plain, given, aggregation="sequence-mean").loss
    skipped = evaluate_loss(plain, given, aggregation={"mode": "sequence-mean", "empty_rows": "skip"}).loss
    assert skipped == pytest.approx(2 * counted)


# --- metrics ---


def test_metrics_of_every_loss_have_the_same_names() -> None:
    given = tensors(ref_logprobs=[[-1.0] * 3] * 2, entropy=[[1.0] * 3] * 2)
    common = {
        "policy/loss", "policy/kl", "policy/entropy", "policy/ratio_mean", "policy/ratio_max", "policy/dropped_tokens",
        "policy/effective_sample_size", "policy/generator_kl",
    }  # fmt: skip
    for ref in ("grpo", "dapo", "cispo", "gspo", "gspo-token", "reinforce", "rloo", "ppo-clip", "sapo", "simple-grpo"):
        found = set(evaluate_loss(ref, given).metrics)
        assert common <= found, ref
        if ref not in ("sapo", "simple-grpo"):  # these clip nothing
            assert {"policy/clip_low", "policy/clip_high"} <= found, ref


def test_metrics_merge_by_their_own_reduction() -> None:
    one = {"kl": MetricSum.mean(3.0, 3), "n": MetricSum("sum", 2.0), "top": MetricSum("max", 5.0, 1)}
    two = {"kl": MetricSum.mean(1.0, 1), "n": MetricSum("sum", 1.0), "top": MetricSum("max", 7.0, 0)}
    merged = merge_metrics([{**one, "w": MetricSum("ess", 2.0, 2, 2.0)}, {**two, "w": MetricSum("ess", 2.0, 1, 4.0)}])
    assert merged == {"kl": 1.0, "n": 3.0, "top": 5.0, "w": pytest.approx(16 / 18)}
    assert merge_metrics([{"kl": MetricSum.mean(0.0, 0)}]) == {}


def test_clip_fractions_count_where_a_bound_took_effect() -> None:
    given = tensors(
        logprobs=[[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], old_logprobs=[[-1.0, 1.0, 0.0], [-1.0, 1.0, 0.0]],
        padding_mask=[[True] * 3] * 2,
    )  # fmt: skip
    metrics = evaluate_loss("grpo", given).metrics
    assert metrics["policy/clip_high"] == pytest.approx(1 / 6)  # ratio e, positive advantage
    assert metrics["policy/clip_low"] == pytest.approx(1 / 6)  # ratio 1/e, negative advantage


def test_loss_output_needs_only_a_loss() -> None:
    def bare(logprobs: Tensor) -> LossOutput:
        return LossOutput(logprobs)

    assert attrs.fields(LossOutput).loss.default is attrs.NOTHING
    assert evaluate_loss(bare, tensors()).loss == pytest.approx(-(1 + 2 + 0.5 + 0.3 + 1) / 5)
