"""What an advantage estimator must do: `AdvantageContract`.

    from forge_host.testing import AdvantageContract

    class TestMyAdvantage(AdvantageContract):
        ref = "my_pkg.advantages:MyAdvantage"

Equal rewards teach exactly nothing, a better response of a group never gets less, and neither the order of rows nor
padding nor the numbers of groups matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from forge_host.errors import RunError, UsageError
from forge_host.testing.evaluate import declared, evaluate_advantage

REWARDS = (1.0, 0.0, 0.25, 0.9, 0.5, 0.5, 0.1, 0.7)
GROUPS = (3, 3, 3, 3, 7, 7, 7, 7)
LENGTHS = (5, 2, 7, 1, 3, 4, 6, 2)


class AdvantageContract:
    """Subclass it, as `class TestMyAdvantage(AdvantageContract)`, and set `ref`.

    Attributes:
        ref: reference, class or callable.
        config: its settings.
        baseline: what rewards are compared with: "group", "batch", or "none" (then equal rewards need not give 0).
        batch_statistics: whether other groups' rewards change a group's advantages (whitening does).
    """

    ref: ClassVar[Any]
    config: ClassVar[Mapping[str, Any]] = {}
    baseline: ClassVar[str] = "group"
    batch_statistics: ClassVar[bool] = False

    def test_shape_and_dtype(self) -> None:
        values = self._advantages()
        assert values.shape == self._mask().shape and values.dtype == torch.float64
        assert torch.isfinite(values).all() and (values[~self._mask()] == 0).all()
        assert (values != 0).any(), "different rewards give no advantage"

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
    @pytest.mark.parametrize("reward", [1.1, 0.7, 0.3, 0.1, 1 / 3, -2.5, 1e-8, 1e6])
    def test_equal_rewards_give_exactly_zero(self, reward: float, dtype: torch.dtype) -> None:
        for size in (2, 3, 7, 10):
            rewards, groups = torch.full((size,), reward, dtype=dtype), torch.zeros(size, dtype=torch.int64)
            if self.baseline == "group":  # beside a group that differs
                rewards = torch.cat([rewards, torch.tensor([0.0, 1.0, 1.0], dtype=dtype)])
                groups = torch.cat([groups, torch.ones(3, dtype=torch.int64)])
            values = self._evaluate(rewards, groups, padding_mask=self._ones(len(rewards)))
            if self.baseline == "none":
                assert (values[:size] == values[0]).all(), f"{size} rewards of {reward} differ"
            else:
                assert (values[:size] == 0).all(), f"{size} rewards of {reward} in {dtype} give {values[0, 0]}"

    def test_better_responses_of_a_group_get_more(self) -> None:
        first = self._advantages(mask=self._ones(len(REWARDS)))[:, 0]
        for i, a in enumerate(REWARDS):
            for j, b in enumerate(REWARDS):
                if GROUPS[i] == GROUPS[j] and a > b:
                    assert first[i] > first[j], f"reward {a} gets {first[i]}, reward {b} of its group {first[j]}"

    def test_row_order_does_not_matter(self) -> None:
        order = torch.tensor([4, 0, 5, 2, 7, 1, 6, 3])
        moved = self._evaluate(
            self._rewards()[order], torch.tensor(GROUPS)[order], padding_mask=self._mask()[order]
        )
        torch.testing.assert_close(moved, self._advantages()[order], rtol=1e-12, atol=1e-14)

    def test_padding_does_not_matter(self) -> None:
        wide = torch.nn.functional.pad(self._mask(), (0, 3))
        values = self._advantages(mask=wide)
        assert (values[:, -3:] == 0).all()
        torch.testing.assert_close(values[:, :-3], self._advantages(), rtol=1e-12, atol=1e-14)

    def test_group_numbers_do_not_matter(self) -> None:
        other = self._evaluate(
            self._rewards(), [90 if g == 3 else 2 for g in GROUPS], padding_mask=self._mask()
        )
        torch.testing.assert_close(other, self._advantages(), rtol=1e-12, atol=1e-14)

    def test_other_groups_do_not_matter(self) -> None:
        if self.batch_statistics or self.baseline != "group":
            pytest.skip("declared to use the whole batch")
        alone = self._evaluate(
            self._rewards()[:4], GROUPS[:4], padding_mask=self._mask()[:4]
        )
        torch.testing.assert_close(alone, self._advantages()[:4], rtol=1e-12, atol=1e-14)

    def test_group_of_one(self) -> None:
        """An error that says what to do, unless nothing is compared within a group."""
        rewards, groups = [1.0, 0.0, 0.5], [0, 0, 1]
        if self.baseline == "group" and self.config.get("lone", "error") == "error":
            with pytest.raises(UsageError, match="n_samples"):
                self._evaluate(rewards, groups, padding_mask=self._ones(3))
        else:
            values = self._evaluate(rewards, groups, padding_mask=self._ones(3))
            assert torch.isfinite(values).all()

    def test_reward_that_is_not_finite_is_refused(self) -> None:
        rewards = self._rewards()
        rewards[1] = torch.nan
        with pytest.raises(RunError, match="not finite"):
            self._evaluate(rewards, GROUPS, padding_mask=self._mask())

    def test_inputs_are_left_alone(self) -> None:
        rewards, groups, mask = self._rewards(), torch.tensor(GROUPS), self._mask()
        for _ in range(2):
            values = self._evaluate(rewards, groups, padding_mask=mask)
        assert torch.equal(rewards, self._rewards()) and torch.equal(mask, self._mask())
        assert torch.equal(values, self._advantages())

    # --- inputs ---

    def _evaluate(self, rewards: Any, groups: Any, padding_mask: Tensor) -> Tensor:
        return evaluate_advantage(declared(self), rewards, groups, self.config, padding_mask=padding_mask)

    def _rewards(self) -> Tensor:
        return torch.tensor(REWARDS, dtype=torch.float64)

    def _mask(self) -> Tensor:
        return torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]

    def _ones(self, rows: int) -> Tensor:
        return torch.ones(rows, 4, dtype=torch.bool)

    def _advantages(self, mask: Tensor | None = None) -> Tensor:
        mask = self._mask() if mask is None else mask
        return self._evaluate(self._rewards(), GROUPS, padding_mask=mask)
