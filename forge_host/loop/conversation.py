"""An environment's side of its conversations: runs its `rollout` and passes what it asks for to the controller.

Why two sides: environment code is a third party's and may hang or crash, so it runs in the reward service's process;
tokens, weights' versions and budgets are the host's and stay in the controller (`forge_host.loop.dialogue`).

    rollouts = Rollouts(environment, timeout_s=10.0)
    step = await rollouts.begin("g1/0", prompt, left=256)          # Ask(messages=...), or Done
    step = await rollouts.resume("g1/0", completion, left=200)
    step.episodes                                                  # once it is a Done
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import attrs

from forge_host.errors import RunError, UsageError
from forge_host.loop.failures import describe_failure
from forge_host.types import Completion, Episode, Prompt

MAX_TURNS = 1000  # replies of one conversation; beyond it the environment is in a loop without end
MAX_EMPTY = 20  # replies in a row for which no token was left
#: Stands in an episode for the tokens of the whole conversation, which the controller has.
WHOLE = "the whole conversation"


@attrs.frozen(kw_only=True)
class Ask:
    """The environment wants a reply. `new` are the messages since the last reply, all of them at the first."""

    new: tuple[Mapping[str, Any], ...]
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    tools: tuple[Mapping[str, Any], ...] = ()


@attrs.frozen(kw_only=True)
class Done:
    """The conversation is over. `error` says why it has no episodes."""

    episodes: tuple[Episode, ...] = ()
    error: str | None = None


class Conversation:
    """`generate` of one rollout (`forge_host.api.Generate`)."""

    def __init__(self, prompt: Prompt, left: int) -> None:
        self._prompt = prompt
        self._said: list[Mapping[str, Any]] = []  # messages so far, replies included
        self._asks: asyncio.Queue[Ask] = asyncio.Queue()
        self._replies: asyncio.Queue[tuple[Completion, int]] = asyncio.Queue()
        self._turns, self._empty, self._left, self._waiting = 0, 0, left, False

    @property
    def left(self) -> int:
        return self._left

    async def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stop: Sequence[str] = (),
        max_tokens: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Completion:
        if max_tokens is not None and max_tokens < 1:
            raise UsageError(f"`generate` was called with max_tokens {max_tokens}", fix="give 1 or more, or None")
        if self._waiting:
            raise UsageError("`generate` was called while its last reply was awaited", fix="await one reply at a time")
        new = self._new(messages)
        self._turns += 1
        if self._turns > MAX_TURNS or self._empty > MAX_EMPTY:
            what = f"{MAX_EMPTY} replies after the last token" if self._empty else f"{MAX_TURNS} replies"
            raise UsageError(
                f"the environment asked for more than {what} in one conversation",
                fix="end it when a reply's finish_reason is length, or after a number of turns",
            )
        # One text is a sequence too: of letters, each of which would end the reply.
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        self._asks.put_nowait(Ask(new=new, stop=stops, max_tokens=max_tokens, tools=tuple(tools)))
        self._waiting = True
        completion, self._left = await self._replies.get()
        self._waiting = False
        self._empty = 0 if completion.token_ids else self._empty + 1
        self._said = [*map(dict, messages), {"role": "assistant", "content": completion.text}]
        return completion

    def episode(
        self,
        *,
        reward: float | None = None,
        parts: Mapping[str, float] | None = None,
        note: str = "",
        metadata: Mapping[str, Any] | None = None,
    ) -> Episode:
        """The whole conversation as an episode (`forge_host.api.Generate.episode`).

        Raises:
            UsageError: nothing was asked yet, or a number is not finite.
        """
        if not self._turns:
            raise UsageError(
                "the environment gave an episode before it asked for a reply",
                fix="await generate(messages) first, or give no episode",
            )
        for name, value in {"reward": reward, **(parts or {})}.items():
            if value is not None and (not isinstance(value, Real) or not math.isfinite(value)):
                raise UsageError(f"the environment's {name} is {value!r}, not a finite number")
        completion = Completion(text=WHOLE, token_ids=(), logprobs=(), metadata=dict(metadata or {}))
        return Episode(
            id=WHOLE, prompt=self._prompt, completion=completion,
            reward=None if reward is None else float(reward), parts=dict(parts or {}), note=note,
        )  # fmt: skip

    def _new(self, messages: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        """The messages after the last reply. UsageError if the ones before are not those of the last call."""
        for index, message in enumerate(messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise UsageError(f"message {index} of the environment has no `role`: {message!r}"[:300])
        known = len(self._said)
        if [(m["role"], m.get("content")) for m in messages[:known]] != [(m["role"], m["content"]) for m in self._said]:
            raise UsageError(
                "the environment changed what was said before: the messages of a call are those of the call before, "
                "the reply as {'role': 'assistant', 'content': completion.text}, and then new ones",
                fix="start another conversation, or append only",
            )
        new = tuple(messages[known:])
        if not new:
            raise UsageError("the environment asked for a reply without a new message", fix="append one")
        return new


def is_whole(completion: Completion) -> bool:
    """Whether it stands for the whole conversation (`Conversation.episode`)."""
    return completion.text == WHOLE and not completion.token_ids


class Rollouts:
    """Runs the conversations of one environment, each in steps: from one reply to the next question.

    Args:
        environment: has `rollout(prompt, generate)`, an async generator of episodes or a coroutine that returns one
            episode or several.
        timeout_s: deadline of one step.
    """

    def __init__(self, environment: Any, *, name: str, timeout_s: float) -> None:
        self.environment, self.name, self.timeout_s = environment, name, timeout_s
        self._running: dict[str, tuple[Conversation, asyncio.Task[list[Episode]]]] = {}

    async def begin(self, rollout_id: str, prompt: Prompt, left: int) -> Ask | Done:
        """Start a conversation with `left` tokens to be had."""
        talk = Conversation(prompt, left)
        task = asyncio.create_task(collect(self.environment, prompt, talk))
        self._running[rollout_id] = talk, task
        return await self._step(rollout_id)

    async def resume(self, rollout_id: str, completion: Completion, left: int) -> Ask | Done:
        """Go on after a reply."""
        talk, _ = self._running[rollout_id]
        talk._replies.put_nowait((completion, left))
        return await self._step(rollout_id)

    async def _step(self, rollout_id: str) -> Ask | Done:
        talk, task = self._running[rollout_id]
        ask = asyncio.create_task(talk._asks.get())
        await asyncio.wait({ask, task}, timeout=self.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if ask.done():
            return ask.result()
        ask.cancel()
        del self._running[rollout_id]
        if not task.done():
            task.cancel()
            return Done(error=f"environment `{self.name}` took more than {self.timeout_s:g} s for one step")
        failure = task.exception()
        if isinstance(failure, (RunError, UsageError)):
            return Done(error=f"environment `{self.name}`: {failure}")
        if failure is not None:
            return Done(error=f"environment `{self.name}` raised {describe_failure(failure)}")
        episodes = tuple(task.result())
        return Done(episodes=episodes) if episodes else Done(error=f"environment `{self.name}` gave no episode")


async def collect(environment: Any, prompt: Prompt, generate: Any) -> list[Episode]:
    """The episodes of one rollout, in whichever way it gives them."""
    found = environment.rollout(prompt, generate)
    if inspect.isasyncgen(found) or hasattr(found, "__aiter__"):
        episodes = [episode async for episode in found]
    else:
        given = await found if inspect.isawaitable(found) else found
        episodes = [given] if isinstance(given, Episode) else list(given or ())
    for episode in episodes:
        if not isinstance(episode, Episode):
            raise UsageError(
                f"`rollout` gave {type(episode).__name__}, not an Episode", fix="return generate.episode(reward=...)"
            )
    return episodes
