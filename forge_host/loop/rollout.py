"""One prompt to one scored group: encode, generate, grade, verdict. Runs in the controller, many at once.

A reward that hangs costs its group and its process, one that kills its process twice its group, one that fails its
episode; none of them the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import attrs

from forge_host.errors import RunError
from forge_host.loop.buffer import NOT_GRADABLE
from forge_host.loop.conversing import Talker
from forge_host.loop.prompts import PromptEncoder
from forge_host.loop.reward_actor import episodes_of
from forge_host.runtime.handle import ActorDied, Unanswered
from forge_host.runtime.service import Service
from forge_host.types import Completion, Episode, Group, Prompt, SamplingParams, Verdict


@attrs.define
class Spans:
    """Seconds that rollouts spent since they were last read, summed over rollouts; and what goes on now."""

    generate: float = 0.0
    reward: float = 0.0
    tokens: int = 0
    generating: int = 0  # prompts
    grading: int = 0

    def read(self) -> Spans:
        out = attrs.evolve(self)
        self.generate, self.reward, self.tokens = 0.0, 0.0, 0
        return out


@attrs.frozen(eq=False)
class Roller:
    """Makes groups. `reward_timeout_s` is the deadline of grading one completion; `talker` is there when responses are
    conversations with an environment."""

    encode: PromptEncoder
    generator: Service
    reward: Service
    sampler: Any
    sampling: SamplingParams
    reward_timeout_s: float
    talker: Talker | None = None
    spans: Spans = attrs.Factory(Spans)
    regrading: asyncio.Lock = attrs.Factory(asyncio.Lock)

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> list[Completion]:
        """`params.n` completions; each records the weights' version of every token."""
        return await self.generate_from(prompt, self.encode(prompt), params or self.sampling)

    async def generate_from(self, prompt: Prompt, ids: Sequence[int], params: SamplingParams) -> list[Completion]:
        """The same from token ids, of `prompt` or of a conversation about it.

        Raises:
            RunError: a completion came back without log-probabilities or versions for all its tokens.
        """
        began = time.perf_counter()
        self.spans.generating += 1
        try:
            completions: list[Completion] = await self.generator.generate.route(ids, params)
        finally:
            self.spans.generating -= 1
        return self._generated(prompt, completions, time.perf_counter() - began)

    async def generate_round(
        self, asked: Sequence[tuple[Prompt, SamplingParams]], parts: int
    ) -> list[list[Completion]]:
        """Every prompt's completions, in order, when all are there. Prompts i, i + parts, i + 2 parts, ... are one
        batch of one generator, so that the same round gives the same tokens.

        Raises:
            RunError: as `generate_from`.
        """
        began = time.perf_counter()
        self.spans.generating += len(asked)
        try:
            slices = [asked[first::parts] for first in range(min(parts, len(asked)))]
            many = self.generator.generate_many
            answers = await asyncio.gather(
                *(many.route([self.encode(p) for p, _ in part], [params for _, params in part]) for part in slices)
            )
        finally:
            self.spans.generating -= len(asked)
        seconds = time.perf_counter() - began
        return [self._generated(p, answers[i % parts][i // parts], seconds) for i, (p, _) in enumerate(asked)]

    def _generated(self, prompt: Prompt, completions: list[Completion], seconds: float) -> list[Completion]:
        self.spans.generate += seconds
        for completion in completions:
            self.spans.tokens += len(completion.token_ids)
            if len(completion.policy_versions) != len(completion.token_ids):
                raise RunError(
                    f"the generator returned {len(completion.token_ids)} tokens of prompt {prompt.id} with "
                    f"{len(completion.policy_versions)} policy versions; no token is trained on without one"
                )
        return [_timed(completion, generate_s=seconds) for completion in completions]

    async def episodes(self, group_id: str, prompt: Prompt, params: SamplingParams | None = None) -> list[Episode]:
        """`params.n` graded responses, or conversations where the run has an environment."""
        params = params or self.sampling
        if self.talker is None:
            return await self.score(group_id, prompt, await self.generate(prompt, params))
        return await self.talker.episodes(self, group_id, prompt, params)

    async def score(self, group_id: str, prompt: Prompt, completions: Sequence[Completion]) -> list[Episode]:
        """Grade completions; what cannot be graded comes back with `error` set and no reward.

        A worker's death is put down to this group only when it happens twice, the second time with nothing else
        being graded again beside it: most often another group, or nobody's, was the cause.
        """
        began = time.perf_counter()
        self.spans.grading += 1
        try:
            episodes, died = await self._grade(group_id, prompt, completions)
            if died:
                async with self.regrading:
                    episodes, _ = await self._grade(group_id, prompt, completions)
        finally:
            self.spans.grading -= 1
        seconds = time.perf_counter() - began
        self.spans.reward += seconds
        return [_graded_in(episode, seconds) for episode in episodes]

    async def _grade(
        self, group_id: str, prompt: Prompt, completions: Sequence[Completion]
    ) -> tuple[list[Episode], bool]:
        """One attempt. Second: the worker died."""
        # The service keeps its own deadline per reward; this one is for a process too stuck to keep it.
        deadline = self.reward_timeout_s * (len(completions) + 1) + 5.0
        replica = await self.reward.acquire()
        handle, died = replica.handle, False
        try:
            grades, wedged = await handle.score.call_one(group_id, prompt, list(completions), timeout_s=deadline)
            episodes = episodes_of(grades, prompt, completions)
            stuck = next((e.error for e in episodes if e.error), "a reward is stuck past its deadline")
            problem = RunError(f"{stuck} (prompt {prompt.id})") if wedged else None
        except Unanswered as error:
            died = isinstance(error, ActorDied)
            why = f"reward process died: {handle.dead}" if died else str(error)
            problem, episodes = error, ungraded(group_id, prompt, completions, why)
        finally:
            if replica.handle is handle:
                self.reward.release(replica)
        if problem is not None:
            await self.reward.lost(replica, handle, problem)
        return episodes, died

    async def roll(
        self,
        group_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        completions: list[Completion] | None = None,
    ) -> tuple[Group, Verdict]:
        """The whole way of one prompt, or from its completions on."""
        if completions is None:
            episodes = await self.episodes(group_id, prompt, params)
        else:
            episodes = await self.score(group_id, prompt, completions)
        group = Group(id=group_id, prompt=prompt, episodes=tuple(episodes))
        graded = [e for e in episodes if e.reward is not None]
        if not graded:
            failed = any(e.error for e in episodes)
            return group, Verdict(False, "no reward could be computed" if failed else NOT_GRADABLE)
        if len(graded) < 2 <= self.sampling.n:
            return group, Verdict(False, "fewer than two rewards could be computed")
        return group, self.sampler.verdict(group)


def _timed(completion: Completion, **seconds: float) -> Completion:
    """With how long its group took, for the record."""
    if isinstance(completion.metadata, dict):  # what came from another process is nobody else's; a copy costs 20 us
        completion.metadata.update(seconds)
        return completion
    return attrs.evolve(completion, metadata={**completion.metadata, **seconds})


def _graded_in(episode: Episode, seconds: float) -> Episode:
    timed = _timed(episode.completion, reward_s=seconds)
    return episode if timed is episode.completion else attrs.evolve(episode, completion=timed)


def ungraded(group_id: str, prompt: Prompt, completions: Sequence[Completion], error: str) -> list[Episode]:
    """Episodes of a group that no reward came back for."""
    return [Episode(id=f"{group_id}/{i}", prompt=prompt, completion=c, error=error) for i, c in enumerate(completions)]
