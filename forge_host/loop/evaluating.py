"""Evaluation alone: generators and rewards on held-out prompts, no trainer; what `forge-host eval` runs.

    summary = await EvalRunner(config=..., plan=..., ...).main()      # made by `forge_host.loop.run.run(evaluate=True)`
    summary["metrics"]["eval/pass@4"]

Every graded response is in `rollouts/rollouts.jsonl`, with "sampled" or "greedy" in its id.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import attrs

from forge_host.errors import RunError
from forge_host.loop.conversing import Talker
from forge_host.loop.evaluation import evaluate
from forge_host.loop.lifecycle import Lifecycle, held_out
from forge_host.loop.prompts import PromptEncoder, prompt_budget
from forge_host.loop.roles import RoleStarter
from forge_host.loop.rollout import Roller
from forge_host.loop.scoring import prompt_text
from forge_host.runtime.service import Service
from forge_host.runtime.session import Session
from forge_host.types import Group, Prompt, Verdict

NUM_SAMPLES = 3


@attrs.define(eq=False, kw_only=True)
class EvalRunner(Lifecycle):
    """One evaluation of `config.model`. `main` is awaited once."""

    roller: Roller | None = None
    prompts: list[Prompt] = attrs.Factory(list)
    left_out: int = 0
    not_gradable: list[str] = attrs.Factory(list)  #: ids of prompts that no reward gave a grade for
    metrics: dict[str, float] = attrs.Factory(dict)
    groups: list[Group] = attrs.Factory(list)

    @classmethod
    def roles(cls, plan: Any) -> tuple[str, ...]:
        return ("generator", "reward")

    async def _start(self, session: Session) -> None:
        plan, config = self.plan, self.config
        start = RoleStarter(session, self.host, self._context(), self.places)
        starting = asyncio.create_task(_both(start))
        try:
            encode = await asyncio.to_thread(
                PromptEncoder, self.model_path, system=config.dataset.system, chat=config.dataset.chat
            )
            self.prompts, self.left_out = await asyncio.to_thread(
                held_out, self.host, plan.evaluation.use, config.evaluation.num_prompts,
                lambda prompt: len(encode(prompt)), prompt_budget(config, plan),
            )  # fmt: skip
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            raise
        generator, reward = await starting
        self.roller = Roller(
            encode=encode, generator=generator, reward=reward, sampler=None, sampling=plan.sampling,
            reward_timeout_s=config.reward.timeout_s,
            talker=Talker(config.training.seq_len) if plan.environment is not None else None,
        )  # fmt: skip

    async def _train(self) -> None:
        """Grade; there is nothing to train."""
        assert self.roller is not None
        self.startup_s = time.time() - self.began
        settings, began = self.config.evaluation, time.time()
        self.metrics, self.groups = await evaluate(
            self.roller, self.prompts, n_samples=settings.n_samples, temperature=settings.temperature,
            greedy=settings.greedy, solved_at=settings.solved_at,
        )  # fmt: skip
        self.train_s = time.time() - began
        for group in self.groups:
            self.directory.record(0, group, Verdict(False, "evaluation"))
        episodes = [episode for group in self.groups for episode in group.episodes]
        self.not_gradable = [g.prompt.id for g in self.groups if not g.rewards and not any(e.error for e in g.episodes)]
        if len(self.not_gradable) == len(self.groups):
            raise RunError(
                f"no reward can grade any of the {len(self.prompts)} prompts (the first is {self.not_gradable[0]})",
                fix="give the dataset a target_field; `forge-host data show CONFIG --grade` lists such prompts",
            )
        failed = [episode for episode in episodes if episode.error is not None]
        limit = self.config.reward.max_reward_errors
        if len(failed) > limit * len(episodes):
            raise RunError(
                f"{len(failed)} of {len(episodes)} responses could not be graded (reward.max_reward_errors "
                f"{limit:.0%}); the newest: {failed[-1].error} (prompt {failed[-1].prompt.id})",
                fix="fix the reward or raise reward.max_reward_errors",
            )

    def _results(self) -> dict[str, Any]:
        # The last groups are greedy when both were asked for: those show best what the model would answer.
        shown = self.groups[-len(self.prompts) :][:NUM_SAMPLES] if self.prompts else []
        return {
            "kind": "eval",
            "model": self.config.model,
            "left_out": self.left_out,
            "not_gradable": sorted({*self.not_gradable}),
            "metrics": self.metrics,
            "samples": [
                {
                    "prompt": prompt_text(g.prompt),
                    "target": g.prompt.target,
                    "response": g.episodes[0].completion.text,
                    "reward": g.episodes[0].reward,
                }
                for g in shown
            ],
        }


async def _both(start: RoleStarter) -> tuple[Service, Service]:
    async with asyncio.TaskGroup() as group:
        generator = group.create_task(start.generator())
        reward = group.create_task(start.reward())
    return generator.result(), reward.result()
