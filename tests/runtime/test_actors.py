"""Real Monarch processes: start, call, die, restart, stop."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from monarch.actor import concurrent_endpoint, endpoint

from forge_host.config.schema import MonarchConfig, ServiceConfig
from forge_host.errors import RunError, UsageError
from forge_host.runtime.actor import ForgeActor
from forge_host.runtime.handle import ActorDied, DeadlineExceeded
from forge_host.runtime.session import Session


class Echo(ForgeActor):
    def __init__(self, greeting: str = "hi") -> None:
        self.greeting = greeting
        self.ready = False

    @endpoint
    async def setup(self) -> None:
        if self.greeting == "refuse":
            raise UsageError("no such greeting", where="Echo", fix="say hi")
        print("set up", flush=True)
        self.ready = True

    @concurrent_endpoint
    async def say(self, word: str) -> tuple[str, int, bool]:
        return f"{self.greeting} {word}", os.getpid(), self.ready

    @concurrent_endpoint
    async def wait(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @concurrent_endpoint
    async def fail(self) -> None:
        raise KeyError("lost")


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(pids: list[int], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while any(map(alive, pids)):
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.05)
    return True


async def test_actor_answers_logs_and_leaves_no_process(tmp_path) -> None:
    async with Session(log_dir=str(tmp_path)) as session:
        handle = await Echo.options(procs=2).as_actor("hello")
        answers = await handle.say.call("you")
        assert [a[0] for a in answers] == ["hello you"] * 2 and all(a[2] for a in answers)
        pids = [a[1] for a in answers]
        assert sorted(pids) == sorted(handle.pids) and all(map(alive, pids))
        assert session is not None
    assert await gone(pids)
    assert sorted(p.name for p in tmp_path.glob("*.log")) == ["echo-0.0.log", "echo-0.1.log"]
    assert "set up" in (tmp_path / "echo-0.0.log").read_text()


async def test_openmp_s_registration_goes_with_its_process_and_others_stay(tmp_path) -> None:
    def registration(pid: int) -> Path:
        return Path(f"/dev/shm/__KMP_REGISTERED_LIB_{pid}_{os.getuid()}")

    other = registration(os.getpid())
    had = other.exists()
    try:
        async with Session(log_dir=str(tmp_path)):
            mine = registration((await Echo.as_actor()).pids[0])
            for file in (mine, other):
                file.touch()
        assert not mine.exists() and other.exists()
    finally:
        if not had:
            other.unlink(missing_ok=True)


async def test_errors_name_role_and_call(tmp_path) -> None:
    async with Session(log_dir=str(tmp_path)) as session:
        handle = await Echo.as_actor()
        with pytest.raises(RunError, match=r"echo-0: `fail` failed: KeyError: 'lost'"):
            await handle.fail.call_one()
        with pytest.raises(DeadlineExceeded, match=r"echo-0 did not answer `wait` within 0.2 s"):
            await handle.wait.call_one(30, timeout_s=0.2)
        with pytest.raises(UsageError, match="Echo: no such greeting; say hi"):
            await Echo.options(num_replicas=2).as_service("refuse")
        assert session.handles == [handle], "what could not be set up is stopped"
        with pytest.raises(UsageError, match="colocate_with names 'other', which does not run; .*running: `echo`"):
            await Echo.options(colocate_with="other").as_actor()
        with pytest.raises(AttributeError, match="echo-0 has no endpoint `sya`"):
            _ = handle.sya
        assert (await handle.say.call_one("again"))[0] == "hi again"


async def test_death_is_named_with_the_last_log_lines(tmp_path) -> None:
    from processes import KILLED  # only here: the actors' processes import this file, and not the tests' folders

    async with Session(log_dir=str(tmp_path)):
        handle = await Echo.as_actor()
        waiting = asyncio.create_task(handle.wait.call_one(60))
        await asyncio.sleep(0.3)
        os.kill(handle.pids[0], signal.SIGKILL)
        with pytest.raises(ActorDied, match=rf"(?s)echo-0 died during `wait` {KILLED}.*set up"):
            await waiting


async def test_a_process_that_is_gone_ends_the_wait_even_when_monarch_says_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("forge_host.runtime.handle.LOOK_S", 0.1)
    monkeypatch.setattr("forge_host.runtime.handle.GONE_S", 0.1)
    async with Session(log_dir=str(tmp_path)):
        handle = await Echo.as_actor()
        os.kill(handle.pids[0], signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(ActorDied, match="echo-0 died during `say`"):
            await handle.say.call_one("x")
        assert time.monotonic() - began < 5, "Monarch takes 10 s"


async def test_service_reroutes_and_restarts(tmp_path) -> None:
    async with Session(log_dir=str(tmp_path), monarch=MonarchConfig(shutdown_timeout=5)):
        service = await Echo.options(num_replicas=2, max_restarts=2).as_service()
        seen: list[str] = []

        async def refreshed(handle) -> None:
            seen.append(handle.mesh)

        service.on_restart = refreshed
        victims = [r.handle.pids[0] for r in service.replicas]
        waits = [asyncio.create_task(service.wait.route(0.5)) for _ in range(6)]
        await asyncio.sleep(0.1)
        os.kill(victims[0], signal.SIGKILL)
        assert await asyncio.gather(*waits) == [0.5] * 6
        answers = await service.say.fanout("x")
        assert len(answers) in (1, 2)
        for _ in range(200):
            if service.get_metrics()["healthy_replicas"] == 2:
                break
            await asyncio.sleep(0.1)
        assert service.get_metrics()["restarts"] == 1 and seen == ["echo-0-r1"]
        assert {a[1] for a in await service.say.fanout("x")}.isdisjoint({victims[0]})
        async with service.session() as one:
            assert len({(await one.say.route("x"))[1] for _ in range(3)}) == 1
        await asyncio.gather(*(service.wait.route(0.1) for _ in range(3)))  # unequal loads
        async with service.session():
            pinned = {(await service.say.route("x"))[1] for _ in range(4)}
            assert len(pinned) == 1
        before = {a[1] for a in await service.call_all("say", "x")}
        await service.restart(1)
        assert len(before & {a[1] for a in await service.say.fanout("x")}) == 1
        assert service.get_metrics()["restarts"] == 2
        summary = service.get_metrics_summary()
        assert summary["replicas"][1]["mesh"] == "echo-1-r2" and summary["service"]["served"] > 10
        assert summary["service"]["served"] == sum(r["served"] for r in summary["replicas"].values())
        await service.shutdown()
        with pytest.raises(RunError):
            await service.say.route("x")


async def test_service_bounds_what_is_in_flight() -> None:
    async with Session():
        service = await Echo.options(max_concurrent_requests=2).as_service()
        began = time.monotonic()
        tasks = [asyncio.create_task(service.wait.route(0.3)) for _ in range(6)]
        await asyncio.sleep(0.1)
        metrics = service.get_metrics()
        assert metrics["in_flight"] == 2 and metrics["waiting"] == 4 and metrics["utilisation"] == 1.0
        await asyncio.gather(*tasks)
        assert time.monotonic() - began >= 0.85
        assert await service.health_check() == {0: True}
        os.kill(service.replicas[0].handle.pids[0], signal.SIGKILL)
        await service.health_check(timeout_s=0.5)
    assert service.closed and service.restarts == 1, "what ends while it restarts is not started a third time"


def test_options_are_the_seeds() -> None:
    with pytest.raises(UsageError, match="Echo.options has no `num_replica`; did you mean `num_replicas`"):
        Echo.options(num_replica=2)
    launch = Echo.options(procs=3, hosts=1, with_gpus=True, num_replicas=2, mesh_name="m")
    assert launch.config == ServiceConfig(procs=3, hosts=1, with_gpus=True, num_replicas=2, mesh_name="m")
