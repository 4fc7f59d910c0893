"""Where processes run. A launcher gives the Monarch host mesh that a role's processes are spawned on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from monarch.actor import HostMesh


class Launcher(Protocol):
    """`hosts` gives the mesh for a role; `close` gives the hosts back."""

    def hosts(self, role: str) -> HostMesh: ...

    async def close(self) -> None: ...


@attrs.frozen
class LocalLauncher:
    """Everything on this host, on loopback."""

    def hosts(self, role: str) -> HostMesh:
        from monarch.actor import this_host

        return this_host()

    async def close(self) -> None:
        """Nothing to give back: the processes stop with their actors."""
