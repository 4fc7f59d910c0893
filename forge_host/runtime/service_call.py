"""One endpoint of a service: `await service.METHOD.route(...)` and `.fanout(...)`, and a service seen by a session."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import attrs

from forge_host.api import Request
from forge_host.runtime.handle import ActorDied, DeadlineExceeded

if TYPE_CHECKING:
    from forge_host.runtime.service import Replica, Service

#: A request of which a router knows nothing.
ANY = Request("")
_LOST = object()


@attrs.frozen(eq=False)
class ServiceCall:
    """One endpoint of a service."""

    service: Service
    name: str
    pinned: Replica | None = None

    async def route(self, *args: Any, timeout_s: float | None = None, session: str = "", **kwargs: Any) -> Any:
        """Call one replica; if it dies, another. Remote errors other than death are raised as they are.

        `session` names the conversation for the service's router; it is not passed on.
        A replica that is silent for the whole `monarch.call_timeout` counts as dead, once per request: a second one
        would mean that the request is what hangs. With a `timeout_s` of the caller's it is the caller's business.
        """
        service, hung = self.service, False
        request = ANY if service._router is None else Request(self.name, args, session)
        pinned = self.pinned or service._pinned.get()
        while True:
            replica = await service.acquire(pinned, request)
            handle, began = replica.handle, time.monotonic()
            try:
                return await getattr(handle, self.name).call_one(*args, timeout_s=timeout_s, **kwargs)
            except ActorDied as error:
                await service.lost(replica, handle, error)
            except DeadlineExceeded as error:
                if timeout_s is not None or hung:
                    raise
                hung = True
                await service.lost(replica, handle, error)
            finally:
                replica.served += 1
                replica.busy_s += time.monotonic() - began
                if replica.handle is handle:
                    service.release(replica)

    async def fanout(
        self, *args: Any, timeout_s: float | None = None, replace_silent: bool = False, **kwargs: Any
    ) -> list[Any]:
        """Call every healthy replica; one that dies is replaced and left out of the answers.

        Args:
            replace_silent: one that does not answer in time is replaced too, instead of DeadlineExceeded.
        """
        gone = (ActorDied, DeadlineExceeded) if replace_silent else ActorDied

        async def one(replica: Replica) -> Any:
            handle = replica.handle
            try:
                return await getattr(handle, self.name).call_one(*args, timeout_s=timeout_s, **kwargs)
            except gone as error:
                await self.service.lost(replica, handle, error)
                return _LOST

        answers = await asyncio.gather(*(one(r) for r in self.service.replicas if r.healthy))
        return [a for a in answers if a is not _LOST]

    call_all = fanout


@attrs.frozen(eq=False)
class SessionView:
    """A service seen through one replica; its calls have only `route`."""

    service: Service
    replica: Replica

    def __getattr__(self, name: str) -> ServiceCall:
        if name.startswith("_"):
            raise AttributeError(name)
        return ServiceCall(self.service, name, self.replica)
