"""The loop: data -> rollout -> score -> verdict -> buffer -> train step -> publish -> generators fetch.

With `max_policy_age` 0 each step waits for rollouts of the newest weights (synchronous). Above 0 rollouts run ahead
within the bound that `forge_host.loop.buffer` keeps, and generators load new weights while the trainer goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import attrs
import structlog

from forge_host.errors import ForgeError
from forge_host.loop import checkpoint, evaluation
from forge_host.loop.alarms import ConstantRewards
from forge_host.loop.buffer import Buffer
from forge_host.loop.ledger import NAME as LEDGER
from forge_host.loop.ledger import Ledger
from forge_host.loop.producer import Producer
from forge_host.loop.replay import FOLDER, Replay, write_batch
from forge_host.loop.roles import Roles
from forge_host.loop.rollout import Roller
from forge_host.loop.rundir import RunDirectory
from forge_host.loop.step import Stepper, reward_metrics
from forge_host.loop.tracking import Trackers
from forge_host.loop.weights import WeightSync
from forge_host.report.system import SystemSampler
from forge_host.runtime.logs import note_step
from forge_host.types import Group, Prompt, RunInfo, StepReport, Verdict

log = structlog.get_logger()
STALLED_S = 60.0  #: a step that waits longer for rollouts says what it waits for, then after twice as long again


class Controller:
    """Runs the steps of one run over roles that are already up.

    Args:
        stream: an endless, resumable iterator of prompts.
        stop: set to end after the step in progress.
        lock_text: the plugin lock, copied into checkpoints.
        held_out: prompts of the evaluation.
        deterministic: every group is drawn with a seed of its own.
        round_parts: above 0, rollouts start in rounds, each divided into so many batches (`Roller.generate_round`).
        trainer_class: says whether checkpoints can be written in the background.
        replay: train on these batches and start no rollouts.
    """

    def __init__(
        self,
        *,
        config: Any,
        plan: Any,
        host: Any,
        roles: Roles,
        roller: Roller,
        stepper: Stepper,
        stream: Any,
        directory: RunDirectory,
        trackers: Trackers,
        info: RunInfo,
        stop: asyncio.Event,
        lock_text: str,
        held_out: Sequence[Prompt] = (),
        deterministic: bool = False,
        round_parts: int = 0,
        trainer_class: type | None = None,
        replay: Replay | None = None,
    ) -> None:
        self.config, self.plan, self.host, self.roles = config, plan, host, roles
        self.roller, self.stepper, self.stream = roller, stepper, stream
        self.directory, self.trackers, self.info, self.stop = directory, trackers, info, stop
        self.held_out = held_out
        self.replay = replay
        settings = config.checkpoint
        self.writer = checkpoint.Writer(
            run_dir=directory.path, lock_text=lock_text, keep=settings.keep, trainer=roles.trainer,
            background=settings.background and hasattr(trainer_class, "snapshot"), saved=self._saved,
        )  # fmt: skip
        training = config.training
        self.sync = WeightSync(
            roles.trainer, roles.generator, verify=training.verify_weight_sync, timeout_s=training.weight_sync_timeout
        )
        self.buffer = Buffer(
            groups_per_version=training.batch_size * training.sync_interval,
            max_policy_age=training.max_policy_age,
            starve_after=max(50 * training.batch_size, 200),
            total=training.max_steps * training.batch_size,
        )
        #: The generator gives its memory to the trainer while that trains (synchronous runs only).
        self.sleeps = bool(plan.generator.use.config.get("sleep_between_steps"))
        self.step = 0
        self.version = 0
        self.ledger: Ledger | None = None
        self.first_evaluation: dict[str, float] = {}
        self.history: list[StepReport] = []
        self._update: asyncio.Task[float] | None = None
        self.constant_rewards = ConstantRewards(config.reward.constant_after)
        self._rejected_before = 0
        self._system = SystemSampler(share=0.0005)
        self._saved_at = 0
        self.producer = Producer(
            config=config, plan=plan, host=host, info=info, roller=roller, stream=stream, buffer=self.buffer,
            directory=directory, deterministic=deterministic, round_parts=round_parts,
        )  # fmt: skip

    async def run(self) -> None:
        """Train until `max_steps` or `stop`.

        Raises:
            ForgeError: whatever ended the run; the trainer keeps its last whole step.
        """
        ledger = self.ledger = self.ledger or Ledger(self.directory.path / LEDGER)
        self.producer.ledger, self.producer.step = ledger, self.step
        if self.config.evaluation.interval and self.step == 0:
            self.first_evaluation = await self.evaluate()
        if self.replay is None:
            self.producer.start()
        try:
            while self.step < self.config.training.max_steps and not self.stop.is_set():
                await self._one_step()
                self.writer.check()
            await self.writer.wait()
        finally:
            await self.producer.stop()
            if self._update is not None:
                await asyncio.gather(self._update, return_exceptions=True)
            ledger.close(self.step)

    @property
    def _ledger(self) -> Ledger:
        assert self.ledger is not None, "opened by run or restore"
        return self.ledger

    async def _one_step(self) -> None:
        training = self.config.training
        note_step(str(self.directory.path / "logs"), self.step + 1)
        began = time.perf_counter()
        groups = await self._groups(training.batch_size)
        if groups is None:
            return
        waited = time.perf_counter() - began
        if self.sleeps:
            await self.roles.generator.sleep.fanout()
        metrics = await self.stepper(groups, self.version)
        self.step = self.producer.step = self.step + 1
        if self.config.record.batches:
            await asyncio.to_thread(write_batch, self.directory.path / FOLDER, self.step, groups)
        for group in groups:
            self.producer.pending.pop(group.id, None)
            self._ledger.trained(self.step, group)
        publish_s = update_s = 0.0
        if self.step % training.sync_interval == 0:
            update_s = await self._updated()  # the update before must be over: a transport keeps two versions
            self.version += 1
            if training.max_policy_age == 0:
                publish_s = await self.sync.publish(self.version)
                await self._save_if_due()
                update_s += await self._spread(self.version, publish_s)
            else:
                # Both beside the next step. After the sleep the trainer has been asked to publish, so that it does so
                # before it is asked for the next step.
                self._update = asyncio.create_task(self._publish_and_spread(self.version))
                await asyncio.sleep(0)
                await self._save_if_due()
        evaluated = await self._evaluate_if_due()
        step_s = time.perf_counter() - began - evaluated.get("time/evaluation_s", 0.0)
        spans = self.roller.spans.read()
        rejected, self._rejected_before = (
            self.buffer.rejected.total() - self._rejected_before,
            self.buffer.rejected.total(),
        )
        metrics |= reward_metrics(groups) | evaluated | self.stream.metrics()
        for sentence in self.constant_rewards(metrics):
            log.warning(sentence)
        metrics |= {
            "time/step_s": step_s,
            "time/generate_s": waited,
            "time/reward_s": spans.reward,
            "time/sync_s": publish_s + update_s,
            "time/host_s": step_s
            - waited
            - publish_s
            - update_s
            - metrics["time/train_s"]
            - metrics.get("time/ref_s", 0.0),
            "tokens/generated": float(spans.tokens),
            "tokens/per_s": spans.tokens / step_s,
            "buffer/ready": float(self.buffer.ready),
            "buffer/rejected": float(rejected),
            "sync/verified": float(self.sync.verified),
            **({} if self.sync.pause_s is None else {"time/sync_pause_s": self.sync.pause_s}),
        }
        metrics |= self._system()
        report = StepReport(step=self.step, policy_version=self.version, time=time.time(), metrics=metrics)
        self.history.append(report)
        self.trackers.log(report)
        self.host.hooks.forge_step_finished(run=self.info, report=report)

    async def _evaluate_if_due(self) -> dict[str, float]:
        interval, last = self.config.evaluation.interval, self.step == self.config.training.max_steps
        if not interval or (self.step % interval and not last):
            return {}
        await self._updated()
        return await self.evaluate()

    async def evaluate(self) -> dict[str, float]:
        """Grade the held-out prompts with the generators' newest weights; metrics `eval/...`."""
        began = time.perf_counter()
        settings = self.config.evaluation
        metrics, groups = await evaluation.evaluate(
            self.roller,
            self.held_out,
            n_samples=settings.n_samples,
            temperature=settings.temperature,
            greedy=settings.greedy,
            solved_at=settings.solved_at,
        )
        for group in groups:
            self.directory.record(self.step, group, Verdict(False, "evaluation"))
        return {**metrics, "time/evaluation_s": time.perf_counter() - began}

    async def _groups(self, count: int) -> list[Group] | None:
        """The step's groups, or None when `stop` is set first: waiting for rollouts is nothing worth finishing."""
        if self.replay is not None:
            groups = await asyncio.to_thread(self.replay.groups, self.step + 1)
            for group in groups:
                self._ledger.requested(group.id, len(group.episodes))
            return groups
        take, stop = asyncio.create_task(self.buffer.take(count)), asyncio.create_task(self.stop.wait())
        began, patience = time.perf_counter(), STALLED_S
        while True:
            done, _ = await asyncio.wait({take, stop}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if done:
                break
            waited = round(time.perf_counter() - began)
            log.warning("a step waits for rollouts", waited_s=waited, **self._under_way(count))
            patience *= 2
        stop.cancel()
        if take in done:
            return take.result()
        take.cancel()
        return None

    def _under_way(self, needed: int) -> dict[str, Any]:
        """Where the groups are that a step waits for."""
        spans = self.roller.spans
        return {
            "needed": needed, "ready": self.buffer.ready, "generating": spans.generating, "grading": spans.grading,
            "rejected": self.buffer.rejected.total() - self._rejected_before,
        }  # fmt: skip

    async def _save_if_due(self) -> None:
        """A checkpoint every `checkpoint.interval` steps, at the next publish: there the data position is exact."""
        interval = self.config.checkpoint.interval
        if interval and self.step - self._saved_at >= interval:
            state, self._saved_at = self._state(), self.step
            await self.writer.begin(state)

    async def save(self) -> str | None:
        """Write a checkpoint of the last whole step; its path, or None when that step has one already."""
        if self.step == self._saved_at:
            await self.writer.wait()
            return None
        state, self._saved_at = self._state(), self.step
        return await self.writer.write(state)

    def _saved(self, step: int, path: str) -> None:
        self.host.hooks.forge_checkpoint_saved(run=self.info, step=step, path=path)

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "version": self.version,
            "stream": self.stream.state_dict(),
            "pending": [attrs.asdict(prompt) for prompt in self.producer.pending.values()],
            "next_ticket": self._resume_ticket(),
            "ledger": self._ledger.position(),
            "first_evaluation": self.first_evaluation,
        }

    def _resume_ticket(self) -> int:
        """The number that a resumed run gives out first: prompts under way keep theirs when they are the last ones."""
        following = self.buffer.next_ticket
        pending = sorted(int(group_id.partition(":")[0]) for group_id in self.producer.pending)
        return following - len(pending) if pending == list(range(following - len(pending), following)) else following

    async def restore(self, saved: checkpoint.Checkpoint) -> None:
        """Go on from a checkpoint, where `stream` is already: trainer, rollouts under way, weights."""
        await self.roles.trainer.load.call(saved.trainer)
        state = saved.state
        self.producer.again = [Prompt(**prompt) for prompt in state["pending"]]
        self.step = self._saved_at = state["step"]
        # Between two publishes the trainer is ahead of its published version; what generators get now is a newer one.
        self.version = state["version"] + (1 if self.step % self.config.training.sync_interval else 0)
        self.first_evaluation = state.get("first_evaluation", {})
        self.buffer.restore(self.version, self.step * self.config.training.batch_size, state["next_ticket"])
        if self.version:
            await self.sync.publish(self.version)
            await self.sync.update()
        self.ledger = Ledger(self.directory.path / LEDGER, state.get("ledger", 0))

    async def _publish_and_spread(self, version: int) -> float:
        try:
            publish_s = await self.sync.publish(version)
        except ForgeError as error:
            await self.buffer.fail(error)
            raise
        return publish_s + await self._spread(version, publish_s)

    async def _spread(self, version: int, publish_s: float) -> float:
        """Load the published weights into the generators, then let rollouts of this version start."""
        try:
            if self.sleeps:
                await self.roles.generator.wake.fanout()
            seconds = await self.sync.update()
        except ForgeError as error:
            await self.buffer.fail(error)
            raise
        await self.buffer.publish(version)
        self.host.hooks.forge_weights_published(run=self.info, version=version, seconds=publish_s + seconds)
        return seconds

    async def _updated(self) -> float:
        """Wait for the update in progress; seconds waited."""
        if self._update is None:
            return 0.0
        began = time.perf_counter()
        task, self._update = self._update, None
        await task
        return time.perf_counter() - began

    async def probe(self, prompts: list[Prompt]) -> list[Group]:
        """Greedy answers to fixed prompts, graded: what the model says before and after."""

        async def one(index: int, prompt: Prompt) -> Group:
            params = attrs.evolve(self.plan.sampling, n=1, temperature=0.0, top_p=1.0, top_k=0)
            episodes = await self.roller.episodes(f"probe-{index}", prompt, params)
            return Group(id=f"probe-{index}", prompt=prompt, episodes=tuple(episodes))

        groups = list(await asyncio.gather(*(one(i, p) for i, p in enumerate(prompts))))
        self.roller.spans.read()
        for group in groups:
            self.directory.record(self.step, group, Verdict(False, "probe"))
        return groups

