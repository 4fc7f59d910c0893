"""Starts rollouts as the buffer admits them: prompts from the stream, graded groups into the buffer.

    producer = Producer(config=..., plan=..., roller=roller, stream=stream, buffer=buffer, ...)
    producer.ledger = ledger
    producer.start(); ...; await producer.stop()

Why apart from the controller: this side never waits for a training step, only for slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import attrs

from forge_host.errors import ForgeError, RunError
from forge_host.loop.buffer import Buffer, Ticket
from forge_host.loop.ledger import Ledger
from forge_host.loop.rollout import Roller
from forge_host.loop.rundir import RunDirectory
from forge_host.loop.seeds import draw_seed
from forge_host.types import Completion, Group, Prompt, RunInfo, SamplingParams


@attrs.define(eq=False, kw_only=True)
class Producer:
    """Rollouts of one run. Any failure ends the buffer's waits with it.

    Args:
        stream: an endless, resumable iterator of prompts.
        deterministic: every group is drawn with a seed of its own.
        round_parts: above 0, rollouts start in rounds, each divided into so many batches (`Roller.generate_round`).
        pending: by group id, prompts that the stream gave out and that are neither trained on nor rejected.
        again: prompts that go before the stream's: they were pending when the checkpoint was written.
        step: steps finished; what is rolled out now is recorded for the next one.
    """

    config: Any
    plan: Any
    host: Any
    info: RunInfo
    roller: Roller
    stream: Any
    buffer: Buffer
    directory: RunDirectory
    deterministic: bool = False
    round_parts: int = 0
    step: int = 0
    pending: dict[str, Prompt] = attrs.Factory(dict)
    again: list[Prompt] = attrs.Factory(list)
    _ledger: Ledger | None = None
    _task: asyncio.Task[None] | None = None
    _rollouts: set[asyncio.Task[None]] = attrs.Factory(set)
    _responses: int = 0  # since the last look at the rate of reward errors
    _failures: int = 0

    @property
    def ledger(self) -> Ledger:
        assert self._ledger is not None, "set before the start"
        return self._ledger

    @ledger.setter
    def ledger(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def start(self) -> None:
        self._task = asyncio.create_task(self._produce())

    async def stop(self) -> None:
        """Give up everything under way."""
        tasks = [task for task in (self._task, *self._rollouts) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _produce(self) -> None:
        """Start a rollout whenever the buffer has a slot, or a round of them."""
        try:
            while True:
                tickets = await self.buffer.admit_round() if self.round_parts else [await self.buffer.admit()]
                asked = [(ticket, self.again.pop(0) if self.again else next(self.stream)) for ticket in tickets]
                for ticket, prompt in asked:
                    self.pending[_group_id(ticket, prompt)] = prompt
                    self.ledger.requested(_group_id(ticket, prompt), self.plan.sampling.n)
                task = asyncio.create_task(self._roll_round(asked) if self.round_parts else self._roll(*asked[0]))
                self._rollouts.add(task)
                task.add_done_callback(self._rollouts.discard)
        except (ForgeError, OSError) as error:
            await self.buffer.fail(error)

    async def _roll_round(self, asked: Sequence[tuple[Ticket, Prompt]]) -> None:
        try:
            answers = await self.roller.generate_round([(p, self._params(t, p)) for t, p in asked], self.round_parts)
        except Exception as error:  # as in `_roll`
            await self.buffer.fail(error)
            return
        await asyncio.gather(*(self._roll(t, p, answer) for (t, p), answer in zip(asked, answers, strict=True)))

    def _params(self, ticket: Ticket, prompt: Prompt) -> SamplingParams:
        params: SamplingParams = self.plan.sampling
        if not self.deterministic:
            return params
        base = self.config.training.seed if params.seed is None else params.seed
        return attrs.evolve(params, seed=draw_seed(base, _group_id(ticket, prompt), ticket.version))

    async def _roll(self, ticket: Ticket, prompt: Prompt, completions: list[Completion] | None = None) -> None:
        try:
            params = self._params(ticket, prompt)
            group, verdict = await self.roller.roll(_group_id(ticket, prompt), prompt, params, completions)
            self.directory.record(self.step + 1, group, verdict)
            self.stream.observe(group)
            self.host.hooks.forge_group_scored(run=self.info, group=group)
            self._count_reward_errors(group)
            if verdict.keep:
                self.ledger.ready(group.id)
            else:
                del self.pending[group.id]
                self.ledger.dropped(self.step + 1, group, verdict.reason or "rejected")
            await self.buffer.finish(ticket, group if verdict.keep else None, verdict.reason or "rejected")
        except Exception as error:  # any failure of a rollout ends the run with that failure, not with a hang
            await self.buffer.fail(error)

    def _count_reward_errors(self, group: Group) -> None:
        """Over every batch's worth of responses: too many that could not be graded end the run.

        Raises:
            RunError: naming the reward, the prompt and the response of the newest failure.
        """
        failed = [e for e in group.episodes if e.error is not None]
        self._responses += len(group.episodes)
        self._failures += len(failed)
        if self._responses < self.config.training.batch_size * self.plan.sampling.n:
            return
        rate, limit = self._failures / self._responses, self.config.reward.max_reward_errors
        self._responses = self._failures = 0
        if rate > limit and failed:
            episode = failed[0]
            raise RunError(
                f"{rate:.0%} of the responses could not be graded (reward.max_reward_errors {limit:.0%}); the newest: "
                f"{episode.error} (prompt {episode.prompt.id}, response {episode.completion.text[:80]!r})",
                fix="fix the reward or raise reward.max_reward_errors",
            )


def _group_id(ticket: Ticket, prompt: Prompt) -> str:
    return f"{ticket.number}:{prompt.id}"
