"""A service: replicas of one actor that share its requests and survive each other's death.

    generator = await Generator.options(num_replicas=2).as_service(config, context)
    completions = await generator.generate.route(prompt_ids, params)    # the least loaded replica
    await generator.update_weights.fanout(receipt)                      # every replica
    async with generator.session() as replica:                          # one replica for a conversation
        await replica.generate.route(prompt_ids, params)

A request whose replica dies goes to another one; the dead one is started again under a fresh name, at most
`max_restarts` times, with a growing pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
import structlog

from forge_host.config.schema import ServiceConfig
from forge_host.errors import RunError
from forge_host.runtime.handle import ActorDied, ActorHandle

log = structlog.get_logger()


@attrs.define(eq=False)
class Replica:
    """One copy and its load."""

    index: int
    handle: ActorHandle
    healthy: bool = True
    in_flight: int = 0


class Service:
    """See the module. `start` makes replica `index` for the n-th time and sets it up."""

    def __init__(self, name: str, config: ServiceConfig, start: Callable[[int, int], Awaitable[ActorHandle]]) -> None:
        self.name, self.config, self._start = name, config, start
        self.replicas: list[Replica] = []
        self.restarts = 0
        self.on_restart: Callable[[ActorHandle], Awaitable[None]] | None = None
        self._failed: RunError | None = None
        self._changed = asyncio.Condition()
        self._restarting: set[asyncio.Task[None]] = set()
        self._served, self._busy_s, self._began, self._waiting = 0, 0.0, time.monotonic(), 0

    async def start(self) -> None:
        """Start every replica at once; the first failure is raised."""
        handles = await asyncio.gather(*(self._start(i, 0) for i in range(self.config.num_replicas)))
        self.replicas = [Replica(i, handle) for i, handle in enumerate(handles)]

    def __getattr__(self, name: str) -> ServiceCall:
        if name.startswith("_"):
            raise AttributeError(name)
        call = ServiceCall(self, name)
        self.__dict__[name] = call
        return call

    async def acquire(self, pinned: Replica | None = None) -> Replica:
        """The least loaded healthy replica with a free place (or `pinned`), counted as loaded; waits for one."""
        replica = self._free(pinned)
        if replica is None:
            self._waiting += 1
            try:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._failed or self._free(pinned))
            finally:
                self._waiting -= 1
            if self._failed:
                raise self._failed
            replica = self._free(pinned)
            assert replica is not None
        replica.in_flight += 1
        return replica

    def _free(self, pinned: Replica | None) -> Replica | None:
        free = [
            r
            for r in ([pinned] if pinned and pinned.healthy else self.replicas)
            if r.healthy and r.in_flight < self.config.max_concurrent_requests
        ]
        return min(free, key=lambda r: r.in_flight) if free else None

    async def release(self, replica: Replica) -> None:
        replica.in_flight -= 1
        if self._waiting:
            async with self._changed:
                self._changed.notify_all()

    async def lost(self, replica: Replica, handle: ActorHandle, error: RunError) -> None:
        """Take a dead replica out and start its successor in the background. Safe to call for every lost request."""
        if self._failed:
            raise self._failed
        if replica.handle is not handle or not replica.healthy:
            return
        replica.healthy = False
        if self.restarts >= self.config.max_restarts:
            self._failed = RunError(
                f"{self.name} failed for good after {self.restarts} restarts: {error}",
                fix=f"raise services.{self.name}.max_restarts or see the logs",
            )
            async with self._changed:
                self._changed.notify_all()
            raise self._failed
        self.restarts += 1
        log.warning(
            "replica lost, restarting",
            service=self.name,
            replica=replica.index,
            reason=str(error),
            restart=self.restarts,
        )
        task = asyncio.create_task(self._restart(replica))
        self._restarting.add(task)
        task.add_done_callback(self._restarting.discard)

    async def _restart(self, replica: Replica) -> None:
        number = self.restarts
        await replica.handle.shutdown(timeout_s=2.0)
        await asyncio.sleep(min(0.1 * 2 ** (number - 1), 10.0))
        try:
            handle = await self._start(replica.index, number)
            if self.on_restart is not None:
                await self.on_restart(handle)
        except Exception as error:  # whatever it is ends the service; unseen, every later request would wait for ever
            self._failed = RunError(f"{self.name} replica {replica.index} could not be restarted: {error}")
        else:
            replica.handle, replica.in_flight, replica.healthy = handle, 0, True
        async with self._changed:
            self._changed.notify_all()

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[SessionView]:
        """Pin one replica: its prefix cache stays warm over a conversation. It moves on if the replica dies."""
        replica = await self.acquire()
        await self.release(replica)
        yield SessionView(self, replica)

    def count(self, seconds: float) -> None:
        self._served += 1
        self._busy_s += seconds

    def get_metrics(self) -> dict[str, float]:
        """Requests served, per second, mean latency (s), queue depth, in flight, healthy replicas, restarts."""
        elapsed = max(time.monotonic() - self._began, 1e-9)
        return {
            "served": float(self._served),
            "requests_per_s": self._served / elapsed,
            "latency_s": self._busy_s / self._served if self._served else 0.0,
            "waiting": float(self._waiting),
            "in_flight": float(sum(r.in_flight for r in self.replicas)),
            "healthy_replicas": float(sum(r.healthy for r in self.replicas)),
            "restarts": float(self.restarts),
        }

    async def health_check(self, timeout_s: float = 10.0) -> dict[int, bool]:
        """Ask every replica; one that is dead or silent is replaced. Returns which were well."""

        async def check(replica: Replica) -> bool:
            handle = replica.handle
            try:
                await handle.health.call(timeout_s=timeout_s)
            except RunError as error:
                await self.lost(replica, handle, error)
                return False
            return replica.healthy

        return dict(zip(range(len(self.replicas)), await asyncio.gather(*map(check, self.replicas)), strict=True))

    async def shutdown(self) -> None:
        for task in self._restarting:
            task.cancel()
        await asyncio.gather(*(r.handle.shutdown() for r in self.replicas))


@attrs.frozen(eq=False)
class ServiceCall:
    """One endpoint of a service."""

    service: Service
    name: str
    pinned: Replica | None = None

    async def route(self, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Call one replica; if it dies, another. Remote errors other than death are raised as they are."""
        service = self.service
        while True:
            replica = await service.acquire(self.pinned)
            handle, began = replica.handle, time.monotonic()
            try:
                return await getattr(handle, self.name).call_one(*args, timeout_s=timeout_s, **kwargs)
            except ActorDied as error:
                await service.lost(replica, handle, error)
            finally:
                service.count(time.monotonic() - began)
                if replica.handle is handle:
                    await service.release(replica)

    async def fanout(self, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> list[Any]:
        """Call every healthy replica; one that dies is replaced and left out of the answers."""

        async def one(replica: Replica) -> Any:
            handle = replica.handle
            try:
                return await getattr(handle, self.name).call_one(*args, timeout_s=timeout_s, **kwargs)
            except ActorDied as error:
                await self.service.lost(replica, handle, error)
                return _LOST

        answers = await asyncio.gather(*(one(r) for r in self.service.replicas if r.healthy))
        return [a for a in answers if a is not _LOST]

    call_all = fanout


_LOST = object()


@attrs.frozen(eq=False)
class SessionView:
    """A service seen through one replica; its calls have only `route`."""

    service: Service
    replica: Replica

    def __getattr__(self, name: str) -> ServiceCall:
        if name.startswith("_"):
            raise AttributeError(name)
        return ServiceCall(self.service, name, self.replica)
