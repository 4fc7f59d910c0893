"""Where processes run. A launcher is a component: it gets hosts for a run and gives them back.

    launcher: local                                                   # this host, on loopback
    launcher: {use: attach, workers: [node1:22222, node2:22222]}      # workers started with `forge-host worker`
    launcher: {use: slurm, nodes: 2, gpus_per_node: 8}
    launcher: {use: kubernetes, nodes: 2, image: my/image}

Light: Monarch is imported when a launcher is opened.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import Any

import attrs
import structlog
from attrs.validators import ge, gt, min_len, optional

from forge_host.errors import UsageError
from forge_host.runtime.hosts import Host, promised, this_machine
from forge_host.types import field

CLOSE_TIMEOUT_S = 10.0
log = structlog.get_logger()


@attrs.frozen(kw_only=True)
class Allocation:
    """The hosts that a launcher got.

    Args:
        mesh: Monarch `HostMesh` of one dimension, `hosts`.
        names: what errors call each host; empty asks the hosts for their names.
        addresses: where hosts reach each other; empty asks the hosts.
        python: interpreter of the workers' processes; None is FORGE_HOST_PYTHON of the worker (`forge-host worker` sets
            it), else the path of this process's.
        local: the only host is this one.
    """

    mesh: Any
    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    python: str | None = None
    local: bool = False


@attrs.frozen
class LocalLauncher:
    """Everything on this host, on loopback."""

    def hosts(self) -> Sequence[Host]:
        return [this_machine()]

    async def open(self) -> Allocation:
        from monarch.actor import this_host

        return Allocation(mesh=this_host(), local=True)

    async def close(self) -> None:
        """Nothing to give back: the processes stop with their actors."""


@attrs.define(kw_only=True)
class AttachLauncher:
    """Hosts whose workers run already, each started there with `forge-host worker`."""

    workers: tuple[str, ...] = field(help="addresses of the workers, host:port", validator=min_len(1))
    gpus_per_host: int | None = field(
        default=None, help="GPUs of each host, to plan with before attaching; null asks the hosts",
        validator=optional(ge(0)),
    )  # fmt: skip
    cpus_per_host: int | None = field(
        default=None, help="cores of each host, to plan with before attaching; null asks the hosts",
        validator=optional(ge(1)),
    )  # fmt: skip
    connect_timeout: float = field(default=10.0, help="every worker must answer by then", unit="s", validator=gt(0))
    python: str | None = field(
        default=None, help="interpreter of the hosts' processes; null is the one that runs the worker"
    )
    _mesh: Any = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        for worker in self.workers:
            address(worker)

    def hosts(self) -> Sequence[Host] | None:
        if self.gpus_per_host is None and self.cpus_per_host is None:
            return None
        return [
            promised(name, cpus=self.cpus_per_host or 1, gpus=self.gpus_per_host or 0) for name in self._urls()
        ]

    async def open(self) -> Allocation:
        from forge_host.runtime.attach import attach

        urls = self._urls()
        self._mesh = await attach(urls, self.connect_timeout)
        return Allocation(
            mesh=self._mesh, names=tuple(urls), addresses=tuple(address(worker)[0] for worker in self.workers),
            python=self.python,
        )  # fmt: skip

    async def close(self) -> None:
        """Stop what this run left on the hosts; the workers go on and take the next run."""
        mesh, self._mesh = self._mesh, None
        if mesh is not None:
            await stop_mesh(mesh)

    def _urls(self) -> list[str]:
        return [f"tcp://{_bracketed(host)}:{port}" for host, port in map(address, self.workers)]


def address(text: str) -> tuple[str, int]:
    """Host and port of "host:port" or "tcp://host:port".

    Raises:
        UsageError: it is neither.
    """
    host, colon, port = text.removeprefix("tcp://").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536) or "://" in host:
        raise UsageError(f"worker address {text!r} is not host:port", where="launcher.workers")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine and no other."""
    try:
        return ipaddress.ip_address(socket.getaddrinfo(host, None)[0][4][0]).is_loopback
    except OSError:
        return False


async def stop_mesh(mesh: Any) -> None:
    """Stop everything on a host mesh; the workers stay. What does not stop in 10 s is stopped by its worker when this
    process ends, so a failure here is logged and hides no other."""

    async def stop() -> None:
        await mesh.stop()

    try:
        await asyncio.wait_for(stop(), CLOSE_TIMEOUT_S)
    except (TimeoutError, Exception) as error:  # noqa: BLE001 - a mesh with a process that never started raises too
        log.warning("the hosts' processes were not stopped in order", error=f"{type(error).__name__}: {error}"[:300])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
