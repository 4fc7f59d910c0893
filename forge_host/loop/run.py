"""A whole run: directory, roles, loop, and what is left behind whether it ends well, fails or is interrupted.

summary = run(resolve("quickstart", host=host), host)
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import attrs
import structlog

from forge_host.api import ADVANTAGE_ARGUMENTS
from forge_host.config.model import resolve_model
from forge_host.errors import ForgeError, RunError
from forge_host.loop.controller import Controller
from forge_host.loop.prompts import PromptEncoder
from forge_host.loop.roles import placement, start_roles
from forge_host.loop.rollout import Roller
from forge_host.loop.rundir import RunDirectory
from forge_host.loop.step import Stepper
from forge_host.loop.stream import PromptStream
from forge_host.loop.tracking import Trackers
from forge_host.plugins.calling import CallByName
from forge_host.report.logs import configure
from forge_host.runtime.context import RoleContext
from forge_host.runtime.session import Session
from forge_host.types import Group, RunInfo, Use

log = structlog.get_logger()
NUM_PROBES = 3


class Interrupted(RunError):
    """The user or the system asked the run to end; it ended cleanly."""

    exit_code = 130


def run(
    resolved: Any, host: Any, *, run_dir: str | None = None, quiet: bool = False, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Run to the end; returns the summary that `summary.json` holds.

    Args:
        resolved: `forge_host.config.resolve`'s answer.
        host: the loaded `PluginHost`.
        run_dir: make exactly this run directory instead of a fresh one under `config.run_dir`.
        quiet: no progress on the terminal.
        say: where sentences for the user go.

    Raises:
        ForgeError: what ended the run, after its record and (if the trainer lived) its weights were saved.
    """
    config, plan = resolved.config, resolved.plan
    places = placement(config, plan)
    model_path = resolve_model(config.model, host)()
    directory = RunDirectory(config.run_dir, config.name, run_dir)
    configure(str(directory.path / "logs"), run=directory.id)
    directory.write_text("config.resolved.yaml", resolved.to_yaml())
    lock = host.lock()
    lock.write(directory.path / "plugins.lock")
    info = RunInfo(id=directory.id, directory=str(directory.path), config=attrs.asdict(config))
    trackers = Trackers({
        part.ref: host.build("tracker", part.use)
        for part in plan.trackers
        if not (quiet and part.ref == "builtin/console")
    })  # fmt: skip
    runner = _Runner(resolved, host, directory, info, trackers, places, model_path, lock)
    say(f"run directory: {directory.path}")
    return asyncio.run(runner.main())


class _Runner:
    """The state of one run that its phases share."""

    def __init__(self, resolved: Any, host: Any, directory: RunDirectory, info: RunInfo, trackers: Trackers,
                 places: Mapping[str, Any], model_path: str, lock: Any) -> None:  # fmt: skip
        self.resolved, self.host, self.directory, self.info = resolved, host, directory, info
        self.trackers, self.places, self.model_path, self.lock = trackers, places, model_path, lock
        self.config, self.plan = resolved.config, resolved.plan
        self.stop = asyncio.Event()
        self.controller: Controller | None = None
        self.samples: dict[str, list[Group]] = {}
        self.began = time.time()

    async def main(self) -> dict[str, Any]:
        self._catch_signals()
        monarch = self.config.monarch
        status, error = "done", None
        async with Session(log_dir=str(self.directory.path / "logs"), monarch=monarch) as session:
            self.session = session
            try:
                await self._start(session)
                await self._train()
                if self.stop.is_set():
                    status, error = "interrupted", Interrupted("interrupted", where=self.directory.id)
            except asyncio.CancelledError:
                status, error = "interrupted", Interrupted("interrupted while starting", where=self.directory.id)
            except (ForgeError, BaseExceptionGroup) as caught:
                status, error = "failed", _first(caught)
            summary = self._summary(status, error)
            await self._leave(status, error, summary)
        self.directory.write_json("summary.json", summary)
        if error is not None:
            raise error
        return summary

    async def _start(self, session: Session) -> None:
        """Everything slow at once: roles load their models while the tokenizer and the data are read here."""
        plan, config = self.plan, self.config
        context = RoleContext(
            role="", model_path=self.model_path, config=config, plan=plan, transport=self._transport(),
            namespace=f"forge-{self.directory.id}-{os.getpid()}", run_dir=str(self.directory.path), lock=self.lock,
        )  # fmt: skip
        starting = asyncio.create_task(start_roles(session, self.host, context, self.places))
        self.starting = starting
        try:
            encode = await asyncio.to_thread(
                PromptEncoder, self.model_path, system=config.dataset.system, chat=config.dataset.chat
            )
            dataset = await asyncio.to_thread(self.host.build, "dataset", plan.dataset.use)
            budget = min(
                config.dataset.max_prompt_tokens or config.training.seq_len,
                config.training.seq_len - plan.sampling.max_tokens,
            )
            stream = PromptStream(dataset, seed=config.training.seed, keep=lambda p: len(encode(p)) <= budget)
            advantage = CallByName(
                self.host.build("advantage", plan.advantage.use),
                ADVANTAGE_ARGUMENTS,
                f"advantage `{plan.advantage.ref}`",
            )
            sampler = self.host.build("sampler", plan.sampler.use)
            self.probes = list(islice(iter(dataset), NUM_PROBES))
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            raise
        roles = await starting
        training = config.training
        roller = Roller(
            encode=encode, generator=roles.generator, reward=roles.reward, sampler=sampler, sampling=plan.sampling,
            reward_timeout_s=config.reward.timeout_s,
        )  # fmt: skip
        stepper = Stepper(
            trainer=roles.trainer, ref_model=roles.ref_model, advantage=advantage, plan=plan, training=training,
            data_parallel=data_parallel_degree(config), max_policy_age=training.max_policy_age,
        )  # fmt: skip
        self.controller = Controller(
            config=config, plan=plan, host=self.host, roles=roles, roller=roller, stepper=stepper, stream=stream,
            directory=self.directory, trackers=self.trackers, info=self.info, stop=self.stop,
        )  # fmt: skip

    def _transport(self) -> Use:
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
        self.samples["before"] = await controller.probe(self.probes)
        self.train_began = time.time()
        await controller.run()
        self.train_s = time.time() - self.train_began
        self.samples["after"] = await controller.probe(self.probes)

    async def _leave(self, status: str, error: ForgeError | None, summary: dict[str, Any]) -> None:
        """Save what a failed or finished run leaves, tell the observers, close the files."""
        controller = self.controller
        if (
            controller is not None
            and controller.roles.trainer.dead is None
            and self.config.checkpoint.export
            and controller.step
        ):
            path = str(self.directory.path / "model")
            try:
                await controller.roles.trainer.save_hf.call(path)
                summary["model"] = path
            except ForgeError as failure:
                summary["model_error"] = str(failure)
                log.error("the weights could not be saved", error=str(failure))
        if error is None:
            self.host.hooks.forge_run_finished(run=self.info, summary=summary)
        else:
            self.host.hooks.forge_run_failed(run=self.info, error=error)
        self.trackers.finish(summary)
        self.directory.close()

    def _summary(self, status: str, error: ForgeError | None) -> dict[str, Any]:
        history = self.controller.history if self.controller else []
        rewards = [r.metrics["reward/mean"] for r in history]
        edge = min(5, len(rewards))
        return {
            "run": self.directory.id,
            "directory": str(self.directory.path),
            "status": status,
            "error": str(error) if error else None,
            "steps": len(history),
            "policy_version": history[-1].policy_version if history else 0,
            "rewards": rewards,
            "reward_first": sum(rewards[:edge]) / edge if edge else None,
            "reward_last": sum(rewards[-edge:]) / edge if edge else None,
            "startup_s": getattr(self, "startup_s", None),
            "train_s": getattr(self, "train_s", None),
            "weight_syncs_verified": history[-1].metrics["sync/verified"] if history else 0.0,
            "samples": [
                {
                    "prompt": before.prompt.text or before.prompt.messages[-1]["content"],
                    "target": before.prompt.target,
                    "before": before.episodes[0].completion.text,
                    "before_reward": before.episodes[0].reward,
                    "after": after.episodes[0].completion.text,
                    "after_reward": after.episodes[0].reward,
                }
                for before, after in zip(self.samples.get("before", ()), self.samples.get("after", ()), strict=False)
            ],
        }

    def _catch_signals(self) -> None:
        """The first SIGINT or SIGTERM ends after the step in progress, the second at once."""
        loop = asyncio.get_running_loop()
        main = asyncio.current_task()

        def on_signal(number: int) -> None:
            if self.stop.is_set():
                self._kill()
            self.stop.set()
            if self.controller is None and main is not None:
                main.cancel()
            print("stopping after this step; again to stop at once", file=sys.stderr, flush=True)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal, number)

    def _kill(self) -> None:
        session = getattr(self, "session", None)
        if session is not None:
            session.kill()
        os._exit(130)


def data_parallel_degree(config: Any) -> int:
    """Trainer ranks that get different data: procs divided by what splits the model."""
    p = config.parallelism
    return int(
        config.services["trainer"].procs
        // (p.tensor_parallel_degree * p.pipeline_parallel_degree * p.context_parallel_degree)
    )


def _first(error: BaseException) -> ForgeError:
    """The user's error inside a group of concurrent failures; anything else is a bug and stays one."""
    while isinstance(error, BaseExceptionGroup):
        found = [e for e in error.exceptions if isinstance(e, ForgeError)]
        error = found[0] if found else error.exceptions[0]
    if isinstance(error, ForgeError):
        return error
    raise error


__all__ = ["Interrupted", "data_parallel_degree", "run"]
