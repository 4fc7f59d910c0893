"""A service: replicas of one actor that share its requests and survive each other's death.

    generator = await Generator.options(num_replicas=2).as_service(config, context)
    completions = await generator.generate.route(prompt_ids, params)    # one replica
    await generator.update_weights.fanout(receipt)                      # every replica
    async with generator.session() as replica:                          # one replica for a conversation
        await replica.generate.route(prompt_ids, params)
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
from typing import Any

import attrs
import structlog

from forge_host.api import Request, Router
from forge_host.config.schema import ServiceConfig
from forge_host.errors import RunError
from forge_host.runtime.handle import ActorDied, ActorHandle, DeadlineExceeded, Unanswered
from forge_host.runtime.loads import Loads
from forge_host.runtime.routers import LeastLoaded

log = structlog.get_logger()
#: A request of which a router knows nothing.
ANY = Request("")


@attrs.define(eq=False)
class Replica:
    """One copy and its load."""

    index: int
    handle: ActorHandle
    healthy: bool = True
    in_flight: int = 0
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
        self._served, self._busy_s, self._began, self._waiting = 0, 0.0, time.monotonic(), 0

    async def start(self) -> None:
        """Start every replica at once; the first failure but a death, which `max_restarts` forgive, is raised."""
        handles = await asyncio.gather(*(self._first(i) for i in range(self.config.num_replicas)))
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
        handle.kill()  # one that hangs must not answer later
        try:
            self._count_restart(replica.index, error)
        finally:
            self._wake_all()  # those that wanted this replica go to others
        task = asyncio.create_task(self._restart(replica))
        self._restarting.add(task)
        task.add_done_callback(self._restarting.discard)

    def _count_restart(self, index: int, error: RunError) -> None:
        if self.restarts >= self.config.max_restarts:
            self._failed = RunError(
                f"{self.name} failed for good after {self.restarts} restarts: {error}",
                fix=f"raise services.{self.name}.max_restarts or see the logs",
            )
            raise self._failed
        self.restarts += 1
        log.warning(
            "replica lost, restarting", service=self.name, replica=index, reason=str(error), restart=self.restarts
        )

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
        """Pin one replica: its prefix cache stays warm over a conversation. It moves on if the replica dies."""
        replica = await self.acquire()
        self.release(replica)
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
        """Stop every replica; what waits for one, and every later request, fails."""
        self._failed = self._failed or RunError(f"the service {self.name} is shut down")
        self._wake_all()
        for task in self._restarting:
            task.cancel()
        await asyncio.gather(*(r.handle.shutdown() for r in self.replicas))


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
        while True:
            replica = await service.acquire(self.pinned, request)
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
                service.count(time.monotonic() - began)
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


_LOST = object()


def _wake_one(queue: deque[asyncio.Future[None]]) -> bool:
    """Wake the first that still waits; False when nobody does."""
    while queue:
        woken = queue.popleft()
        if not woken.done():
            woken.set_result(None)
            return True
    return False


@attrs.frozen(eq=False)
class SessionView:
    """A service seen through one replica; its calls have only `route`."""

    service: Service
    replica: Replica

    def __getattr__(self, name: str) -> ServiceCall:
        if name.startswith("_"):
            raise AttributeError(name)
        return ServiceCall(self.service, name, self.replica)
