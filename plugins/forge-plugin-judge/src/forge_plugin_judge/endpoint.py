"""Posting JSON to a service that may be slow, busy or down: limits, retries, one deadline, plain errors.

    endpoint = Endpoint(url="http://127.0.0.1:8000/score")
    reply = await endpoint.post({"response": "4"})

Each failure is a RunError (never a value) with the address, what happened last and how often it was tried.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
import time
import weakref
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

import attrs
import httpx

from forge_host.api import RunError, UsageError

RETRIED = {408, 425, 429, 500, 502, 503, 504, 529}  # status codes that another attempt may change
REMEDIES = {
    401: "name the variable that holds the key as api_key_env", 403: "check the key in api_key_env",
    404: "check url and model", 405: "check url",
}  # fmt: skip
SHOWN = 300  # characters of a reply in an error


@attrs.frozen(kw_only=True)
class Endpoint:
    """One address and how to treat it. Equal ones share their connections and their limit within an event loop.

    Args:
        timeout_s: for one post, waiting for a turn and all attempts included.
        attempt_s: for one attempt; a server that hangs is asked again after it.
        api_key_env: name of the environment variable whose value goes into `Authorization: Bearer`.
    """

    url: str
    timeout_s: float = 8.0
    attempt_s: float = 8.0
    max_retries: int = 4
    backoff_s: float = 0.5
    max_concurrent: int = 16
    api_key_env: str | None = None

    async def post(self, body: Any) -> Any:
        """The reply's JSON. RunError if there is none in time; UsageError if `body` is not JSON or the key is unset."""
        try:
            content = json.dumps(body, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise UsageError(f"what is to be graded cannot be sent as JSON ({error})", where=self.url) from None
        headers = {"Content-Type": "application/json", **self._authorization()}
        last = ["no attempt was made: all connections were busy", 0]
        try:
            async with asyncio.timeout(self.timeout_s):
                connections = _connections(self)
                async with connections.slots:
                    return await self._attempts(connections.client, content, headers, last)
        except TimeoutError:
            raise RunError(
                f"no answer within {self.timeout_s:g} s and {last[1]} attempts ({last[0]})", where=self.url
            ) from None

    async def _attempts(
        self, client: httpx.AsyncClient, content: bytes, headers: dict[str, str], last: list[Any]
    ) -> Any:
        end, fix = time.monotonic() + self.timeout_s, None
        for attempt in range(self.max_retries + 1):
            wanted = None
            last[:] = ["it did not answer", attempt + 1]
            try:
                reply = await client.post(self.url, content=content, headers=headers, timeout=self.attempt_s)
            except httpx.TransportError as error:
                last[0] = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                fix = "start the service or check url" if isinstance(error, httpx.ConnectError) else None
            else:
                if reply.is_success:
                    return _json(reply, self.url)
                last[0] = f"status {reply.status_code}: {reply.text[:SHOWN]}"
                fix = REMEDIES.get(reply.status_code)
                if reply.status_code not in RETRIED:
                    break
                wanted = _retry_after(reply.headers.get("Retry-After"))
            if attempt < self.max_retries:
                pause = self.backoff_s * 2**attempt * random.uniform(0.5, 1.0) if wanted is None else wanted
                if time.monotonic() + pause >= end:
                    last[0] += f"; it asks to wait {pause:.3g} s" if wanted is not None else ""
                    raise TimeoutError
                await asyncio.sleep(pause)
        raise RunError(f"{last[0]} (attempt {last[1]} of at most {self.max_retries + 1})", where=self.url, fix=fix)

    def _authorization(self) -> dict[str, str]:
        if self.api_key_env is None:
            return {}
        key = os.environ.get(self.api_key_env)
        if not key:
            raise UsageError(
                f"environment variable {self.api_key_env} is not set", where=self.url, fix="export the key"
            )
        return {"Authorization": f"Bearer {key}"}


@attrs.define
class _Connections:
    client: httpx.AsyncClient
    slots: asyncio.Semaphore


_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Endpoint, _Connections]]
_by_loop = weakref.WeakKeyDictionary()


def _connections(endpoint: Endpoint) -> _Connections:
    """This event loop's: connections cannot be used in another."""
    for old in [loop for loop in _by_loop if loop.is_closed()]:
        del _by_loop[old]
    of_loop = _by_loop.setdefault(asyncio.get_running_loop(), {})
    if endpoint not in of_loop:
        count = endpoint.max_concurrent
        limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
        client = httpx.AsyncClient(limits=limits, verify=_certificates())
        of_loop[endpoint] = _Connections(client, asyncio.Semaphore(count))
    return of_loop[endpoint]


@lru_cache
def _certificates() -> ssl.SSLContext:
    """Read once: it takes 50 ms."""
    return httpx.create_ssl_context()


def _json(reply: httpx.Response, url: str) -> Any:
    try:
        return json.loads(reply.content)
    except (ValueError, RecursionError):
        raise RunError(f"the reply is not JSON: {quoted(reply.text)}", where=url) from None


def _retry_after(value: str | None) -> float | None:
    """Seconds, from a number or a date; None if absent or neither."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def quoted(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")
