"""The run that generates and trains: start the roles, train, show what the model says before and after.

summary = await Runner(config=..., plan=..., ...).main()          # made by `forge_host.loop.run.run`
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

import attrs

from forge_host.api import ADVANTAGE_ARGUMENTS
from forge_host.loop.controller import Controller
from forge_host.loop.conversing import Talker
from forge_host.loop.lifecycle import Lifecycle, data_parallel_degree, held_out
from forge_host.loop.prompts import PromptEncoder, prompt_budget
from forge_host.loop.replay import Replay
from forge_host.loop.roles import services_of, start_roles
from forge_host.loop.rollout import Roller
from forge_host.loop.scoring import prompt_text
from forge_host.loop.step import Stepper
from forge_host.loop.stream import open_stream
from forge_host.plugins.building import load_target
from forge_host.plugins.calling import CallByName
from forge_host.report.findings import end_steps
from forge_host.runtime.session import Session
from forge_host.types import Group, StepReport

NUM_PROBES = 3


@attrs.define(eq=False, kw_only=True)
class Runner(Lifecycle):
    """One run with a trainer, generators and rewards. `main` is awaited once."""

    probes: list[Any] = attrs.Factory(list)
    held_out: list[Any] = attrs.Factory(list)
    samples: dict[str, list[Group]] = attrs.Factory(dict)
    parts: dict[str, Any] = attrs.Factory(dict)  # what the controller is made of
    replay: Replay | None = None

    async def _start(self, session: Session) -> None:
        """Everything slow at once: roles load their models while the tokenizer and the data are read here."""
        plan, config, training = self.plan, self.config, self.config.training
        starting = asyncio.create_task(start_roles(session, self.host, self._context(), self.places))
        try:
            encode = await asyncio.to_thread(
                PromptEncoder, self.model_path, system=config.dataset.system, chat=config.dataset.chat
            )
            stream = self.stream
            if stream is None:
                stream = await asyncio.to_thread(open_stream, self.host, plan.dataset.use, training.seed)
            advantage = CallByName(
                self.host.build("advantage", plan.advantage.use),
                ADVANTAGE_ARGUMENTS,
                f"advantage `{plan.advantage.ref}`",
            )
            sampler = self.host.build("sampler", plan.sampler.use)
            budget = prompt_budget(config, plan)
            fitting = (prompt for prompt in islice(stream.dataset, 100) if len(encode(prompt)) <= budget)
            self.probes = list(islice(fitting, NUM_PROBES))
            if config.evaluation.interval:
                self.held_out, _ = await asyncio.to_thread(
                    held_out, self.host, plan.evaluation.use, config.evaluation.num_prompts,
                    lambda prompt: len(encode(prompt)), budget,
                )  # fmt: skip
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            raise
        stream.keep = lambda prompt: len(encode(prompt)) <= budget
        roles = await starting
        self.trainer = roles.trainer
        roller = Roller(
            encode=encode,
            generator=roles.generator,
            reward=roles.reward,
            sampler=sampler,
            sampling=plan.sampling,
            reward_timeout_s=config.reward.timeout_s,
            talker=Talker(config.training.seq_len) if plan.environment is not None else None,
        )
        stepper = Stepper(
            trainer=roles.trainer,
            ref_model=roles.ref_model,
            advantage=advantage,
            plan=plan,
            training=training,
            data_parallel=data_parallel_degree(config),
            max_policy_age=training.max_policy_age,
        )
        self.parts = {
            "config": config, "plan": plan, "host": self.host, "roles": roles, "roller": roller, "stepper": stepper,
            "stream": stream, "directory": self.directory, "trackers": self.trackers, "info": self.info,
            "stop": self.stop, "lock_text": self.lock.dumps(), "held_out": self.held_out,
            "replay": self.replay, **self._repeatable(),
        }  # fmt: skip
        self.controller = Controller(**self.parts)

    def _repeatable(self) -> dict[str, Any]:
        """Whether responses are drawn with seeds of their own, and whether a round of them is one batch."""
        training = self.config.training
        deterministic = training.deterministic
        if deterministic is None:
            deterministic = self.places["generator"].device == "cpu"
        cls = load_target(self.host.find("generator", self.plan.generator.use.ref))
        rounds = deterministic and training.max_policy_age == 0 and self.plan.environment is None
        return {
            "deterministic": deterministic,
            "round_parts": services_of(self.config, "generator").num_replicas
            if rounds and hasattr(cls, "generate_many")
            else 0,
            "trainer_class": load_target(self.host.find("trainer", self.plan.trainer.use.ref)),
        }

    async def _train(self) -> None:
        controller = self.controller
        assert controller is not None
        await self._begin()
        self.samples["before"] = await controller.probe(self.probes)
        began = time.time()
        self.stepping = True
        await controller.run()
        self.stepping = False
        self.train_s = time.time() - began
        self.samples["after"] = await controller.probe(self.probes)

    def _results(self) -> dict[str, Any]:
        history = self.controller.history if self.controller else []
        rewards = [r.metrics["reward/mean"] for r in history]
        edge = end_steps(len(rewards))
        before, after = self.samples.get("before", []), self.samples.get("after", [])
        return {
            "kind": "rl",
            "steps": len(history),
            "episodes": self.controller.ledger.totals() if self.controller and self.controller.ledger else {},
            "evaluation_first": self.controller.first_evaluation if self.controller else {},
            "evaluation_last": _newest_evaluation(history),
            "policy_version": history[-1].policy_version if history else 0,
            "rewards": rewards,
            "reward_first": sum(rewards[:edge]) / edge if edge else None,
            "reward_last": sum(rewards[-edge:]) / edge if edge else None,
            "weight_syncs_verified": history[-1].metrics["sync/verified"] if history else 0.0,
            "samples": [_sample(*pair) for pair in zip(before, after, strict=True)] if after else [],
        }


def _newest_evaluation(history: Sequence[StepReport]) -> dict[str, float]:
    for report in reversed(history):
        if "eval/mean" in report.metrics or "eval/greedy/mean" in report.metrics:
            return {name: value for name, value in report.metrics.items() if name.startswith("eval/")}
    return {}


def _sample(before: Group, after: Group) -> dict[str, Any]:
    prompt = before.prompt
    first, last = before.episodes[0], after.episodes[0]
    return {
        "prompt": prompt_text(prompt),
        "target": prompt.target,
        "before": first.completion.text,
        "before_reward": first.reward,
        "after": last.completion.text,
        "after_reward": last.reward,
    }
