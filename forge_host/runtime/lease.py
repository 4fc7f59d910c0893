"""One replica of a service, held for several calls that belong together (a conversation, a group's grades).

    async with lease(service) as held:
        await held.handle.begin.call_one(...)
    held.problem                     # why it was lost on the way, else None
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import attrs

from forge_host.errors import RunError
from forge_host.runtime.handle import ActorDied, ActorHandle, Unanswered
from forge_host.runtime.service import Replica, Service


@attrs.define(eq=False)
class Lease:
    """The replica. `problem`, set inside or by its death or silence, has it replaced."""

    replica: Replica
    handle: ActorHandle
    problem: RunError | None = None

    @property
    def reason(self) -> str:
        """Why it was lost, for the record of what it was held for."""
        if isinstance(self.problem, ActorDied):
            return f"{self.handle.mesh.partition('-')[0]} process died: {self.handle.dead}"
        return str(self.problem)


@contextlib.asynccontextmanager
async def lease(service: Service) -> AsyncIterator[Lease]:
    """Hold a replica. Its death, or a call past its deadline, ends the block and restarts it; nothing is raised then.

    Raises:
        RunError: the service failed for good.
    """
    replica = await service.acquire()
    held = Lease(replica, replica.handle)
    try:
        yield held
    except Unanswered as error:
        if error.mesh not in (None, held.handle.mesh):
            raise  # another role's
        held.problem = error
    finally:
        if replica.handle is held.handle:
            service.release(replica)
    if held.problem is not None:
        await service.lost(replica, held.handle, held.problem)
