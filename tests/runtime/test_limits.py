"""What a replica may take: memory, time to become ready; and that it answers while it works."""

import asyncio
import threading
import time

import pytest
from monarch.actor import concurrent_endpoint, endpoint

from forge_host.config.schema import MonarchConfig
from forge_host.runtime.actor import ForgeActor
from forge_host.runtime.handle import ActorDied, DeadlineExceeded
from forge_host.runtime.session import Session


class Hungry(ForgeActor):
    def __init__(self, slow_s: float = 0.0) -> None:
        self.slow_s = slow_s

    @endpoint
    async def setup(self) -> None:
        print("getting ready", flush=True)
        await asyncio.sleep(self.slow_s)

    @endpoint
    async def eat(self, mib: int) -> int:
        food = bytearray(mib << 20)
        return len(food)


class Busy(ForgeActor):
    def __init__(self) -> None:
        self.done: list[tuple[int, str]] = []

    @concurrent_endpoint
    async def step(self, number: int, seconds: float) -> list[tuple[int, str]]:
        return await self.work(self._step, number, seconds)

    def _step(self, number: int, seconds: float) -> list[tuple[int, str]]:
        time.sleep(seconds)
        self.done.append((number, threading.current_thread().name))
        return self.done


async def test_health_is_answered_during_a_step_and_steps_keep_their_order() -> None:
    async with Session():
        busy = await Busy.as_actor()
        steps = [asyncio.create_task(busy.step.call_one(i, 3.0 - i)) for i in range(3)]
        await asyncio.sleep(0.2)
        await busy.health.call_one(timeout_s=2.5)
        assert not steps[0].done()
        assert (await asyncio.gather(*steps))[2] == [(i, "work_0") for i in range(3)]


async def test_a_process_over_its_memory_ends_with_the_key_and_its_service_replaces_it(tmp_path) -> None:
    async with Session(log_dir=str(tmp_path)) as session:
        options = Hungry.options(actor_memory_mb=600, max_restarts=1)
        alone = await options.as_actor()
        assert await alone.eat.call_one(100) == 100 << 20
        words = r"hungry-0 died during `eat` \(out of memory: .*600 MiB each; raise services.hungry.actor_memory_mb"
        with pytest.raises(ActorDied, match=words):
            await alone.eat.call_one(700)
        await alone.shutdown()
        service = await options.as_service()
        first = service.replicas[0].handle.pids
        waiting = asyncio.create_task(service.eat.route(700))
        # The request kills the second process too; the service is over and says why.
        with pytest.raises(Exception, match=r"(?s)failed for good after 1 restarts.*actor_memory_mb"):
            await waiting
        assert len(session.handles) <= 1 and service.restarts == 1 and first


async def test_a_replica_that_never_becomes_ready_is_named_with_its_log(tmp_path) -> None:
    async with Session(log_dir=str(tmp_path), monarch=MonarchConfig(startup_timeout=60)):
        began = time.monotonic()
        words = (
            r"(?s)hungry-0 was not ready within 5 s \(still in `setup`; rank 0 on .*getting ready.*"
            r"raise services.hungry.startup_timeout"
        )
        with pytest.raises(DeadlineExceeded, match=words):
            await Hungry.options(startup_timeout=5.0).as_service(60.0)
        assert time.monotonic() - began < 20
