"""Three Monarch workers as three hosts on loopback, each with its own environment, and what may be wrong with them."""

import os
import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from monarch.actor import endpoint
from workers import free_port, workers

from forge_host.cli.worker import worker
from forge_host.config.schema import MonarchConfig, ServiceConfig
from forge_host.errors import RunError, UsageError
from forge_host.runtime.actor import ForgeActor
from forge_host.runtime.launch import AttachLauncher, address
from forge_host.runtime.placement import Place, Spot, place
from forge_host.runtime.session import Session

HERE = os.pathsep.join((str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")))


class Where(ForgeActor):
    @endpoint
    async def tell(self) -> dict[str, object]:
        names = ("HOST_MARK", "FORGE_HOST_NAME", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        return {**{n: os.environ.get(n) for n in names}, "cores": sorted(os.sched_getaffinity(0)), "pid": os.getpid()}


async def test_replicas_are_where_the_plan_says_and_see_their_hosts_environment(tmp_path) -> None:
    marks = [{"HOST_MARK": f"h{i}"} for i in range(3)]
    with workers(*marks, folder=tmp_path, path=HERE) as addresses:
        launcher = AttachLauncher(workers=tuple(addresses))
        assert launcher.hosts() is None
        async with Session(launcher=launcher, monarch=MonarchConfig(startup_timeout=60)) as session:
            cluster = await session.open()
            assert [host.name for host in cluster.hosts] == [f"tcp://{a}" for a in addresses]
            assert all(host.num_cpus == len(os.sched_getaffinity(0)) for host in cluster.hosts)
            services = {"trainer": ServiceConfig(procs=4, hosts=2), "generator": ServiceConfig(num_replicas=2)}
            places = place(services, cluster.hosts)
            trainer = await session.start_actor(
                Where, services["trainer"], (), {}, role="trainer", place=places["trainer"]
            )
            told = await trainer.tell.call()
            assert [t["HOST_MARK"] for t in told] == ["h0", "h0", "h1", "h1"]
            assert [t["RANK"] for t in told] == ["0", "1", "2", "3"]
            assert {t["WORLD_SIZE"] + t["LOCAL_WORLD_SIZE"] for t in told} == {"42"}
            assert len({(t["MASTER_ADDR"], t["MASTER_PORT"]) for t in told}) == 1
            core = min(os.sched_getaffinity(0))
            spots = (Spot((2,), cores=(core,)), Spot((0,)))
            generator = await session.start_service(
                Where, services["generator"], (), {}, role="generator", place=Place("generator", "cpu", spots)
            )
            told = await generator.tell.fanout()
            assert [t["HOST_MARK"] for t in told] == ["h2", "h0"] and told[0]["cores"] == [core]
            assert await cluster.missing([str(tmp_path), "/nowhere"]) == []
        # The workers take the next run.
        async with Session(launcher=AttachLauncher(workers=tuple(addresses[1:]))) as session:
            one = await session.start_actor(Where, ServiceConfig(), (), {})
            assert (await one.tell.call_one())["HOST_MARK"] == "h1"


async def test_a_worker_that_is_not_there_is_named() -> None:
    port = free_port()
    launcher = AttachLauncher(workers=(f"127.0.0.1:{port}",), connect_timeout=0.5)
    with pytest.raises(RunError, match=rf"worker at tcp://127.0.0.1:{port} cannot be reached \(.*; tried for 0.5 s\)"):
        async with Session(launcher=launcher) as session:
            await session.open()


async def test_something_else_on_the_port_is_named() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        port = mute.getsockname()[1]
        launcher = AttachLauncher(workers=(f"127.0.0.1:{port}",), connect_timeout=1.0)
        words = rf"what listens at tcp://127.0.0.1:{port} does not answer as a Monarch worker of version \d"
        with pytest.raises(RunError, match=words):
            async with Session(launcher=launcher) as session:
                await session.open()


async def test_an_interpreter_that_is_not_there_ends_the_run(tmp_path) -> None:
    with workers({}, folder=tmp_path, path=HERE) as addresses:
        launcher = AttachLauncher(workers=tuple(addresses), python="/nowhere/python")
        began = time.monotonic()
        with pytest.raises(RunError, match="host's first process cannot be started.*check the launcher's `python`"):
            async with Session(launcher=launcher, monarch=MonarchConfig(startup_timeout=8)) as session:
                await session.open()
        assert time.monotonic() - began < 30


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(worker, ["--port", str(port)])
    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith(f"port {port} of 127.0.0.1 cannot be used: Address already in use; choose")


@pytest.mark.parametrize("text", ["node1", "node1:", ":22222", "node1:99999", "unix://x:1", "tcp://node1:x"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"launcher.workers: worker address .* is not host:port"):
        AttachLauncher(workers=("node0:22222", text))


def test_addresses() -> None:
    assert address("tcp://node1:22222") == address("node1:22222") == ("node1", 22222)
    assert address("[::1]:80") == ("::1", 80)
