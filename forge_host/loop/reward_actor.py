"""The reward service's process: builds the run's rewards and grades groups. One that hangs is replaced."""

from __future__ import annotations

from monarch.actor import concurrent_endpoint, endpoint

from forge_host.runtime.actor import ForgeActor
from forge_host.runtime.context import RoleContext
from forge_host.types import Completion, Episode, Prompt


class RewardActor(ForgeActor):
    """Grades completions with the plan's rewards and shaping. Runs on the CPU."""

    def __init__(self, context: RoleContext) -> None:
        self.context = context

    @endpoint
    async def setup(self) -> None:
        from forge_host.loop.scoring import Scorer

        plan, config = self.context.plan, self.context.config
        host = self.context.host()
        self.scorer = Scorer(
            rewards=[(part.label, host.build("reward", part.use), weight) for part, weight in plan.rewards],
            shaping=[(part.label, host.build("reward", part.use)) for part in plan.shaping],
            gates=config.reward.gates,
            mode=config.reward.mode,
            timeout_s=config.reward.timeout_s,
        )
        self.max_tokens = plan.sampling.max_tokens

    @concurrent_endpoint
    async def score(self, group_id: str, prompt: Prompt, completions: list[Completion]) -> tuple[list[Episode], bool]:
        """Grade one group. Second: whether a plain function is stuck past its deadline, so this process must go."""
        episodes = [
            await self.scorer.score(prompt, c, episode_id=f"{group_id}/{i}", max_tokens=self.max_tokens)
            for i, c in enumerate(completions)
        ]
        return episodes, bool(self.scorer.wedged)
