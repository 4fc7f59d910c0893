"""The order in which replicas take requests, and that no waiting request is forgotten."""

import asyncio
import random

import attrs
import pytest

from forge_host.config.schema import ServiceConfig
from forge_host.errors import RunError
from forge_host.runtime.loads import Loads
from forge_host.runtime.service import Service


@attrs.define(eq=False)
class Thing:
    in_flight: int = 0


class Handle:
    """Stands for an `ActorHandle` that was started."""

    def __init__(self, mesh: str) -> None:
        self.mesh, self.killed = mesh, False
        self.dead: str | None = None

    def kill(self) -> None:
        self.killed = True

    async def shutdown(self, timeout_s: float = 10.0) -> None:
        self.killed = True


def test_the_least_loaded_is_what_a_search_would_find() -> None:
    random.seed(3)
    things = [Thing() for _ in range(7)]
    loads: Loads[Thing] = Loads(limit=4)
    for thing in things:
        loads.add(thing)
    out: list[Thing] = []
    for _ in range(3000):
        found = loads.least()
        left = [t for t in things if t not in out and t.in_flight < 4]
        assert (found is None) == (not left) and (found is None or found.in_flight == min(t.in_flight for t in left))
        thing, choice = random.choice(things), random.random()
        if choice < 0.5 and found is not None:
            loads.move(found, 1)
        elif choice < 0.9 and thing.in_flight:
            loads.move(thing, -1)
        elif thing in out:
            loads.add(thing)
            out.remove(thing)
        else:
            loads.remove(thing)
            out.append(thing)


async def service_of(replicas: int, limit: int, **more) -> Service:
    async def start(index: int, restart: int) -> Handle:
        return Handle(f"s-{index}-r{restart}")

    service = Service("s", ServiceConfig(num_replicas=replicas, max_concurrent_requests=limit, **more), start)
    await service.start()
    return service


async def test_waiting_requests_are_served_in_order_and_none_is_forgotten() -> None:
    service = await service_of(2, 1)
    served: list[int] = []

    async def request(number: int, pinned=None) -> None:
        replica = await service.acquire(pinned)
        try:
            await asyncio.sleep(0.001 * random.random())
            served.append(number)
        finally:
            service.release(replica)

    await asyncio.wait_for(asyncio.gather(*(request(i) for i in range(200))), 10)
    assert len(served) == 200 and all(abs(place - number) < 4 for place, number in enumerate(served))
    mixed = [asyncio.create_task(request(i, service.replicas[i % 3] if i % 3 < 2 else None)) for i in range(200)]
    await asyncio.sleep(0.01)
    for task in mixed[::7]:
        task.cancel()
    await asyncio.wait_for(asyncio.gather(*mixed, return_exceptions=True), 10)
    assert [r.in_flight for r in service.replicas] == [0, 0] and len(served) >= 370
    assert service.get_metrics()["waiting"] == 0


async def test_a_lost_replica_is_killed_replaced_and_its_waiters_move() -> None:
    service = await service_of(2, 1, max_restarts=1)
    first, second = service.replicas
    old = first.handle
    held = [await service.acquire(first), await service.acquire(second)]
    waiting = asyncio.create_task(service.acquire(first))
    await asyncio.sleep(0)
    await service.lost(first, old, RunError("gone"))
    service.release(held[1])
    assert await asyncio.wait_for(waiting, 5) is second and old.killed
    await asyncio.sleep(0.3)
    assert first.healthy and first.handle is not old and first.in_flight == 0 and service.restarts == 1
    with pytest.raises(RunError, match="failed for good after 1 restarts: again"):
        await service.lost(first, first.handle, RunError("again"))
    with pytest.raises(RunError, match="failed for good"):
        await service.acquire()
