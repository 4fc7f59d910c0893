"""A plugin as a class, as a module's functions, and components of several kinds; `mypy --strict` has nothing to say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
import torch

from forge_host.api import (
    Advantage,
    ComponentSpec,
    Dataset,
    Finding,
    ForgePlugin,
    Group,
    HostInfo,
    Loss,
    Prompt,
    Reward,
    RunInfo,
    Sampler,
    StepReport,
    Verdict,
    field,
    hookimpl,
)

FORGE_API = "1.0"


class Brevity(ForgePlugin):
    FORGE_API = "1.0"

    @hookimpl
    def forge_rewards(self, host: HostInfo) -> Iterable[ComponentSpec]:
        return [ComponentSpec("brevity", "good_plugin:Score", "shorter responses score higher")]

    @hookimpl
    def forge_check_plan(self, plan: Any, host: HostInfo) -> Iterable[Finding] | None:
        return [Finding("note", f"{host.version} {plan}")]

    @hookimpl
    def forge_step_finished(self, run: RunInfo, report: StepReport) -> None:
        print(run.id, report.metrics["reward/mean"])

    @hookimpl
    def forge_run_finished(self, run: RunInfo, summary: Mapping[str, Any]) -> None:
        print(summary)


@hookimpl
def forge_losses(host: HostInfo) -> Iterable[ComponentSpec]:
    yield ComponentSpec("plain", "good_plugin:PlainLoss", "policy gradient")


@attrs.frozen(kw_only=True)
class Score:
    budget: int = field(default=100, help="length that scores 0", unit="characters")

    def __call__(self, response: str) -> float:
        return 1.0 - len(response) / self.budget


class PlainLoss:
    def __call__(self, logprobs: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        return -logprobs * advantages


@attrs.frozen(kw_only=True)
class KeepAll:
    def verdict(self, group: Group) -> Verdict:
        return Verdict(True)


@attrs.frozen(kw_only=True)
class OnePrompt:
    def __iter__(self) -> Iterator[Prompt]:
        yield Prompt(id="1", text="hi")

    def fingerprint(self) -> str:
        return "1"


def anything(**values: Any) -> float:
    return 0.0


def center(**tensors: torch.Tensor) -> torch.Tensor:
    return tensors["rewards"] - tensors["rewards"].mean()


sampler: Sampler = KeepAll()
dataset: Dataset = OnePrompt()
reward: Reward = anything
advantage: Advantage = center
loss: Loss = center
