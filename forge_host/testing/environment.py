"""What every environment owes its host, as a pytest class; `play` runs one conversation with replies from a list.

    from forge_host.api import Prompt
    from forge_host.testing import EnvironmentContract, play

    class TestCalculator(EnvironmentContract):
        environment = "calculator"
        prompt = Prompt(id="p", text="What is 12 + 7?", target="19")
        replies = ["<calc>12 + 7</calc>", "So it is 19."]
        reward = 1.0                                  # what the environment gives for these

    game = play(environment, prompt, ["<calc>12 + 7</calc>", "So it is 19."])
    game.episodes, game.messages                      # the messages are everything said
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs
import pytest

from forge_host.api import Completion, Episode, Prompt
from forge_host.loop.conversation import Ask, Done, Rollouts
from forge_host.testing.component import load_component

#: What a model may reply to anything.
ODD_REPLIES = ("", " \n", "\x00", "é你好🙂", "5", "x" * 20_000, "<tool_call>", "</tool_call>{", "(" * 3000)
ENDLESS = 200  # replies after which a conversation should have come to an end


@attrs.frozen(kw_only=True)
class Game:
    """A finished conversation. `messages`: all that was said, replies included; `num_replies`: replies it used."""

    episodes: tuple[Episode, ...]
    messages: tuple[Mapping[str, Any], ...]
    num_replies: int
    error: str | None = None


def play(
    environment: Any, prompt: Prompt, replies: Sequence[str], *, max_tokens: int = 4096, timeout_s: float = 10.0
) -> Game:
    """One conversation in which the model gives these replies, the last one again if more are asked for.

    A reply takes a token a character of `max_tokens`; with none left it is empty, as in a run.
    """
    return asyncio.run(_play(Rollouts(environment, name="it", timeout_s=timeout_s), "r", prompt, replies, max_tokens))


async def _play(rollouts: Rollouts, id: str, prompt: Prompt, replies: Sequence[str], left: int) -> Game:
    said: list[Mapping[str, Any]] = []
    step: Ask | Done = await rollouts.begin(id, prompt, left)
    count = 0
    while isinstance(step, Ask):
        text = replies[min(count, len(replies) - 1)][: max(0, left)]
        whole = left > 0 and len(text) == len(replies[min(count, len(replies) - 1)])
        for stop in step.stop:
            text = text.partition(stop)[0]
        left -= len(text) + 1
        completion = Completion(
            text=text, token_ids=(1,) * len(text), logprobs=(0.0,) * len(text), policy_versions=(0,) * len(text),
            finish_reason="stop" if whole else "length",
        )  # fmt: skip
        said += [*step.new, {"role": "assistant", "content": text}]
        count += 1
        step = await rollouts.resume(id, completion, max(0, left))
    return Game(episodes=step.episodes, messages=tuple(said), num_replies=count, error=step.error)


class EnvironmentContract:
    """Subclass it, name the environment and give one conversation that ends well.

    Attributes:
        environment: component reference.
        config: values of its fields.
        prompt: a task of it.
        replies: what the model says to it, turn by turn.
        reward: what the environment gives for that; None if it leaves the grade to the run's rewards.
    """

    environment: ClassVar[str]
    config: ClassVar[Mapping[str, Any]] = {}
    prompt: ClassVar[Prompt] = Prompt(id="p", text="What is 12 + 7?", target="19")
    replies: ClassVar[Sequence[str]] = ("19",)
    reward: ClassVar[float | None] = None

    def make(self) -> Any:
        """A new instance; override it for one that needs a server or a folder."""
        return load_component("environment", self.environment, self.config)

    def test_ends_well(self) -> None:
        """The example comes to its end, with the reward it should have."""
        game = play(self.make(), self.prompt, self.replies)
        assert game.error is None, game.error
        assert game.num_replies == len(self.replies), f"it asked for {game.num_replies} of {len(self.replies)} replies"
        assert [episode.reward for episode in game.episodes][-1] == self.reward

    @pytest.mark.parametrize("reply", ODD_REPLIES, ids=lambda text: repr(text[:12]))
    def test_takes_any_reply(self, reply: str) -> None:
        """Whatever the model says, the conversation ends, in episodes with finite rewards and not in an exception."""
        game = play(self.make(), self.prompt, [reply], max_tokens=1_000_000)
        assert game.error is None, game.error
        assert game.num_replies <= ENDLESS, f"{game.num_replies} replies to {reply[:20]!r}: it needs an end"
        for episode in game.episodes:
            assert episode.reward is None or math.isfinite(episode.reward)

    def test_ends_when_no_tokens_are_left(self) -> None:
        """With the budget used up replies are empty and their finish_reason is "length"; then it should end."""
        game = play(self.make(), self.prompt, ["hm"], max_tokens=3)
        assert game.error is None, game.error
        assert game.num_replies <= ENDLESS and game.episodes

    def test_same_again(self) -> None:
        """The same replies give the same conversation and the same reward, in another instance too."""
        first, second = (play(self.make(), self.prompt, self.replies) for _ in range(2))
        assert first.messages == second.messages
        assert [e.reward for e in first.episodes] == [e.reward for e in second.episodes]

    def test_conversations_do_not_mix(self) -> None:
        """Two at once in one instance go as each does alone: a run has hundreds at once."""

        async def both() -> list[Game]:
            rollouts = Rollouts(self.make(), name="it", timeout_s=10.0)
            talks = [("a", self.replies), ("b", ["no"])]
            return list(await asyncio.gather(*(_play(rollouts, i, self.prompt, said, 4096) for i, said in talks)))

        alone = [play(self.make(), self.prompt, said) for said in (self.replies, ["no"])]
        for together, one in zip(asyncio.run(both()), alone, strict=True):
            assert together.messages == one.messages
            assert [e.reward for e in together.episodes] == [e.reward for e in one.episodes]
