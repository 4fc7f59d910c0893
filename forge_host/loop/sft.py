"""Supervised fine-tuning: a dataset's own responses, with the trainer, packing, checkpoints and trackers of RL.

    summary = await SftRunner(config=..., plan=..., ...).main()       # made by `forge_host.loop.run.run`

No generator and no rewards run. The next batch is tokenised while the trainer works on this one.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

import attrs

from forge_host.api import ADVANTAGE_ARGUMENTS
from forge_host.errors import UsageError
from forge_host.loop import batch, checkpoint
from forge_host.loop.examples import ExampleEncoder
from forge_host.loop.lifecycle import Lifecycle, data_parallel_degree, held_out
from forge_host.loop.roles import RoleStarter
from forge_host.loop.step import Stepper
from forge_host.loop.stream import PromptStream, open_stream
from forge_host.plugins.building import load_target
from forge_host.plugins.calling import CallByName
from forge_host.report.findings import end_steps
from forge_host.report.system import SystemSampler
from forge_host.runtime.handle import ActorHandle
from forge_host.runtime.logs import note_step
from forge_host.runtime.service import Service
from forge_host.runtime.session import Session
from forge_host.types import StepReport


@attrs.define(eq=False, kw_only=True)
class SftController:
    """The steps of one SFT run over a trainer that is already up.

    Args:
        run_of: the run it belongs to, for its configuration, directory and observers.
        stream: an endless, resumable iterator of examples.
        held_out: rows of the evaluation.
    """

    run_of: SftRunner
    trainer: ActorHandle
    stepper: Stepper
    stream: PromptStream
    encode: ExampleEncoder
    held_out: Sequence[batch.Row]
    step: int = 0
    history: list[StepReport] = attrs.Factory(list)
    first_evaluation: dict[str, float] = attrs.Factory(dict)
    writer: checkpoint.Writer = attrs.field(init=False)
    _state: dict[str, Any] = attrs.Factory(dict)  #: of the stream, behind the last batch that was trained on
    _saved_at: int = 0
    _system: SystemSampler = attrs.Factory(lambda: SystemSampler(share=0.0005))

    def __attrs_post_init__(self) -> None:
        run, settings = self.run_of, self.run_of.config.checkpoint
        trainer_class = load_target(run.host.find("trainer", run.plan.trainer.use.ref))
        self.writer = checkpoint.Writer(
            run_dir=run.directory.path, lock_text=run.lock.dumps(), keep=settings.keep, trainer=self.trainer,
            background=settings.background and hasattr(trainer_class, "snapshot"), saved=self._saved,
        )  # fmt: skip

    def _saved(self, step: int, path: str) -> None:
        self.run_of.host.hooks.forge_checkpoint_saved(run=self.run_of.info, step=step, path=path)

    async def run(self) -> None:
        """Train until `max_steps` or `stop`.

        Raises:
            ForgeError: whatever ended the run; the trainer keeps its last whole step.
        """
        run, training = self.run_of, self.run_of.config.training
        self._state = self._state or self.stream.state_dict()
        if run.config.evaluation.interval and self.step == 0:
            self.first_evaluation = await self.evaluate()
        upcoming = asyncio.create_task(asyncio.to_thread(self._take))
        try:
            while self.step < training.max_steps and not run.stop.is_set():
                note_step(str(run.directory.path / "logs"), self.step + 1)
                began = time.perf_counter()
                rows, state = await upcoming
                data_s = time.perf_counter() - began
                if self.step + 1 < training.max_steps:
                    upcoming = asyncio.create_task(asyncio.to_thread(self._take))
                metrics = await self.stepper.train(rows)
                self.step, self._state = self.step + 1, state
                step_s = time.perf_counter() - began
                await self._report(metrics, rows, step_s, data_s)
                self.writer.check()
            await self.writer.wait()
        finally:
            await asyncio.gather(upcoming, return_exceptions=True)

    def _take(self) -> tuple[list[batch.Row], dict[str, Any]]:
        """The rows of the next batch, and the stream's position behind it."""
        size = self.run_of.config.training.batch_size
        rows = [row for _ in range(size) for row in self.encode(next(self.stream))]
        for index, row in enumerate(rows):
            row.group_id = index
        return rows, self.stream.state_dict()

    async def _report(self, metrics: dict[str, float], rows: list[batch.Row], step_s: float, data_s: float) -> None:
        run = self.run_of
        tokens = sum(row.num_tokens for row in rows)
        metrics |= {
            "time/step_s": step_s,
            "time/data_s": data_s,
            "time/host_s": step_s - data_s - metrics["time/train_s"] - metrics.get("time/ref_s", 0.0),
            "tokens/packed": float(tokens),
            "tokens/per_s": tokens / step_s,
            "data/epoch": float(self._state["epoch"]),
            "data/dropped": float(self._state["dropped"]),
            "data/truncated": float(self.encode.truncated),
        }
        interval, last = run.config.evaluation.interval, self.step == run.config.training.max_steps
        if interval and (self.step % interval == 0 or last):
            metrics |= await self.evaluate()
        if run.config.checkpoint.interval and self.step - self._saved_at >= run.config.checkpoint.interval:
            self._saved_at = self.step
            await self.writer.begin(self._checkpoint())
        metrics |= self._system()
        report = StepReport(step=self.step, policy_version=self.step, time=time.time(), metrics=metrics)
        self.history.append(report)
        run.trackers.log(report)
        run.host.hooks.forge_step_finished(run=run.info, report=report)

    async def evaluate(self) -> dict[str, float]:
        """Loss on the held-out examples, nats a token over all their trained tokens; metrics `eval/...`."""
        began = time.perf_counter()
        training = self.run_of.config.training
        bins = batch.num_bins(
            self.held_out, data_parallel=self.stepper.data_parallel, accumulation=1,
            micro_batch_tokens=training.micro_batch_tokens,
        )  # fmt: skip
        inputs, targets = batch.make_batches(self.held_out, bins)
        answers = await self.trainer.logprobs.call_one(inputs, targets)
        total, count = 0.0, 0
        for values, target in zip(answers, targets, strict=True):
            mask = target["padding_mask"]
            total -= float(values.double()[mask].sum())
            count += int(mask.sum())
        loss = total / count
        return {
            "eval/loss": loss,
            "eval/perplexity": math.exp(min(loss, 700.0)),
            "eval/num_tokens": float(count),
            "time/evaluation_s": time.perf_counter() - began,
        }

    async def save(self) -> str | None:
        """Write a checkpoint of the last whole step; its path, or None when that step has one already."""
        if self.step == self._saved_at:
            await self.writer.wait()
            return None
        self._saved_at = self.step
        return await self.writer.write(self._checkpoint())

    def _checkpoint(self) -> dict[str, Any]:
        return {"step": self.step, "stream": self._state, "first_evaluation": self.first_evaluation}

    async def restore(self, saved: checkpoint.Checkpoint) -> None:
        """Go on from a checkpoint, where `stream` is already."""
        await self.trainer.load.call(saved.trainer)
        self._state = dict(saved.state["stream"])
        self.step = self._saved_at = saved.state["step"]
        self.first_evaluation = saved.state.get("first_evaluation", {})


@attrs.define(eq=False, kw_only=True)
class SftRunner(Lifecycle):
    """One SFT run. `main` is awaited once."""

    async def _start(self, session: Session) -> None:
        """The trainer loads its model while the tokenizer and the data are read here."""
        plan, config = self.plan, self.config
        start = RoleStarter(session, self.host, self._context(), self.places)
        starting = asyncio.create_task(_both(start))
        try:
            encode = await asyncio.to_thread(example_encoder, self.model_path, config)
            stream = self.stream
            if stream is None:
                stream = await asyncio.to_thread(open_stream, self.host, plan.dataset.use, config.training.seed)
            advantage = CallByName(
                self.host.build("advantage", plan.advantage.use), ADVANTAGE_ARGUMENTS,
                f"advantage `{plan.advantage.ref}`",
            )  # fmt: skip
            rows = await asyncio.to_thread(self._held_out, encode) if config.evaluation.interval else []
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            raise
        stream.keep = lambda prompt: bool(encode(prompt))
        self.trainer, ref_model = await starting
        stepper = Stepper(
            trainer=self.trainer, ref_model=ref_model, advantage=advantage, plan=plan, training=config.training,
            data_parallel=data_parallel_degree(config), max_policy_age=0,
        )  # fmt: skip
        self.controller = SftController(
            run_of=self, trainer=self.trainer, stepper=stepper, encode=encode, held_out=rows,
            stream=stream,
        )  # fmt: skip

    def _held_out(self, encode: ExampleEncoder) -> list[batch.Row]:
        prompts, _ = held_out(self.host, self.plan.evaluation.use, self.config.evaluation.num_prompts)
        rows = [row for prompt in prompts for row in encode(prompt)]
        if not rows:
            raise UsageError(
                f"none of the evaluation's {len(prompts)} examples fits into training.seq_len "
                f"{self.config.training.seq_len}", where="evaluation.dataset", fix="raise training.seq_len",
            )  # fmt: skip
        if len(rows) < (ranks := data_parallel_degree(self.config)):
            raise UsageError(
                f"the evaluation has {len(rows)} examples, fewer than the {ranks} data-parallel ranks",
                where="evaluation.num_prompts", fix="raise it",
            )  # fmt: skip
        encode.truncated = 0  # counts the training examples from here on
        return rows

    async def _train(self) -> None:
        await self._begin()
        began = time.time()
        self.stepping = True
        await self.controller.run()
        self.stepping = False
        self.train_s = time.time() - began

    def _results(self) -> dict[str, Any]:
        history = self.controller.history if self.controller else []
        losses = [r.metrics["train/loss"] for r in history]
        edge = end_steps(len(losses))
        first = self.controller.first_evaluation.get("eval/loss") if self.controller else None
        evaluated = [r.metrics["eval/loss"] for r in history if "eval/loss" in r.metrics]
        tokens, seconds = (sum(r.metrics[key] for r in history) for key in ("tokens/packed", "time/step_s"))
        return {
            "kind": "sft",
            "steps": len(history),
            "losses": losses,
            "loss_first": sum(losses[:edge]) / edge if edge else None,
            "loss_last": sum(losses[-edge:]) / edge if edge else None,
            "eval_loss_first": first,
            "eval_loss_last": evaluated[-1] if evaluated else first,
            "tokens": tokens,
            "tokens_per_s": tokens / seconds if seconds else None,
            "dropped": history[-1].metrics["data/dropped"] if history else 0.0,
        }


def example_encoder(model_path: str, config: Any) -> ExampleEncoder:
    """The encoder that a configuration asks for."""
    return ExampleEncoder(
        model_path, system=config.dataset.system, chat=config.dataset.chat, seq_len=config.training.seq_len,
        truncate=config.dataset.too_long == "truncate", max_prompt_tokens=config.dataset.max_prompt_tokens,
    )  # fmt: skip


async def _both(start: RoleStarter) -> tuple[ActorHandle, Service | None]:
    async with asyncio.TaskGroup() as group:
        trainer = group.create_task(start.trainer())
        ref_model = group.create_task(start.ref_model())
    return trainer.result(), ref_model.result()
