"""`http`: the reward is what a service of yours answers.

    reward = HttpReward(url="http://127.0.0.1:8000/score")
    await reward(prompt="2+2?", response="4", target="4", metadata={})

One at a time (`batch_size: 1`): {"prompt", "response", "target", "metadata"} -> {"reward": 0.5, "parts": {},
"note": ""}
In batches: {"items": [{...}, ...]} -> {"results": [{"reward": ...}, {"error": "..."}, ...]}, same length and order.
A `reward` of null means "cannot grade"; an `error` fails that reply only; `parts` and `note` may be left out.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from attrs.validators import and_, deep_iterable, ge, in_, min_len

from forge_host.api import RewardResult, RunError, field
from forge_plugin_judge.cache import content_key
from forge_plugin_judge.endpoint import quoted
from forge_plugin_judge.remote import RemoteReward, number

SENT = ("prompt", "response", "target", "messages", "metadata", "finish_reason")


@attrs.frozen(kw_only=True)
class HttpReward(RemoteReward):
    """Posts what `send` names and takes the number that comes back."""

    send: tuple[str, ...] = field(
        default=("prompt", "response", "target", "metadata"),
        help="what the service is given: prompt, response, target, messages, metadata, finish_reason",
        converter=tuple,
        validator=and_(min_len(1), deep_iterable(in_(SENT))),
    )
    batch_size: int = field(
        default=1, help="replies in a request; above 1 the service must take batches", validator=ge(1)
    )
    batch_wait_s: float = field(
        default=0.02, help="how long a request waits for others to fill its batch", unit="s", validator=ge(0)
    )

    async def __call__(
        self,
        response: str,
        prompt: str | None = None,
        target: str | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
        metadata: Mapping[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> RewardResult | None:
        """The service's grade. RunError when it has none: down, too slow, an error, or another form of reply."""
        values = {
            "prompt": prompt,
            "response": response,
            "target": target,
            "messages": [dict(message) for message in messages],
            "metadata": dict(metadata or {}),
            "finish_reason": finish_reason,
        }
        item = {name: values[name] for name in self.send}

        async def ask() -> RewardResult | None:
            if self.batch_size == 1:
                return self._read(await self.endpoint(self.url).post(item))
            return self._read(await _batcher(self).ask(item))

        return await self.cached(content_key("http", self.url, item), ask)

    def _read(self, answer: Any) -> RewardResult | None:
        if not isinstance(answer, Mapping):
            answer = {"reward": answer}
        if answer.get("error"):
            raise RunError(f"the service could not grade: {quoted(str(answer['error']))}", where=self.url)
        parts = answer.get("parts") or {}
        value, note = answer.get("reward", ""), answer.get("note") or ""
        good = isinstance(parts, Mapping) and all(number(part) is not None for part in parts.values())
        if not good or not isinstance(note, str) or (value is not None and number(value) is None):
            raise RunError(
                f'the reply is not {{"reward": number or null, ...}}: {quoted(repr(answer))}', where=self.url
            )
        if value is None:
            return None
        return RewardResult(float(value), {str(name): float(part) for name, part in parts.items()}, note)


class _Batcher:
    """Gathers the items of concurrent calls, sends them together, and gives each caller its own answer."""

    def __init__(self, reward: HttpReward) -> None:
        self._reward = reward
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()

    async def ask(self, item: Any) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((item, answer))
        if len(self._waiting) >= self._reward.batch_size:
            self._flush()
        elif self._timer is None:
            self._timer = loop.call_later(self._reward.batch_wait_s, self._flush)
        return await answer

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting, []
        if batch:
            task = asyncio.ensure_future(self._send(batch))
            self._sending.add(task)  # the loop itself keeps only weak references
            task.add_done_callback(self._sending.discard)

    async def _send(self, batch: list[tuple[Any, asyncio.Future[Any]]]) -> None:
        url = self._reward.url
        try:
            reply = await self._reward.endpoint(url).post({"items": [item for item, _ in batch]})
            results = reply.get("results") if isinstance(reply, Mapping) else None
            if not isinstance(results, list) or len(results) != len(batch):
                raise RunError(
                    f'the reply to {len(batch)} items is not {{"results": [as many]}}: {quoted(repr(reply))}', where=url
                )
        except BaseException as error:  # every caller gets it; the loop's own cancellation too
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error if isinstance(error, Exception) else RunError("cancelled", where=url))
            if not isinstance(error, Exception):
                raise
            return
        for (_, answer), result in zip(batch, results, strict=True):
            if not answer.done():
                answer.set_result(result)


_batchers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[HttpReward, _Batcher]]
_batchers = weakref.WeakKeyDictionary()


def _batcher(reward: HttpReward) -> _Batcher:
    return _batchers.setdefault(asyncio.get_running_loop(), {}).setdefault(reward, _Batcher(reward))
