"""What a loss must do, whoever wrote it: `LossContract`.

    from forge_host.testing import LossContract

    class TestMyLoss(LossContract):
        ref = "my_pkg.losses:MyLoss"
        config = {"clip_high": 0.3}

In float64: the gradient is right, is 0 where a token does not count, and is the same however the step is cut into
micro-batches, rows, padding and processes; nothing that padding holds gets through; one bad token is dropped and
counted, and one absurd ratio does not make the step infinite.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from forge_host.rl import MetricSum, Objective, StepTotals, merge_metrics
from forge_host.testing.evaluate import declared, make_objective
from forge_host.testing.frozen import FrozenDetach
from forge_host.testing.ranks import shared_gradient, two_ranks

LENGTHS = (7, 1, 4, 0, 5)
WIDTH = 7
FLOATS = ("logprobs", "old_logprobs", "generator_logprobs", "ref_logprobs", "advantages", "entropy")


class LossContract:
    """Subclass it, as `class TestMyLoss(LossContract)`, and set `ref`.

    Attributes:
        ref: reference ("dapo/dapo", "my_pkg.losses:MyLoss", "file.py:MyLoss"), class or callable.
        config: its settings.
        aggregation, kl, correction, entropy_coef: the host's parts around it, as in a configuration.
        policy_gradient: aggregation whose policy gradient the loss has at ratio 1; None is `aggregation`; "" leaves
            the test out, for a loss that is no policy gradient.
    """

    ref: ClassVar[Any]
    config: ClassVar[Mapping[str, Any]] = {}
    aggregation: ClassVar[Any] = "token-mean"
    kl: ClassVar[Mapping[str, Any]] = {}
    correction: ClassVar[Mapping[str, Any]] = {}
    entropy_coef: ClassVar[float] = 0.0
    policy_gradient: ClassVar[Any] = None

    def test_gradient_matches_finite_differences(self) -> None:
        tensors, frozen = self._tensors(), FrozenDetach()
        objective, start = self._objective(), tensors["logprobs"]

        def value(logprobs: Tensor) -> Tensor:
            return objective({**tensors, "logprobs": logprobs}, self._totals(tensors))[0]

        with frozen.record():
            value(start.clone().requires_grad_())

        def replayed(logprobs: Tensor) -> Tensor:
            with frozen.replay():
                return value(logprobs)

        assert torch.autograd.gradcheck(replayed, start.clone().requires_grad_(), atol=1e-7, rtol=1e-5)

    def test_gradient_is_finite_and_zero_where_no_token_counts(self) -> None:
        tensors = self._tensors()
        loss, grad, _ = self._step(tensors)
        assert torch.isfinite(loss) and torch.isfinite(grad).all()
        assert (grad[~tensors["padding_mask"]] == 0).all(), "padding gets a gradient"
        assert (grad[tensors["padding_mask"]] != 0).any(), "no token gets a gradient"

    @pytest.mark.parametrize("cuts", [(1, 1, 1, 1, 1), (2, 3), (4, 1), (1, 3, 1)], ids=str)
    def test_same_under_micro_batches(self, cuts: tuple[int, ...]) -> None:
        tensors = self._tensors()
        rows = torch.arange(len(LENGTHS)).split(list(cuts))
        parts = [{name: value[index] for name, value in tensors.items()} for index in rows]
        self._same(self._step(tensors), self._steps(parts))

    def test_same_in_any_row_order(self) -> None:
        tensors, order = self._tensors(), torch.tensor([3, 0, 4, 2, 1])
        loss, grad, metrics = self._step({name: value[order] for name, value in tensors.items()})
        self._same(self._step(tensors), (loss, grad[order.argsort()], metrics))

    def test_same_with_more_padding(self) -> None:
        tensors = self._tensors()
        wide = {name: torch.nn.functional.pad(value, (0, 4)) for name, value in tensors.items()}
        for name in FLOATS:
            wide[name][:, WIDTH:] = torch.nan
        loss, grad, metrics = self._step(wide)
        assert (grad[:, WIDTH:] == 0).all()
        self._same(self._step(tensors), (loss, grad[:, :WIDTH], metrics))

    def test_same_when_packed(self) -> None:
        """Log-probabilities that come out of one packed stream of tokens, without padding."""
        tensors = self._tensors()
        mask = tensors["padding_mask"]
        stream = tensors["logprobs"][mask].requires_grad_()
        rows = torch.full(mask.shape, torch.nan, dtype=stream.dtype).masked_scatter(mask, stream)
        loss, _ = self._objective()({**tensors, "logprobs": rows}, self._totals(tensors))
        (grad,) = torch.autograd.grad(loss, stream)
        expected = self._step(tensors)
        torch.testing.assert_close(loss.detach(), expected[0], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(grad, expected[1][mask], rtol=1e-12, atol=1e-14)

    def test_same_on_two_processes(self) -> None:
        """Data-parallel degree 2, gloo: gradients and losses are sums over ranks."""
        tensors = self._tensors()
        features = torch.randn(*tensors["logprobs"].shape, 3, generator=_seed(5), dtype=torch.float64)
        loss, grad = shared_gradient(self._spec(), tensors, features)
        there, summed = two_ranks(self._spec(), tensors, features)
        torch.testing.assert_close(torch.tensor(there, dtype=torch.float64), loss, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(summed, grad, rtol=1e-12, atol=1e-14)

    def test_ratio_one_gives_the_policy_gradient(self) -> None:
        if self.policy_gradient == "":
            pytest.skip("declared to be no policy gradient")
        tensors = self._tensors()
        for name in ("old_logprobs", "generator_logprobs", "ref_logprobs"):
            tensors[name] = tensors["logprobs"].clone()
        _, grad, _ = self._step(tensors, entropy_coef=0.0)

        def plain(logprobs: Tensor, advantages: Tensor) -> Tensor:
            return -advantages * logprobs

        aggregation = self.aggregation if self.policy_gradient is None else self.policy_gradient
        _, expected, _ = self._step(tensors, make_objective(plain, aggregation=aggregation, max_tokens=WIDTH))
        torch.testing.assert_close(grad, expected, rtol=1e-9, atol=1e-12)

    def test_nothing_to_train_on_gives_zero(self) -> None:
        tensors = self._tensors()
        tensors["padding_mask"] = torch.zeros_like(tensors["padding_mask"])
        loss, grad, _ = self._step(tensors)
        assert loss == 0 and (grad == 0).all()

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf], ids=["nan", "inf", "-inf"])
    def test_padding_never_gets_through(self, bad: float) -> None:
        tensors = self._tensors()
        expected = self._step(tensors)
        for name in FLOATS:
            changed = {k: v.clone() for k, v in tensors.items()}
            changed[name][~tensors["padding_mask"]] = bad
            loss, grad, metrics = self._step(changed)
            assert loss == expected[0] and torch.equal(grad, expected[1]), f"{name} {bad} in padding changes the loss"
            assert metrics == expected[2], f"{name} {bad} in padding changes the metrics"

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf], ids=["nan", "inf", "-inf"])
    @pytest.mark.parametrize("name", ["generator_logprobs", "old_logprobs"])
    def test_bad_token_is_dropped_and_counted(self, name: str, bad: float) -> None:
        tensors = self._tensors()
        _, before, _ = self._step(tensors)
        tensors[name][2, 1] = bad
        loss, grad, metrics = self._step(tensors)
        assert torch.isfinite(loss) and torch.isfinite(grad).all()
        assert metrics["policy/dropped_tokens"] == 1 and grad[2, 1] == 0
        others = [0, 1, 3, 4]
        torch.testing.assert_close(grad[others], before[others], rtol=1e-12, atol=1e-14)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
    @pytest.mark.parametrize("distance", [800.0, -800.0])
    def test_absurd_ratio_stays_finite(self, distance: float, dtype: torch.dtype) -> None:
        for row in (0, 2):  # a positive and a negative advantage
            for name in ("old_logprobs", "generator_logprobs", "ref_logprobs"):
                tensors = self._tensors(dtype)
                tensors[name][row, 2] = tensors["logprobs"][row, 2] - distance
                loss, grad, _ = self._step(tensors)
                assert torch.isfinite(loss), f"{name} {distance:g} away: the loss is {loss}"
                assert torch.isfinite(grad).all(), f"{name} {distance:g} away: a gradient is not finite"

    def test_float32_agrees(self) -> None:
        exact, single = self._step(self._tensors()), self._step(self._tensors(torch.float32))
        torch.testing.assert_close(single[0].double(), exact[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(single[1].double(), exact[1], rtol=1e-3, atol=1e-5)

    def test_inputs_are_left_alone(self) -> None:
        tensors = self._tensors()
        copies = {name: value.clone() for name, value in tensors.items()}
        first, second = self._step(tensors), self._step(tensors)
        assert all(torch.equal(value, copies[name]) for name, value in tensors.items())
        assert first[0] == second[0] and torch.equal(first[1], second[1]), "two calls give two results"

    # --- how a step is computed ---

    def _spec(self) -> dict[str, Any]:
        ref = declared(self)
        if isinstance(ref, type) or inspect.isfunction(ref):
            # By place, so that another process finds it; test modules are not importable by name.
            ref = f"{inspect.getfile(ref)}:{ref.__qualname__}"
        return {
            "ref": ref, "config": dict(self.config), "aggregation": self.aggregation, "kl": dict(self.kl),
            "correction": dict(self.correction), "entropy_coef": self.entropy_coef, "max_tokens": WIDTH,
        }  # fmt: skip

    def _objective(self, **changes: Any) -> Objective:
        return make_objective(**{**self._spec(), "ref": declared(self), **changes})

    def _tensors(self, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        """Five rows of 7, 1, 4, 0 and 5 tokens; ratios of 0.1 to 8; advantages of both signs."""
        generator = _seed(11)
        shape = len(LENGTHS), WIDTH
        mask = torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]

        def normal(scale: float) -> Tensor:
            return scale * torch.randn(shape, generator=generator, dtype=torch.float64)

        logprobs = -normal(1.0).abs() - 0.2
        advantages = torch.tensor([1.25, -0.8, -1.7, 0.3, 0.6], dtype=torch.float64)
        tensors = {
            "logprobs": logprobs,
            "old_logprobs": logprobs + normal(0.7),
            "generator_logprobs": logprobs + normal(0.7),
            "ref_logprobs": logprobs + normal(0.7),
            "advantages": advantages[:, None].expand(shape).clone(),
            "entropy": normal(1.0).abs(),
        }
        return {**{name: value.to(dtype) for name, value in tensors.items()}, "padding_mask": mask}

    def _totals(self, tensors: Mapping[str, Tensor]) -> StepTotals:
        return StepTotals.of([tensors["padding_mask"]])

    def _step(
        self, tensors: Mapping[str, Tensor], objective: Objective | None = None, **changes: Any
    ) -> tuple[Tensor, Tensor, dict[str, float]]:
        return self._steps([tensors], objective, **changes)

    def _steps(
        self, parts: Sequence[Mapping[str, Tensor]], objective: Objective | None = None, **changes: Any
    ) -> tuple[Tensor, Tensor, dict[str, float]]:
        """Loss, gradient of the log-probabilities and metrics of a step in several micro-batches."""
        objective = objective or self._objective(**changes)
        totals = StepTotals.of(part["padding_mask"] for part in parts)
        losses: list[Tensor] = []
        grads: list[Tensor] = []
        shares: list[dict[str, MetricSum]] = []
        for part in parts:
            logprobs = part["logprobs"].clone().requires_grad_()
            loss, share = objective({**part, "logprobs": logprobs}, totals)
            (grad,) = torch.autograd.grad(loss, logprobs)
            losses.append(loss.detach())
            grads.append(grad)
            shares.append(share)
        return torch.stack(losses).sum(), torch.cat(grads), merge_metrics(shares)

    def _same(self, one: tuple[Tensor, Tensor, dict[str, float]], two: tuple[Tensor, Tensor, dict[str, float]]) -> None:
        torch.testing.assert_close(two[0], one[0], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(two[1], one[1], rtol=1e-12, atol=1e-14)
        assert two[2] == pytest.approx(one[2], rel=1e-9, abs=1e-12)


def _seed(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)
