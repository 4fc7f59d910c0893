"""One small process on every host that is not this one: says what the host has, and finds free ports on it.

It is the first process of a run on its host and checks the plugin lock as every process does, so another version of
a plugin fails the run there before a model is loaded.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import attrs
from monarch.actor import Actor, concurrent_endpoint

from forge_host.runtime.hosts import Host, this_machine


class HostAgent(Actor):
    """Spawned once a host, for the length of a run."""

    @concurrent_endpoint
    async def facts(self) -> Host:
        """This host; `address` is its own idea of where it is reached."""
        return attrs.evolve(this_machine(), address=own_address())

    @concurrent_endpoint
    async def free_port(self) -> int:
        """A TCP port that was free a moment ago on every interface, for a process group's rendezvous."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    @concurrent_endpoint
    async def missing(self, paths: Sequence[str]) -> list[str]:
        """Those of `paths` that do not exist here."""
        return [path for path in paths if not os.path.exists(path)]


def own_address() -> str:
    """The address this host's name stands for, its name when that is only known to itself."""
    name = socket.gethostname()
    try:
        found = socket.gethostbyname(name)
    except OSError:
        return name
    return name if found.startswith("127.") else found
