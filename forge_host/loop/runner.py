"""The phases of a run: start the roles, train, and leave everything in order however it ends.

A run that fails or is interrupted saves a checkpoint and its weights if its trainer still lives, then raises.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from itertools import islice
from typing import Any

import attrs
import structlog

from forge_host.api import ADVANTAGE_ARGUMENTS
from forge_host.errors import ForgeError, RunError, UsageError
from forge_host.loop.checkpoint import Checkpoint
from forge_host.loop.controller import Controller
from forge_host.loop.prompts import PromptEncoder
from forge_host.loop.roles import start_roles
from forge_host.loop.rollout import Roller
from forge_host.loop.rundir import RunDirectory
from forge_host.loop.step import Stepper
from forge_host.loop.stream import PromptStream
from forge_host.loop.tracking import Trackers
from forge_host.plugins.calling import CallByName
from forge_host.runtime.context import RoleContext
from forge_host.runtime.session import Session
from forge_host.types import Group, RunInfo, Use

log = structlog.get_logger()
NUM_PROBES = 3


class Interrupted(RunError):
    """The user or the system asked the run to end; it ended cleanly."""

    exit_code = 130


@attrs.define(eq=False, kw_only=True)
class Runner:
    """One run. `main` is awaited once."""

    config: Any
    plan: Any
    host: Any
    directory: RunDirectory
    info: RunInfo
    trackers: Trackers
    places: Mapping[str, Any]
    model_path: str
    lock: Any
    resume: Checkpoint | None = None
    stop: asyncio.Event = attrs.Factory(asyncio.Event)
    controller: Controller | None = None
    session: Session | None = None
    probes: list[Any] = attrs.Factory(list)
    held_out: list[Any] = attrs.Factory(list)
    samples: dict[str, list[Group]] = attrs.Factory(dict)
    began: float = attrs.Factory(time.time)
    startup_s: float | None = None
    train_s: float | None = None

    async def main(self) -> dict[str, Any]:
        """Run to the end; returns the summary or raises what ended the run."""
        self._catch_signals()
        error: Exception | None = None
        log_dir = str(self.directory.path / "logs")
        async with Session(log_dir=log_dir, monarch=self.config.monarch, files=self.lock.local_files) as session:
            self.session = session
            try:
                await self._start(session)
                await self._train()
                if self.stop.is_set():
                    error = Interrupted("interrupted after this step", where=self.directory.id)
            except asyncio.CancelledError:
                error = Interrupted("interrupted while starting", where=self.directory.id)
            except Exception as caught:  # whatever it is, the record and the weights are saved, then it is raised
                error = _first(caught)
            summary = self._summary(error)
            await self._leave(error, summary)
        self.directory.write_json("summary.json", summary)
        if error is not None:
            raise error
        return summary

    async def _start(self, session: Session) -> None:
        """Everything slow at once: roles load their models while the tokenizer and the data are read here."""
        plan, config, training = self.plan, self.config, self.config.training
        context = RoleContext(
            role="",
            model_path=self.model_path,
            config=config,
            plan=plan,
            transport=self._transport(),
            namespace=f"forge-{self.directory.id}-{os.getpid()}",
            run_dir=str(self.directory.path),
            lock=self.lock,
        )
        starting = asyncio.create_task(start_roles(session, self.host, context, self.places))
        try:
            encode = await asyncio.to_thread(
                PromptEncoder, self.model_path, system=config.dataset.system, chat=config.dataset.chat
            )
            dataset = await asyncio.to_thread(self.host.build, "dataset", plan.dataset.use)
            advantage = CallByName(
                self.host.build("advantage", plan.advantage.use),
                ADVANTAGE_ARGUMENTS,
                f"advantage `{plan.advantage.ref}`",
            )
            sampler = self.host.build("sampler", plan.sampler.use)
            self.probes = list(islice(iter(dataset), NUM_PROBES))
            if config.evaluation.interval:
                self.held_out = await asyncio.to_thread(
                    held_out, self.host, plan.evaluation.use, config.evaluation.num_prompts
                )
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            raise
        budget = training.seq_len - plan.sampling.max_tokens
        if config.dataset.max_prompt_tokens is not None:
            budget = min(budget, config.dataset.max_prompt_tokens)
        stream = PromptStream(dataset, seed=training.seed, keep=lambda prompt: len(encode(prompt)) <= budget)
        roles = await starting
        roller = Roller(
            encode=encode,
            generator=roles.generator,
            reward=roles.reward,
            sampler=sampler,
            sampling=plan.sampling,
            reward_timeout_s=config.reward.timeout_s,
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
        self.controller = Controller(
            config=config,
            plan=plan,
            host=self.host,
            roles=roles,
            roller=roller,
            stepper=stepper,
            stream=stream,
            directory=self.directory,
            trackers=self.trackers,
            info=self.info,
            stop=self.stop,
            lock_text=self.lock.dumps(),
            held_out=self.held_out,
        )

    def _transport(self) -> Use:
        """The transport that the placement allows; `auto` becomes one."""
        from forge_host.builtin.transports.auto import choose_transport

        use, reason = choose_transport(self.plan, self.places)
        log.info("transport chosen", transport=use.ref, reason=reason)
        return use

    async def _train(self) -> None:
        controller = self.controller
        assert controller is not None
        self.startup_s = time.time() - self.began
        self.trackers.start(self.info)
        self.host.hooks.forge_run_started(run=self.info)
        if self.resume is not None:
            await controller.restore(self.resume)
        self.samples["before"] = await controller.probe(self.probes)
        began = time.time()
        await controller.run()
        self.train_s = time.time() - began
        self.samples["after"] = await controller.probe(self.probes)

    async def _leave(self, error: Exception | None, summary: dict[str, Any]) -> None:
        """Save what a finished or failed run leaves, tell the observers, close the files."""
        controller = self.controller
        if controller is not None and controller.roles.trainer.dead is None and controller.step:
            try:
                if error is not None or self.config.checkpoint.final:
                    summary["checkpoint"] = await controller.save()
                if self.config.checkpoint.export:
                    await controller.roles.trainer.save_hf.call(str(self.directory.path / "model"))
                    summary["model"] = str(self.directory.path / "model")
            except ForgeError as failure:
                summary["save_error"] = str(failure)
                log.error("the weights could not be saved", error=str(failure))
        if error is None:
            self.host.hooks.forge_run_finished(run=self.info, summary=summary)
        else:
            self.host.hooks.forge_run_failed(run=self.info, error=error)
        self.trackers.finish(summary)
        self.directory.close()

    def _summary(self, error: Exception | None) -> dict[str, Any]:
        history = self.controller.history if self.controller else []
        rewards = [r.metrics["reward/mean"] for r in history]
        edge = min(5, len(rewards))
        before, after = self.samples.get("before", []), self.samples.get("after", [])
        return {
            "run": self.directory.id,
            "directory": str(self.directory.path),
            "status": "done" if error is None else "interrupted" if isinstance(error, Interrupted) else "failed",
            "error": str(error) if error else None,
            "steps": len(history),
            "evaluation_first": self.controller.first_evaluation if self.controller else {},
            "policy_version": history[-1].policy_version if history else 0,
            "rewards": rewards,
            "reward_first": sum(rewards[:edge]) / edge if edge else None,
            "reward_last": sum(rewards[-edge:]) / edge if edge else None,
            "startup_s": self.startup_s,
            "train_s": self.train_s,
            "weight_syncs_verified": history[-1].metrics["sync/verified"] if history else 0.0,
            "samples": [_sample(*pair) for pair in zip(before, after, strict=True)] if after else [],
        }

    def _catch_signals(self) -> None:
        """The first SIGINT or SIGTERM ends after the step in progress, the second at once."""
        loop = asyncio.get_running_loop()
        main = asyncio.current_task()

        def on_signal() -> None:
            if self.stop.is_set():
                if self.session is not None:
                    self.session.kill()
                os._exit(130)
            self.stop.set()
            if self.controller is None and main is not None:
                main.cancel()
            print("stopping after this step; again to stop at once", file=sys.stderr, flush=True)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)


def held_out(host: Any, use: Use, num_prompts: int) -> list[Any]:
    """The evaluation's prompts: the first of its dataset.

    Raises:
        UsageError: there is none.
    """
    prompts = list(islice(iter(host.build("dataset", use)), num_prompts))
    if not prompts:
        raise UsageError("the evaluation's dataset has no prompts", where="evaluation.dataset")
    return prompts


def data_parallel_degree(config: Any) -> int:
    """Trainer ranks that get different data: procs divided by what splits the model."""
    p = config.parallelism
    split = p.tensor_parallel_degree * p.pipeline_parallel_degree * p.context_parallel_degree
    return int(config.services["trainer"].procs // split)


def _sample(before: Group, after: Group) -> dict[str, Any]:
    prompt = before.prompt
    first, last = before.episodes[0], after.episodes[0]
    return {
        "prompt": prompt.text if prompt.messages is None else prompt.messages[-1]["content"],
        "target": prompt.target,
        "before": first.completion.text,
        "before_reward": first.reward,
        "after": last.completion.text,
        "after_reward": last.reward,
    }


def _first(error: Exception) -> Exception:
    """The user's error inside a group of concurrent failures; anything else is a bug and stays as it is."""
    while isinstance(error, ExceptionGroup):
        found = [e for e in error.exceptions if isinstance(e, ForgeError)]
        error = found[0] if found else error.exceptions[0]
    return error
