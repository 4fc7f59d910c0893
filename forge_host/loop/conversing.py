"""Drives an environment's conversations: its questions go to the generators as tokens, their replies back to it.

    talker = Talker(seq_len=1024)
    episodes = await talker.episodes(roller, group_id, prompt, params)       # params.n conversations, graded

One conversation holds one replica of the reward service, where the environment's code runs, from its first question to
its grade. A replica that is lost costs its conversations, never the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from forge_host.errors import RunError
from forge_host.loop.conversation import Ask, Done, is_whole
from forge_host.loop.dialogue import EMPTY, Dialogue, TooLong
from forge_host.loop.reward_actor import episodes_of, graded_by_environment
from forge_host.loop.seeds import draw_seed
from forge_host.runtime.lease import Lease, lease
from forge_host.types import Completion, Episode, Prompt, SamplingParams

if TYPE_CHECKING:
    from forge_host.loop.rollout import Roller


@attrs.frozen
class Talker:
    """Makes the episodes of groups whose responses are conversations. `seq_len`: most tokens of one."""

    seq_len: int

    async def episodes(self, roller: Roller, group_id: str, prompt: Prompt, params: SamplingParams) -> list[Episode]:
        """`params.n` conversations about the prompt at once; each gives one episode, or what its environment makes."""
        talks = [self._talk(roller, f"{group_id}/{i}", prompt, _one_of(params, i)) for i in range(params.n)]
        return [episode for episodes in await asyncio.gather(*talks) for episode in episodes]

    async def _talk(self, roller: Roller, id: str, prompt: Prompt, params: SamplingParams) -> list[Episode]:
        dialogue = Dialogue(roller.encode, prompt, max_tokens=params.max_tokens, seq_len=self.seq_len)
        episodes: list[Episode] = []
        async with lease(roller.reward) as held:
            done = await _converse(roller, held, dialogue, id, params)
            if done.error is not None:
                return [_failed(id, dialogue, done.error)]
            completions = [_completion(episode, dialogue) for episode in done.episodes]
            episodes = await _grade(roller, held, id, prompt, completions)
        if not episodes:
            return [_failed(id, dialogue, held.reason)]
        if len(episodes) == 1:
            return [attrs.evolve(episodes[0], id=id)]
        return [attrs.evolve(episode, id=f"{id}.{number}") for number, episode in enumerate(episodes)]


async def _grade(
    roller: Roller, held: Lease, id: str, prompt: Prompt, completions: Sequence[Completion]
) -> list[Episode]:
    """Graded by the same process. One with a reward stuck past its deadline is replaced."""
    began, deadline = time.perf_counter(), roller.reward_timeout_s * (len(completions) + 1) + 5.0
    found: tuple[list[Episode], bool] = await held.handle.score.call_one(
        id, prompt, completions, timeout_s=deadline
    )
    roller.spans.reward += time.perf_counter() - began
    grades, wedged = found
    if wedged:
        held.problem = RunError(f"a reward is stuck past its deadline (prompt {prompt.id})")
    return episodes_of(grades, prompt, completions)


async def _converse(roller: Roller, held: Lease, dialogue: Dialogue, id: str, params: SamplingParams) -> Done:
    """Question and reply in turn until the environment is done."""
    deadline = roller.reward_timeout_s + 5.0  # the process keeps its own; this one is for one too stuck to keep it

    async def environment(call: Any, *args: Any) -> Ask | Done:
        began = time.perf_counter()
        step: Ask | Done = await call.call_one(id, *args, dialogue.left, timeout_s=deadline)
        roller.spans.reward += time.perf_counter() - began
        return step

    step = await environment(held.handle.begin, dialogue.prompt)
    while isinstance(step, Ask):
        try:
            ids = dialogue.hear(step.new, step.tools)
        except TooLong as error:
            return Done(error=str(error))
        reply = EMPTY
        if ids is not None:
            room = dialogue.left - (len(ids) - dialogue.num_tokens)
            asked = attrs.evolve(
                params,
                max_tokens=min(room, step.max_tokens or room),
                stop=step.stop or params.stop,
                seed=None if params.seed is None else params.seed + dialogue.num_replies,
            )
            (reply,) = await roller.generate_from(dialogue.prompt, ids, asked)
            dialogue.reply(reply)
        step = await environment(held.handle.resume, reply)
    return step


def _one_of(params: SamplingParams, index: int) -> SamplingParams:
    """Parameters of one of `params.n` conversations; with a seed each gets draws of its own."""
    seed = None if params.seed is None else draw_seed(params.seed, f"conversation {index}", 0)
    return attrs.evolve(params, n=1, seed=seed)


def _completion(episode: Episode, dialogue: Dialogue) -> Completion:
    """What an episode is trained on: the whole conversation, or the reply that the environment chose."""
    completion = episode.completion
    if is_whole(completion):
        whole = dialogue.completion()
        completion = attrs.evolve(whole, metadata={**whole.metadata, **completion.metadata})
    return graded_by_environment(completion, episode)


def _failed(id: str, dialogue: Dialogue, error: str) -> Episode:
    return Episode(id=id, prompt=dialogue.prompt, completion=dialogue.completion(), error=error)
