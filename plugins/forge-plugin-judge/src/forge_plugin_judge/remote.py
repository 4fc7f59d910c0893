"""What both rewards share: the settings of an address, the cache, and asking once when several ask the same.

Not a component; `HttpReward` and `JudgeReward` derive from `RemoteReward`.
"""

from __future__ import annotations

import asyncio
import math
import re
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
from attrs.validators import ge, gt, optional

from forge_host.api import RewardResult, field
from forge_plugin_judge.cache import cache_for
from forge_plugin_judge.endpoint import Endpoint


def _check_url(_: Any, __: Any, value: str) -> None:
    if not re.fullmatch(r"https?://[^\s/]+\S*", value):
        raise ValueError(f"`url` must begin with http:// or https://, got {value!r}")
    if "@" in value.split("/")[2]:
        raise ValueError("`url` must not carry a password; put the key into the variable that `api_key_env` names")


def _check_variable(_: Any, __: Any, value: str) -> None:
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", value):  # the message does not repeat what may be a key
        raise ValueError("`api_key_env` must be the NAME of an environment variable (capitals, digits, _), not a key")


@attrs.frozen(kw_only=True)
class RemoteReward:
    """A reward that another process gives. Errors are errors: no answer, no grade."""

    url: str = field(help="address, http:// or https://", validator=_check_url)
    timeout_s: float = field(
        default=8.0,
        help="for one grade, retries included; below reward.timeout_s, so that this error is the one you see",
        unit="s",
        validator=gt(0),
    )
    attempt_s: float = field(
        default=8.0, help="for one attempt, so that a hanging server is asked again", unit="s", validator=gt(0)
    )
    max_retries: int = field(
        default=4, help="attempts after the first, on 429, 5xx and connection errors", validator=ge(0)
    )
    backoff_s: float = field(
        default=0.5,
        help="pause before the first retry, then doubled; jitter halves it at most",
        unit="s",
        validator=ge(0),
    )
    max_concurrent: int = field(default=16, help="requests under way at the same time", validator=ge(1))
    api_key_env: str | None = field(
        default=None,
        help="NAME of the environment variable that holds the key, never the key itself",
        validator=optional(_check_variable),
    )
    cache_entries: int = field(default=10_000, help="grades kept in memory, 0 for none", validator=ge(0))
    cache_file: str | None = field(default=None, help="SQLite file that keeps grades across runs")

    def endpoint(self, url: str) -> Endpoint:
        names = ("timeout_s", "attempt_s", "max_retries", "backoff_s", "max_concurrent", "api_key_env")
        return Endpoint(url=url, **{name: getattr(self, name) for name in names})

    async def cached(self, key: str, ask: Callable[[], Awaitable[RewardResult | None]]) -> RewardResult | None:
        """The grade kept under `key`, or that of `ask`; those who want the same at the same time wait for one."""
        cache = cache_for(self.cache_file, self.cache_entries)
        if cache is None:
            return await ask()
        if (kept := cache.get(key)) is not None:
            return None if kept == "none" else RewardResult(*kept)
        asked = _asked.setdefault(asyncio.get_running_loop(), {})
        if key not in asked:
            asked[key] = asyncio.ensure_future(ask())
            asked[key].add_done_callback(lambda task: _forget(asked, key, task))
        # Shielded: that one waiter gives up must not take the answer from the others.
        result = await asyncio.shield(asked[key])
        cache.put(key, "none" if result is None else [result.value, dict(result.parts), result.note])
        return result


_asked: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Future[RewardResult | None]]]
_asked = weakref.WeakKeyDictionary()


def _forget(asked: dict[str, Any], key: str, task: asyncio.Future[Any]) -> None:
    asked.pop(key, None)
    if not task.cancelled():
        task.exception()  # marks it as seen, should every waiter have given up


def number(value: Any) -> float | None:
    """A finite number as float; None for anything else, true and false included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None
