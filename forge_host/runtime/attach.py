"""Connecting to Monarch workers that run already, and saying which one does not answer and why.

    mesh = await attach(["tcp://node1:22222", "tcp://node2:22222"], timeout_s=10)
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from monarch._rust_bindings.monarch_hyperactor.channel import ChannelTransport
from monarch._rust_bindings.monarch_hyperactor.config import configure
from monarch.actor import attach_to_workers

from forge_host.errors import RunError
from forge_host.runtime.launch import address, is_loopback

PROBE_S = 2.0


async def attach(urls: Sequence[str], timeout_s: float) -> Any:
    """The host mesh of the workers at `urls`, in their order, all of them connected.

    Raises:
        RunError: one cannot be reached, or does not speak this Monarch; it is named.
    """
    listen_for([address(url)[0] for url in urls])
    await asyncio.gather(*(_reachable(url, timeout_s) for url in urls))
    mesh = attach_to_workers(ca="trust_all_connections", workers=list(urls), name="hosts")
    if await answers(mesh, timeout_s):
        return mesh
    for url in urls:
        alone = attach_to_workers(ca="trust_all_connections", workers=[url], name="probe")
        if not await answers(alone, PROBE_S):
            raise RunError(
                f"what listens at {url} does not answer as a Monarch worker of version {version('torchmonarch')} "
                f"(waited {timeout_s:g} s)",
                fix="start `forge-host worker` there with the same torchmonarch, or raise launcher.connect_timeout",
            )
    raise RunError(f"the workers did not connect within {timeout_s:g} s", fix="raise launcher.connect_timeout")


def listen_for(names: Sequence[str]) -> None:
    """Choose where this process listens for what the hosts `names` send back: on loopback when all of them are this
    machine, else under this machine's name.

    Raises:
        RunError: that name means this machine only on this machine itself.
    """
    if all(map(is_loopback, names)):
        configure(default_transport=ChannelTransport.TcpWithLocalhost)
        return
    own = socket.gethostname()
    if is_loopback(own):
        raise RunError(
            f"this machine's name {own} stands for a loopback address here, so that the hosts cannot reach it",
            fix="give the name its network address in DNS or /etc/hosts",
        )
    configure(default_transport=ChannelTransport.TcpWithHostname)


async def answers(mesh: Any, timeout_s: float) -> bool:
    """Whether every worker of a host mesh connects within `timeout_s` seconds."""

    async def initialized() -> None:
        await mesh.initialized

    try:
        await asyncio.wait_for(initialized(), timeout_s)
    except TimeoutError:
        return False
    return True


async def _reachable(url: str, timeout_s: float) -> None:
    """Wait until something listens at `url`: a worker may still be starting."""
    host, port = address(url)
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    while True:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), max(end - loop.time(), 0.1))
        except (OSError, TimeoutError) as error:
            if loop.time() >= end - 0.2:
                reason = getattr(error, "strerror", None) or "no answer"
                raise RunError(
                    f"the worker at {url} cannot be reached ({reason}; tried for {timeout_s:g} s)",
                    fix="start `forge-host worker` there, and check the address and the firewall",
                ) from None
            await asyncio.sleep(0.2)
        else:
            writer.close()
            return
