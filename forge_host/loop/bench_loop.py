"""Where a step's time goes: generation alone, training alone, weight sync alone, then whole steps, one run's roles.

    summary = run(resolved, host, runner=LoopBench, runner_args={"steps": 6, "warmup": 2, "modes": ("sync",),
                                                                   "say": print})
    summary["sync_over_sum"], summary["async_over_larger"]

Alone means that nothing else works meanwhile. Every figure is of the same prompts' number, responses and settings as
the configuration's own steps; a step's seconds are from the end of the one before to its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from forge_host.loop.batch import rows_of
from forge_host.loop.controller import Controller
from forge_host.loop.runner import Runner
from forge_host.types import Group, RunInfo, StepReport


@attrs.frozen
class _Steps:
    """A tracker that hears of each step of a loop as it ends."""

    heard: Callable[[int, float], None]

    def start(self, run: RunInfo) -> None:
        """The run has begun before."""

    def log(self, report: StepReport) -> None:
        self.heard(report.step, report.metrics["time/step_s"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The summary is printed."""


@attrs.define(eq=False, kw_only=True)
class LoopBench(Runner):
    """Measures instead of training; the weights do change, as every training step is a real one.

    Args:
        steps: measured repetitions of everything.
        warmup: repetitions before, not counted.
        modes: "sync" (max_policy_age 0) and "async" (the configuration's, at least 1).
        say: told each measurement as it is made, so that what is cut short was not for nothing.
    """

    steps: int
    warmup: int
    modes: tuple[str, ...]
    say: Callable[[str], None]
    figures: dict[str, float] = attrs.Factory(dict)
    version: int = 0

    async def _train(self) -> None:
        self.startup_s = time.time() - self.began
        self.trackers.start(self.info)
        began = time.time()
        batches = await self._generation()
        await self._training(batches)
        await self._sync()
        for mode in self.modes:
            await self._loop(mode)
        self.train_s = time.time() - began
        self._compare()

    async def _generation(self) -> list[list[Group]]:
        """The measured batches, graded afterwards."""
        roller, stream, count = self.parts["roller"], self.parts["stream"], self.config.training.batch_size
        seconds, tokens, batches = 0.0, 0, []
        for repeat in range(self.warmup + self.steps):
            prompts = [next(stream) for _ in range(count)]
            began = time.perf_counter()
            answers = await asyncio.gather(*(roller.generate(prompt) for prompt in prompts))
            taken = time.perf_counter() - began
            self._note("generation alone", repeat, taken)
            pairs = list(enumerate(zip(prompts, answers, strict=True)))
            scored = await asyncio.gather(*(roller.score(f"{i}", p, a) for i, (p, a) in pairs))
            if repeat >= self.warmup:
                seconds += taken
                tokens += sum(len(c.token_ids) for answer in answers for c in answer)
            batches.append(
                [Group(id=f"{i}", prompt=p, episodes=tuple(e)) for (i, (p, _)), e in zip(pairs, scored, strict=True)]
            )
        self.figures |= {"generation_s": seconds / self.steps, "generated_tokens_per_s": tokens / seconds}
        return batches[self.warmup :]

    async def _training(self, batches: list[list[Group]]) -> None:
        stepper, seconds, tokens = self.parts["stepper"], 0.0, 0
        for repeat in range(self.warmup + self.steps):
            rows = rows_of(batches[repeat % len(batches)])
            began = time.perf_counter()
            await stepper.train(rows)
            taken = time.perf_counter() - began
            self._note("training alone", repeat, taken)
            if repeat >= self.warmup:
                seconds += taken
                tokens += sum(row.num_tokens for row in rows)
        self.figures |= {"training_s": seconds / self.steps, "trained_tokens_per_s": tokens / seconds}

    async def _sync(self) -> None:
        assert self.controller is not None
        seconds = 0.0
        for repeat in range(self.warmup + self.steps):
            self.version += 1
            began = time.perf_counter()
            await self.controller.sync.publish(self.version)
            await self.controller.sync.update()
            taken = time.perf_counter() - began
            self._note("weight sync alone", repeat, taken)
            if repeat >= self.warmup:
                seconds += taken
        self.figures["weight_sync_s"] = seconds / self.steps

    async def _loop(self, mode: str) -> None:
        """Whole steps. In asynchronous mode the last one is not counted: nothing is generated beside it any more."""
        age = 0 if mode == "sync" else max(1, self.config.training.max_policy_age)
        total = self.warmup + self.steps + (1 if age else 0)
        training = attrs.evolve(self.config.training, max_policy_age=age, max_steps=total)
        stepper = attrs.evolve(self.parts["stepper"], max_policy_age=age)
        config = attrs.evolve(self.config, training=training)
        controller = Controller(**{**self.parts, "config": config, "stepper": stepper})
        done = self.version * training.batch_size * training.sync_interval
        controller.version = self.version
        controller.buffer.restore(self.version, done, done)
        controller.buffer.total = done + total * training.batch_size
        self.trackers.active["bench loop"] = _Steps(lambda step, seconds: self._note(f"{mode} step", step - 1, seconds))
        await controller.run()
        self.version = controller.version
        history: list[StepReport] = controller.history
        measured = history[self.warmup : self.warmup + self.steps]
        before = history[self.warmup - 1].time
        mean = {
            k: sum(r.metrics[f"time/{k}"] for r in measured) / len(measured)
            for k in ("generate_s", "train_s", "sync_s", "host_s")
        }
        self.figures |= {f"{mode}_step_s": (measured[-1].time - before) / len(measured)}
        self.figures |= {f"{mode}_{k}": v for k, v in mean.items()}

    def _note(self, what: str, repeat: int, seconds: float) -> None:
        self.say(f"{what}: {seconds:.3f} s{'' if repeat >= self.warmup else ' (warming up)'}")

    def _compare(self) -> None:
        f = self.figures
        f["sum_s"] = f["generation_s"] + f["training_s"]
        f["larger_s"] = max(f["generation_s"], f["training_s"])
        if "sync" in self.modes:
            f["sync_over_sum"] = f["sync_step_s"] / f["sum_s"]
            f["host_share"] = f["sync_host_s"] / f["sync_step_s"]
        if "async" in self.modes:
            f["async_over_larger"] = f["async_step_s"] / f["larger_s"]

    def _results(self) -> dict[str, Any]:
        return {"kind": "bench", **self.figures}
