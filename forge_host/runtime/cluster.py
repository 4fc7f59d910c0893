"""The hosts of a run, opened: what they have, and spawning processes on some of them.

    cluster = await Cluster.of(await launcher.open(), lock_text, (), 60.0)
    proc_mesh = cluster.spawn("trainer-0", Spot((0,)), 2, bootstrap(None, "trainer-0"), lambda rank: {})
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from monarch._rust_bindings.monarch_hyperactor.host_mesh import BootstrapCommand
from monarch.actor import ActorError, default_bootstrap_cmd

from forge_host.errors import ForgeError, PluginError, RunError
from forge_host.runtime.agent import HostAgent
from forge_host.runtime.handle import SupervisionError, reason_of
from forge_host.runtime.hosts import Host, this_machine
from forge_host.runtime.launch import Allocation
from forge_host.runtime.placement import Spot
from forge_host.runtime.process import bootstrap, free_port

#: `$0` is the interpreter as this process or the launcher knows it; a worker that knows its own has said so.
_SHELL = 'exec "${FORGE_HOST_PYTHON:-$0}" "$@"'


@attrs.frozen(eq=False)
class Cluster:
    """A launcher's allocation and its hosts, in the mesh's order. `agents` is None when the only host is this one."""

    allocation: Allocation
    hosts: tuple[Host, ...]
    agents: Any = None

    @classmethod
    async def of(cls, allocation: Allocation, lock: str, files: Sequence[str], timeout_s: float) -> Cluster:
        """Ask the hosts what they have; their first process compares its plugins with `lock` before it answers.

        Raises:
            PluginError: a host has other plugins, or no forge-host.
            RunError: the hosts do not answer in time.
        """
        if allocation.local:
            return cls(allocation, (this_machine(),))
        num_hosts = int(allocation.mesh.size("hosts"))
        names = allocation.names or tuple(f"{i}" for i in range(num_hosts))
        unknown = cls(allocation, tuple(Host(name=name, cpus=()) for name in names))
        everywhere = Spot(tuple(range(num_hosts)))
        first = bootstrap(None, "agent", files, "agent", lock)
        agents = unknown.spawn("agents", everywhere, 1, first, lambda rank: {}).spawn("agents", HostAgent)
        facts = await _facts(agents, timeout_s)
        hosts = tuple(
            attrs.evolve(
                fact,
                name=allocation.names[i] if allocation.names else fact.name,
                address=allocation.addresses[i] if allocation.addresses else fact.address,
            )
            for i, fact in enumerate(facts)
        )
        return cls(allocation, hosts, agents)

    def spawn(
        self, mesh: str, spot: Spot, per_host: int, first: Callable[[], None],
        variables: Callable[[int], Mapping[str, str]],
    ) -> Any:  # fmt: skip
        """A Monarch process mesh named `mesh`, of `per_host` processes on each host of `spot`; `variables` by rank."""
        allocation = self.allocation
        base = default_bootstrap_cmd()

        def command(point: Any) -> BootstrapCommand:
            rank = int(point.rank)
            env = {**base.env, **variables(rank)}
            if allocation.local:
                return BootstrapCommand(base.program, base.arg0, list(base.args), env)
            env["FORGE_HOST_NAME"] = self.hosts[spot.hosts[rank // per_host]].name
            python = allocation.python or base.program
            if allocation.python:  # what the launcher was told is stronger than what the worker knows
                env["FORGE_HOST_PYTHON"] = python
            return BootstrapCommand("/bin/sh", None, ["-c", _SHELL, python, *base.args], env)

        hosts = allocation.mesh
        if not allocation.local:
            hosts = hosts.slice(hosts=slice(spot.hosts[0], spot.hosts[-1] + 1))
        bind = [{"cpus": ",".join(map(str, spot.cores))}] * per_host if spot.cores else None
        return hosts.spawn_procs(
            per_host={"procs": per_host},
            name=mesh,
            bootstrap=first,
            proc_bind=bind,
            bootstrap_command=command,
        )

    async def rendezvous(self, hosts: Sequence[int]) -> tuple[str, int]:
        """Address and free port where the processes of a replica on `hosts` meet: loopback unless they are several."""
        if self.agents is None:
            return "127.0.0.1", free_port()
        address = self.hosts[hosts[0]].address if len(hosts) > 1 else "127.0.0.1"
        port = await self.agents.slice(hosts=hosts[0]).free_port.call_one()
        return address, int(port)

    def gpu_names(self, spot: Spot, index: int) -> list[str]:
        """Names for CUDA_VISIBLE_DEVICES of a spot's GPUs on its host number `index`."""
        if not spot.gpus:
            return []
        names = self.hosts[spot.hosts[index]].gpus
        return [names[gpu] for gpu in spot.gpus[index]]

    async def missing(self, paths: Sequence[str]) -> list[tuple[str, str]]:
        """(host, path) of everything that exists here and not on another host of the run."""
        if self.agents is None:
            return []
        here = [path for path in paths if os.path.exists(path)]
        found = await self.agents.missing.call(here)
        return [(host.name, path) for host, lost in zip(self.hosts, found.values(), strict=True) for path in lost]


async def _facts(agents: Any, timeout_s: float) -> list[Host]:
    async def ask() -> Any:
        return await agents.facts.call()

    try:
        return list((await asyncio.wait_for(ask(), timeout_s)).values())
    except TimeoutError:
        raise RunError(
            f"the hosts did not start a process within {timeout_s:g} s",
            fix="check the workers' output, and the launcher's `python`",
        ) from None
    except ActorError as error:
        cause = error.exception
        if isinstance(cause, ForgeError):
            raise cause from error
        raise RunError(f"a host's first process failed: {type(cause).__name__}: {cause}") from error
    except SupervisionError as error:
        reason = reason_of(str(error))
        if "No module named" in reason or "ImportError" in reason:
            raise PluginError(
                f"a host's Python cannot import what a run needs ({reason})", fix="install forge-host there"
            ) from error
        raise RunError(f"a host's first process failed: {reason}", fix="see the worker's output") from error
    except ValueError as error:  # Monarch's word for a process that cannot be started
        raise RunError(
            f"a host's first process cannot be started: {' '.join(str(error).split())[:400]}",
            fix="check the launcher's `python`",
        ) from error
