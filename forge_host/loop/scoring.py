"""`Scorer`: one completion through all rewards, to one episode. The reward service's core, without its process.

Why: a reward that raises, hangs or returns nonsense must cost its episode and say so, and never look like a score of 0.

    scorer = Scorer(rewards=[("math", MathReward(), 1.0)], timeout_s=10.0)
    episode = await scorer.score(prompt, completion, episode_id="g1/0", max_tokens=256)
    episode.reward, episode.parts, episode.error        # 1.0, {"math": 1.0, "math/answered": 1.0}, None
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any

from forge_host.api import REWARD_ARGUMENTS, Completion, Episode, Prompt, RewardResult, RunError, UsageError
from forge_host.loop.failures import describe_failure
from forge_host.loop.workers import Workers
from forge_host.plugins.calling import CallByName

MODES = ("mean", "sum")


class Scorer:
    """Grades completions with several rewards at once.

    Args:
        rewards: name, callable (arguments: REWARD_ARGUMENTS, plain or async) and weight.
        shaping: name and callable; added to the composed reward with weight 1.
        mode: "mean" divides the weighted sum by the weights of the rewards that gave a grade; "sum" does not.
        timeout_s: deadline of one call, from its start.
        gates: name of a reward to the value it must reach; below it the other rewards are not called and count 0.

    Raises:
        PluginError: a callable asks for a value that does not exist.
        UsageError: no rewards, or weights that cannot be averaged.
    """

    def __init__(
        self,
        rewards: Sequence[tuple[str, Callable[..., Any], float]],
        shaping: Sequence[tuple[str, Callable[..., Any]]] = (),
        mode: str = "mean",
        timeout_s: float = 10.0,
        gates: Mapping[str, float] | None = None,
    ) -> None:
        if mode not in MODES:
            raise UsageError(f"reward mode {mode!r} is not one of {', '.join(MODES)}")
        if not rewards:
            raise UsageError("no rewards are configured", fix="name one under `rewards`")
        if mode == "mean" and sum(weight for _, _, weight in rewards) <= 0:
            raise UsageError("the weights of the rewards do not add up to more than 0", fix="use reward.mode: sum")
        self._rewards = [(name, _wrap(name, fn), weight) for name, fn, weight in rewards]
        self._shaping = [(name, _wrap(name, fn)) for name, fn in shaping]
        self.mode, self.timeout_s, self.gates = mode, timeout_s, dict(gates or {})
        self._workers = Workers()
        self.wedged = False  #: a plain function did not return by its deadline: this process must be replaced

    async def score(self, prompt: Prompt, completion: Completion, *, episode_id: str, max_tokens: int) -> Episode:
        """The graded episode.

        `reward` is None with `error` set if any call failed (the others' parts are kept), and None without an error
        if no reward could grade it. A reward that returns None while another one grades is left out.
        """
        values = reward_values(prompt, completion, max_tokens)
        calls = [(name, call) for name, call, _ in self._rewards] + self._shaping
        results, closed = await self._results(calls, values)
        graded = {i: result for i, result in sorted(results.items()) if isinstance(result, RewardResult)}
        errors = [result for result in results.values() if isinstance(result, str)]
        parts: dict[str, float] = {}
        for i, result in graded.items():
            parts[calls[i][0]] = result.value
            parts |= {f"{calls[i][0]}/{part}": value for part, value in result.parts.items()}
        parts |= {f"{name}/passed": float(name not in closed) for name in self.gates if name in parts}
        notes = [f"{calls[i][0]}: {result.note}" for i, result in graded.items() if result.note]
        notes += [f"gate {name} is closed" for name in closed]
        return Episode(
            id=episode_id,
            prompt=prompt,
            completion=completion,
            reward=None if errors else self._compose(graded),
            parts=parts,
            note="; ".join(notes),
            error="; ".join(errors) or None,
        )

    async def _results(
        self, calls: Sequence[tuple[str, CallByName]], values: Mapping[str, Any]
    ) -> tuple[dict[int, RewardResult | str | None], list[str]]:
        """Every call's grade by its index, and the gates that are closed. Gates are called first."""

        async def graded(indices: Sequence[int]) -> dict[int, RewardResult | str | None]:
            found = await asyncio.gather(*(self._one(*calls[i], values) for i in indices))
            return dict(zip(indices, found, strict=True))

        first = [i for i, (name, _, _) in enumerate(self._rewards) if name in self.gates]
        results = await graded(first)
        closed = [
            calls[i][0] for i, result in results.items()
            if isinstance(result, RewardResult) and result.value < self.gates[calls[i][0]]
        ]  # fmt: skip
        rest = [i for i in range(len(calls)) if i not in results]
        failed = any(isinstance(result, str) for result in results.values())
        if closed and not failed:
            results |= {i: RewardResult(0.0) for i in rest if i < len(self._rewards)}
        if closed or failed:
            # What is left out cannot change the outcome, and may be the expensive part (a judge, a sandbox).
            rest = [i for i in rest if i >= len(self._rewards)]
        return results | await graded(rest), closed

    def _compose(self, graded: Mapping[int, RewardResult]) -> float | None:
        weighed = [(graded[i].value, weight) for i, (_, _, weight) in enumerate(self._rewards) if i in graded]
        if not weighed:
            return None
        total = sum(value * weight for value, weight in weighed)
        if self.mode == "mean":
            weights = sum(weight for _, weight in weighed)
            if weights <= 0:  # those with positive weights all abstained
                return None
            total /= weights
        return total + sum(result.value for i, result in graded.items() if i >= len(self._rewards))

    async def _one(self, name: str, call: CallByName, values: Mapping[str, Any]) -> RewardResult | str | None:
        """The grade, None, or what went wrong as one sentence."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout_s
        started = None if call.is_async else self._workers.run(partial(call, **values), call.what)
        try:
            if started is None:
                result = await asyncio.wait_for(call(**values), self.timeout_s)
            else:
                result = await asyncio.wait_for(asyncio.shield(started), self.timeout_s)
            if inspect.isawaitable(result):
                result = await asyncio.wait_for(_awaited(result), max(0.0, deadline - loop.time()))
            return as_result(result)
        except TimeoutError as error:
            if loop.time() < deadline - 0.001:  # the reward's own
                return f"reward `{name}` raised {describe_failure(error)}"
            self.wedged = self.wedged or (started is not None and not started.done())
            return f"reward `{name}` timed out after {self.timeout_s:g} s"
        except (RunError, UsageError) as error:
            return f"reward `{name}`: {error}"
        except (
            Exception,
            SystemExit,
        ) as error:  # third-party code: whatever it raises costs one episode, with its reason
            return f"reward `{name}` raised {describe_failure(error)}"


def reward_values(prompt: Prompt, completion: Completion, max_tokens: int) -> dict[str, Any]:
    """The values a reward may name; `prompt` is the text, or the last user message of a chat."""
    messages = prompt.messages or ({"role": "user", "content": prompt.text},)
    values = {
        "prompt": prompt_text(prompt),
        "response": completion.text,
        "target": prompt.target,
        "messages": messages,
        "metadata": prompt.metadata,
        "completion": completion,
        "length": completion.num_sampled,
        "max_tokens": max_tokens,
        "finish_reason": completion.finish_reason,
    }
    assert values.keys() == set(REWARD_ARGUMENTS)
    return values


def prompt_text(prompt: Prompt) -> str:
    """The prompt's text, or that of its chat's last user message (of the last message when there is none)."""
    if prompt.text is not None:
        return prompt.text
    messages = prompt.messages or ({},)
    asked = [message for message in messages if message.get("role") == "user"] or messages
    return _text(asked[-1].get("content"))


def as_result(result: Any) -> RewardResult | None:
    """A reward's return value, checked. RunError if it is not a finite number, a RewardResult or None."""
    if result is None:
        return None
    checked = result if isinstance(result, RewardResult) else RewardResult(result)
    for name, value in {"its value": checked.value, **checked.parts}.items():
        if not isinstance(value, Real):  # numpy's and bool are; text and tensors are not
            what = "it returned" if checked is not result else f"{name} is"
            raise RunError(f"{what} {type(value).__name__} {_short(value)}, not a number, RewardResult or None")
        if not math.isfinite(value):
            raise RunError(f"{name} is {float(value)}, not a finite number")
    parts = {name: float(value) for name, value in checked.parts.items()}
    return RewardResult(float(checked.value), parts, checked.note)


def _wrap(name: str, fn: Callable[..., Any]) -> CallByName:
    return CallByName(fn, REWARD_ARGUMENTS, f"reward `{name}`")


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _text(content: Any) -> str:
    """A message's content as text; of content in parts (text, images) the text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else ()
    return "\n".join(str(part["text"]) for part in parts if isinstance(part, Mapping) and "text" in part)
