"""A service: replicas of one actor that share its requests and survive each other's death.

    generator = await Generator.options(num_replicas=2).as_service(config, context)
    completions = await generator.generate.route(prompt_ids, params)    # one replica
    await generator.update_weights.fanout(receipt)                      # every replica
    async with generator.session():                                     # one replica for a conversation
        await generator.generate.route(prompt_ids, params)
    await generator.generate.route(prompt_ids, params, session="x")     # for routers that keep a session together

Which replica takes a request is its router's choice (`forge_host.runtime.routers`) among those with a free place.
A request whose replica dies goes to another one; the dead one is started again under a fresh name, at most
`max_restarts` times, with a growing pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import attrs
import structlog

from forge_host.api import Request, Router
from forge_host.config.schema import ServiceConfig
from forge_host.errors import RunError
from forge_host.runtime.handle import ActorDied, ActorHandle, DeadlineExceeded, Unanswered
from forge_host.runtime.loads import Loads
from forge_host.runtime.routers import LeastLoaded
from forge_host.runtime.service_call import ANY, ServiceCall, SessionView

log = structlog.get_logger()


@attrs.define(eq=False)
class Replica:
    """One copy and its load."""

    index: int
    handle: ActorHandle
    healthy: bool = True
    in_flight: int = 0
    served: int = 0
    busy_s: float = 0.0
    waiting: deque[asyncio.Future[None]] = attrs.Factory(deque)  #: requests that want this very replica


class Service:
    """See the module. `start` makes replica `index` for the n-th time and sets it up; without `router` the least loaded
    replica takes a request."""

    def __init__(
        self,
        name: str,
        config: ServiceConfig,
        start: Callable[[int, int], Awaitable[ActorHandle]],
        router: Router | None = None,
    ) -> None:
        self.name, self.config, self._start = name, config, start
        self._router = None if isinstance(router, LeastLoaded) else router  # which `_loads` knows without looking
        self.replicas: list[Replica] = []
        self.restarts = 0
        self.on_restart: Callable[[ActorHandle], Awaitable[None]] | None = None
        self._failed: RunError | None = None
        self._loads: Loads[Replica] = Loads(config.max_concurrent_requests)
        self._queue: deque[asyncio.Future[None]] = deque()
        self._restarting: set[asyncio.Task[None]] = set()
        self._began, self._waiting = time.monotonic(), 0
        self._asked = 0  #: restarts that the caller asked for
        self._pinned: ContextVar[Replica | None] = ContextVar("replica", default=None)
        self.closed = False

    async def start(self) -> None:
        """Start every replica at once; the first failure but a death, which `max_restarts` forgive, is raised.

        The others' processes are stopped then.
        """
        starting = [asyncio.ensure_future(self._first(i)) for i in range(self.config.num_replicas)]
        try:
            handles = await asyncio.gather(*starting)
        except BaseException:  # cancelled too: whatever ends the start, no process of it may stay; it is raised again
            for task in starting:
                task.cancel()
            found = await asyncio.gather(*starting, return_exceptions=True)
            await asyncio.gather(*(h.shutdown(timeout_s=2.0) for h in found if not isinstance(h, BaseException)))
            raise
        self.replicas = [Replica(i, handle) for i, handle in enumerate(handles)]
        for replica in self.replicas:
            self._loads.add(replica)

    async def _first(self, index: int) -> ActorHandle:
        number = 0
        while True:
            try:
                return await self._start(index, number)
            except ActorDied as error:
                self._count_restart(index, error)
                number = self.restarts

    def __getattr__(self, name: str) -> ServiceCall:
        if name.startswith("_"):
            raise AttributeError(name)
        call = ServiceCall(self, name)
        self.__dict__[name] = call
        return call

    async def acquire(self, pinned: Replica | None = None, request: Request = ANY) -> Replica:
        """The router's choice of healthy replicas with a free place (or `pinned`), counted as loaded; waits for one.

        Raises:
            RunError: the service failed for good.
        """
        if self._failed:
            raise self._failed
        replica = None if self._queue and pinned is None else self._free(pinned, request)
        if replica is None:
            replica = await self._wait_for_place(pinned, request)
        self._loads.move(replica, 1)
        return replica

    async def _wait_for_place(self, pinned: Replica | None, request: Request) -> Replica:
        """First come, first served: `release` wakes the request that has waited longest."""
        self._waiting += 1
        first = True
        try:
            while True:
                queue = self._queue if pinned is None or not pinned.healthy else pinned.waiting
                woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                (queue.append if first else queue.appendleft)(woken)
                first = False
                try:
                    await woken
                except asyncio.CancelledError:
                    if not woken.cancelled() and not _wake_one(queue):  # the place it was woken for is another's
                        _wake_one(self._queue)
                    raise
                if self._failed:
                    raise self._failed
                if (replica := self._free(pinned, request)) is not None:
                    return replica
        finally:
            self._waiting -= 1

    def _free(self, pinned: Replica | None, request: Request) -> Replica | None:
        limit = self.config.max_concurrent_requests
        if pinned is not None and pinned.healthy:
            return pinned if pinned.in_flight < limit else None
        if self._router is None:
            return self._loads.least()
        free = [replica for replica in self.replicas if replica.healthy and replica.in_flight < limit]
        chosen = self._router.choose(free, request) if free else None
        if chosen is not None and not any(chosen is replica for replica in free):
            raise RunError(
                f"the router of service {self.name} chose {chosen!r}, which it was not offered",
                fix="return one of `free`",
            )
        return chosen  # type: ignore[return-value]

    def release(self, replica: Replica) -> None:
        """A request of `replica` is over: the next one that waits gets its place."""
        self._loads.move(replica, -1)
        if self._waiting and not _wake_one(replica.waiting):
            _wake_one(self._queue)

    def _wake_all(self) -> None:
        for queue in (self._queue, *(r.waiting for r in self.replicas)):
            while _wake_one(queue):
                pass

    async def lost(self, replica: Replica, handle: ActorHandle, error: RunError) -> None:
        """Take a dead replica out and start its successor in the background. Safe to call for every lost request.

        Raises:
            RunError: it was restarted `max_restarts` times before; the service is over.
        """
        if self._failed:
            raise self._failed
        if replica.handle is not handle or not replica.healthy:
            return
        replica.healthy = False
        self._loads.remove(replica)
        handle.dead = handle.dead or str(error)
        handle.kill()  # one that hangs must not answer later
        try:
            self._count_restart(replica.index, error)
        finally:
            self._wake_all()  # those that wanted this replica go to others
        task = asyncio.create_task(self._restart(replica))
        self._restarting.add(task)
        task.add_done_callback(self._restarting.discard)

    def _count_restart(self, index: int, error: RunError) -> None:
        forced = self.restarts - self._asked
        if forced >= self.config.max_restarts:
            self._failed = RunError(
                f"{self.name} failed for good after {forced} restarts: {error}",
                fix=f"raise services.{self.name}.max_restarts or see the logs",
            )
            raise self._failed
        self.restarts += 1
        log.warning(
            "replica lost, restarting", service=self.name, replica=index, reason=str(error), restart=self.restarts
        )

    async def restart(self, index: int | None = None) -> None:
        """Start one replica again, or all of them one after the other; returns when it is up, and raises if it fails.

        Its requests go to the others, or wait. This does not count towards `max_restarts`.
        """
        for replica in self.replicas if index is None else [self.replicas[index]]:
            if replica.healthy:  # else it is being restarted already
                self._asked += 1
                await self.lost(replica, replica.handle, RunError("a restart was asked for"))
            while not (replica.healthy or self._failed):
                await asyncio.wait(self._restarting, return_when=asyncio.FIRST_COMPLETED)
            if self._failed:
                raise self._failed

    async def _restart(self, replica: Replica) -> None:
        """Until it is up: a successor may die too, and costs another restart."""
        await replica.handle.shutdown(timeout_s=2.0)
        attempt = 0
        while not self._failed:
            number, handle = self.restarts, None
            await asyncio.sleep(min(0.1 * 2**attempt, 10.0))
            attempt += 1
            try:
                handle = await self._start(replica.index, number)
                if self.on_restart is not None:
                    await self.on_restart(handle)
            except Unanswered as error:
                if handle is None and isinstance(error, DeadlineExceeded):  # as slow as that it would be again
                    self._failed = RunError(f"{self.name} replica {replica.index} could not be restarted: {error}")
                    break
                if handle is not None:
                    await handle.shutdown(timeout_s=2.0)
                with contextlib.suppress(RunError):  # kept in _failed, which every request raises
                    self._count_restart(replica.index, error)
            except Exception as error:  # whatever it is ends the service; unseen, every later request would wait
                self._failed = RunError(f"{self.name} replica {replica.index} could not be restarted: {error}")
            else:
                replica.handle, replica.in_flight, replica.healthy = handle, 0, True
                self._loads.add(replica)
                break
        self._wake_all()

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[SessionView]:
        """Pin one replica: its prefix cache stays warm over a conversation. It moves on if the replica dies.

        Inside, every `route` of this task and of those it starts goes to that replica; what `as` gives does wherever
        it is called.
        """
        replica = await self.acquire()
        self.release(replica)
        before = self._pinned.set(replica)
        try:
            yield SessionView(self, replica)
        finally:
            self._pinned.reset(before)

    async def call_all(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """`service.METHOD.fanout(...)` for a method known by name: every healthy replica's answer."""
        return await ServiceCall(self, method).fanout(*args, **kwargs)

    def get_metrics(self) -> dict[str, float]:
        """Requests served, per second, mean latency (s), queue depth, in flight, utilisation (share of the places for
        requests that are taken), healthy replicas, restarts."""
        elapsed = max(time.monotonic() - self._began, 1e-9)
        served = sum(r.served for r in self.replicas)
        healthy, in_flight = sum(r.healthy for r in self.replicas), sum(r.in_flight for r in self.replicas)
        return {
            "served": float(served),
            "requests_per_s": served / elapsed,
            "latency_s": sum(r.busy_s for r in self.replicas) / served if served else 0.0,
            "waiting": float(self._waiting),
            "in_flight": float(in_flight),
            "utilisation": in_flight / (healthy * self.config.max_concurrent_requests) if healthy else 0.0,
            "healthy_replicas": float(healthy),
            "restarts": float(self.restarts),
        }

    def get_metrics_summary(self) -> dict[str, Any]:
        """`{"service": get_metrics(), "replicas": {0: {"mesh", "healthy", "served", ...}, ...}}`."""
        elapsed, places = max(time.monotonic() - self._began, 1e-9), self.config.max_concurrent_requests
        return {
            "service": self.get_metrics(),
            "replicas": {
                r.index: {
                    "mesh": r.handle.mesh,
                    "healthy": r.healthy,
                    "served": r.served,
                    "requests_per_s": r.served / elapsed,
                    "latency_s": r.busy_s / r.served if r.served else 0.0,
                    "waiting": sum(not woken.done() for woken in r.waiting),
                    "in_flight": r.in_flight,
                    "utilisation": r.in_flight / places,
                }
                for r in self.replicas
            },
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

    def close(self) -> None:
        """No replica is started again; what waits for one, and every later request, fails."""
        self.closed = True
        self._failed = self._failed or RunError(f"the service {self.name} is shut down")
        self._wake_all()
        for task in self._restarting:
            task.cancel()

    async def shutdown(self) -> None:
        """`close`, and stop every replica."""
        self.close()
        await asyncio.gather(*(r.handle.shutdown() for r in self.replicas))


def _wake_one(queue: deque[asyncio.Future[None]]) -> bool:
    """Wake the first that still waits; False when nobody does."""
    while queue:
        woken = queue.popleft()
        if not woken.done():
            woken.set_result(None)
            return True
    return False
