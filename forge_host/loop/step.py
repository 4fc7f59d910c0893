"""One optimizer step: groups to rows, reference log-probabilities, advantages, micro-batches, and its metrics."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from forge_host.errors import RunError
from forge_host.loop import batch
from forge_host.plugins.calling import CallByName
from forge_host.rl import compute_advantages, token_kl
from forge_host.runtime.handle import ActorHandle
from forge_host.runtime.service import Service
from forge_host.types import Group


@attrs.frozen(eq=False, kw_only=True)
class Stepper:
    """Trains on groups. `advantage` is called by name with ADVANTAGE_ARGUMENTS."""

    trainer: ActorHandle
    ref_model: Service | None
    advantage: CallByName
    plan: Any
    training: Any
    data_parallel: int
    max_policy_age: int

    async def __call__(self, groups: Sequence[Group], version: int) -> dict[str, float]:
        """One step at policy version `version`; returns its metrics.

        Raises:
            RunError: a token is older than `max_policy_age`, or nothing is left to train on.
        """
        rows = batch.rows_of(groups, mask_truncated=self.plan.mask_truncated)
        if not rows:
            raise RunError("no response of this step can be trained on", fix="see the errors in rollouts/")
        return self._ages(rows, version) | await self.train(rows)

    async def train(self, rows: list[batch.Row]) -> dict[str, float]:
        """One step on rows; returns its metrics, `train/loss` among them."""
        metrics: dict[str, float] = {}
        parts = batch.balance(
            rows,
            batch.num_bins(
                rows,
                data_parallel=self.data_parallel,
                accumulation=self.training.gradient_accumulation_steps,
                micro_batch_tokens=self.training.micro_batch_tokens,
            ),
        )
        inputs = [batch.pack(part) for part in parts]
        if self.ref_model is not None or (self.plan.needs_ref_logprobs and self.plan.trainer_is_reference):
            began = time.perf_counter()
            # The head of each response's targets is all that log-probabilities need; advantages come later.
            given = inputs, [batch.targets(part) for part in parts]
            if self.ref_model is not None:
                answers = await self.ref_model.logprobs.route(*given)
            else:
                answers = await self.trainer.reference_logprobs.call_one(*given)
            for part, answer in zip(parts, answers, strict=True):
                for row, values in zip(
                    part, batch.unpad(answer, torch.tensor([len(r.completion.token_ids) for r in part])), strict=True
                ):
                    row.ref_logprobs = values
            metrics["time/ref_s"] = time.perf_counter() - began
        await self._advantages(rows, parts, inputs)
        began = time.perf_counter()
        losses = await self.trainer.train_step.call(inputs, [batch.targets(part) for part in parts])
        metrics |= {"time/train_s": time.perf_counter() - began, "train/loss": float(losses[0])}
        return {**metrics, **(await self.trainer.metrics.call_one())}

    def _ages(self, rows: Sequence[batch.Row], version: int) -> dict[str, float]:
        ages = [version - v for row in rows for v in row.completion.policy_versions]
        if max(ages) > self.max_policy_age or min(ages) < 0:
            raise RunError(
                f"a token of policy version {version - max(ages)} reached the step of version {version}; "
                f"max_policy_age is {self.max_policy_age}",
            )
        return {"policy_age/max": float(max(ages)), "policy_age/mean": statistics.fmean(ages)}

    async def _advantages(self, rows: list[batch.Row], parts: list[list[batch.Row]], inputs: list[Any]) -> None:
        lengths = torch.tensor([len(row.completion.token_ids) for row in rows])
        kl = self.plan.kl
        in_reward = kl.placement == "reward" and kl.beta > 0
        values = compute_advantages(
            self.advantage,
            rewards=torch.tensor([row.reward for row in rows], dtype=torch.float64),
            group_ids=torch.tensor([row.group_id for row in rows]),
            padding_mask=batch.own_tokens(rows, int(lengths.max())),
            token_kl=await self._token_kl(rows, parts, inputs, int(lengths.max())) if in_reward else None,
            row_constant="sequence-advantages" in self.plan.loss.needs,
        )
        for row, value in zip(rows, values.tolist() if values.dim() == 1 else values, strict=True):
            row.advantage = value

    async def _token_kl(
        self, rows: list[batch.Row], parts: list[list[batch.Row]], inputs: list[Any], width: int
    ) -> torch.Tensor:
        """`kl.beta` times the KL estimate of every token under the trainer's current weights. [N, T] float64"""
        answers = await self.trainer.logprobs.call_one(inputs, [batch.targets(part) for part in parts])
        out = torch.zeros(len(rows), width, dtype=torch.float64)
        index = {id(row): i for i, row in enumerate(rows)}
        for part, answer in zip(parts, answers, strict=True):
            given: dict[str, Any] = batch.targets(part)
            mask = batch.own_tokens(part, answer.shape[1])
            for row, values in zip(part, token_kl(answer, given["ref_logprobs"], mask, self.plan.kl), strict=True):
                out[index[id(row)], : len(values)] = values
        return out


def reward_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """reward/mean, std, error_rate, zero-variance share; per reward the same, per part mean and std; lengths."""
    episodes = [e for g in groups for e in g.episodes]
    graded = [e.reward for e in episodes if e.reward is not None]
    out = {
        "reward/mean": statistics.fmean(graded) if graded else 0.0,
        "reward/std": _std(graded) if graded else 0.0,
        "reward/num_graded": float(len(graded)),
        "reward/error_rate": 1.0 - len(graded) / len(episodes),
        "reward/zero_variance_share": statistics.fmean(len(set(g.rewards)) <= 1 for g in groups),
        "response/length_mean": statistics.fmean(e.completion.num_sampled for e in episodes),
        "response/truncated_share": statistics.fmean(e.completion.finish_reason == "length" for e in episodes),
    }
    for name in sorted({part for e in episodes for part in e.parts}):
        values = [e.parts[name] for e in episodes if name in e.parts]
        out[f"reward/{name}/mean"] = statistics.fmean(values)
        out[f"reward/{name}/std"] = _std(values)
        if "/" not in name:  # a reward itself; its parts fail with it
            out[f"reward/{name}/error_rate"] = 1.0 - len(values) / len(episodes)
            out[f"reward/{name}/zero_variance_share"] = statistics.fmean(
                len({e.parts[name] for e in g.episodes if name in e.parts}) <= 1 for g in groups
            )
    return out


def _std(values: Sequence[float]) -> float:
    """Of the values themselves; `statistics.pstdev` computes with fractions, ten times slower."""
    mean = statistics.fmean(values)
    return math.sqrt(statistics.fmean([(value - mean) ** 2 for value in values]))
