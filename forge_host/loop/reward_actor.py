"""The reward service's process: builds the run's rewards and its environment, and grades. One that hangs is replaced.

An environment's conversations run here too, one step a call, as its code is a third party's like a reward's.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from monarch.actor import concurrent_endpoint, endpoint

from forge_host.runtime.actor import ForgeActor
from forge_host.runtime.context import RoleContext
from forge_host.types import Completion, Episode, Prompt, RewardResult

#: Where a completion's metadata has the episode that the environment made of it, without its tokens.
OWN = "environment_episode"
NO_PROMPT, NO_COMPLETION = Prompt(id="", text=""), Completion(text="", token_ids=(), logprobs=())


class RewardActor(ForgeActor):
    """Grades completions with the plan's rewards and shaping. Runs on the CPU."""

    def __init__(self, context: RoleContext) -> None:
        self.context = context

    @endpoint
    async def setup(self) -> None:
        from forge_host.loop.conversation import Rollouts
        from forge_host.loop.scoring import Scorer

        plan, config = self.context.plan, self.context.config
        host = self.context.host()
        rewards = [(part.label, host.build("reward", part.use), weight) for part, weight in plan.rewards]
        if plan.environment is not None:
            label = plan.environment.label
            environment = host.build("environment", plan.environment.use)
            self.rollouts = Rollouts(environment, name=label, timeout_s=config.reward.timeout_s)
            rewards.append((label, own_grade, 1.0))
        self.scorer = Scorer(
            rewards=rewards,
            shaping=[(part.label, host.build("reward", part.use)) for part in plan.shaping],
            gates=config.reward.gates,
            mode=config.reward.mode,
            timeout_s=config.reward.timeout_s,
        )
        self.max_tokens = plan.sampling.max_tokens

    @concurrent_endpoint
    async def score(self, group_id: str, prompt: Prompt, completions: list[Completion]) -> tuple[list[Episode], bool]:
        """Grade one group. Second: whether a plain function is stuck past its deadline, so this process must go.

        The episodes come without prompt and completion: who asks has them, and they are most of the bytes.
        """
        episodes = [
            await self.scorer.score(prompt, c, episode_id=f"{group_id}/{i}", max_tokens=self.max_tokens)
            for i, c in enumerate(completions)
        ]
        if self.context.plan.environment is not None:
            episodes = [_with_parts(episode, self.rollouts.name) for episode in episodes]
        return [_grade_only(episode) for episode in episodes], bool(self.scorer.wedged)

    @concurrent_endpoint
    async def begin(self, rollout_id: str, prompt: Prompt, left: int) -> object:
        """Start a conversation: the environment's first question (`Ask`), or the end of it (`Done`)."""
        return await self.rollouts.begin(rollout_id, prompt, left)

    @concurrent_endpoint
    async def resume(self, rollout_id: str, completion: Completion, left: int) -> object:
        """Give the environment its reply: its next question, or the end."""
        return await self.rollouts.resume(rollout_id, completion, left)


def graded_by_environment(completion: Completion, episode: Episode) -> Completion:
    """The completion with what its episode says of it."""
    return attrs.evolve(completion, metadata={**completion.metadata, OWN: _grade_only(episode)})


def own_grade(completion: Completion) -> RewardResult | None:
    """The environment's grade as one of the run's rewards; None when it gave none."""
    own: Episode | None = completion.metadata.get(OWN)
    return None if own is None or own.reward is None else RewardResult(own.reward)


def episodes_of(grades: Sequence[Episode], prompt: Prompt, completions: Sequence[Completion]) -> list[Episode]:
    """The episodes of the grades that came back from `RewardActor.score`."""
    return [
        attrs.evolve(grade, prompt=prompt, completion=_without_own(completion))
        for grade, completion in zip(grades, completions, strict=True)
    ]


def _without_own(completion: Completion) -> Completion:
    """Without the environment's episode, whose parts and note the grade has."""
    if OWN not in completion.metadata:
        return completion
    return attrs.evolve(completion, metadata={k: v for k, v in completion.metadata.items() if k != OWN})


def _grade_only(episode: Episode) -> Episode:
    return attrs.evolve(episode, prompt=NO_PROMPT, completion=NO_COMPLETION)


def _with_parts(episode: Episode, name: str) -> Episode:
    """The episode with the environment's parts and note."""
    own: Episode | None = episode.completion.metadata.get(OWN)
    if own is None:
        return episode
    parts = {**episode.parts, **{f"{name}/{part}": value for part, value in own.parts.items()}}
    note = "; ".join(text for text in (episode.note, own.note and f"{name}: {own.note}") if text)
    return attrs.evolve(episode, parts=parts, note=note)
