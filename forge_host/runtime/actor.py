"""`ForgeActor`: a Monarch actor that knows how to be started, as one actor or as a service of replicas.

    class Echo(ForgeActor):
        @endpoint
        async def say(self, word: str) -> str:
            return word

    echo = await Echo.options(procs=1, num_replicas=2).as_service()
    await echo.say.route("hi")
    await echo.shutdown()

`setup` runs once in every process before the first call; override it as an endpoint. Use Monarch's
`concurrent_endpoint` for methods that may overlap: calls of a plain `endpoint` run one after another.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import attrs
from monarch.actor import Actor, concurrent_endpoint, current_rank, endpoint

from forge_host.config.schema import ServiceConfig
from forge_host.errors import UsageError
from forge_host.plugins.suggest import did_you_mean, listing
from forge_host.runtime.hosts import identity
from forge_host.types import Use

if TYPE_CHECKING:
    from forge_host.runtime.handle import ActorHandle
    from forge_host.runtime.service import Service


T = TypeVar("T")


class ForgeActor(Actor):
    """Base of every role. Class attributes are the defaults that `options` overrides."""

    #: True when the actor is one process whatever `procs` is, which then counts its devices (vLLM has its own workers).
    single_process: ClassVar[bool] = False

    _worker: ThreadPoolExecutor | None = None
    procs: int = 1
    hosts: int | None = None
    with_gpus: bool | None = False
    num_replicas: int = 1
    mesh_name: str | None = None
    colocate_with: str | None = None

    @endpoint
    async def setup(self) -> None:
        """Prepare this process: load a model, open a transport. Called once, before anything else."""

    @concurrent_endpoint
    async def health(self) -> dict[str, Any]:
        """This process's rank, pid, host and machine; a replica that does not answer in time is replaced."""
        return {
            "rank": int(current_rank().rank), "pid": os.getpid(), "host": socket.gethostname(), "machine": identity(),
        }  # fmt: skip

    async def work(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run what takes long in this actor's work thread, so that the event loop answers health checks meanwhile.

        There is one such thread: calls run one after another in the order they came, and what a thread keeps (CUDA
        device, autograd mode, process groups' order) stays. Call it from a `concurrent_endpoint`; a plain `endpoint`
        holds up the messages behind it all the same.
        """
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="work")
        return await asyncio.get_running_loop().run_in_executor(self._worker, partial(function, *args, **kwargs))

    @staticmethod
    def environment(config: Any, context: Any) -> dict[str, str]:
        """Environment variables the process must have before Python starts."""
        return {}

    @classmethod
    def options(cls, **options: Any) -> Launch:
        """Choose processes: procs, hosts, with_gpus, num_replicas, mesh_name, colocate_with, router, ...

        Every key of `services.ROLE` in a configuration (`ServiceConfig`). `colocate_with` names a running actor or
        service by its `mesh_name`, or by its class's name in lower case.

        Raises:
            UsageError: an option that there is none of.
        """
        known = attrs.fields_dict(ServiceConfig)
        for name in options:
            if name not in known:
                raise UsageError(
                    f"{cls.__name__}.options has no `{name}`",
                    fix=did_you_mean(name, known) or f"there are {listing(known)}",
                )
        if isinstance(options.get("router"), str):
            options["router"] = Use(options["router"])
        defaults = {
            name: getattr(cls, name)
            for name in ("procs", "hosts", "with_gpus", "num_replicas", "mesh_name", "colocate_with")
        }
        return Launch(cls, ServiceConfig(**{**defaults, **options}))

    @classmethod
    async def as_actor(cls, *args: Any, **kwargs: Any) -> ActorHandle:
        """Start one replica with the class's own options and return its handle, set up."""
        return await cls.options().as_actor(*args, **kwargs)

    @classmethod
    async def as_service(cls, *args: Any, **kwargs: Any) -> Service:
        """Start `num_replicas` replicas behind one service, set up."""
        return await cls.options().as_service(*args, **kwargs)

    @classmethod
    async def launch(cls, *args: Any, **kwargs: Any) -> ActorHandle:
        """torchforge's name of `as_actor`."""
        return await cls.as_actor(*args, **kwargs)

    @classmethod
    async def shutdown(cls, handle: ActorHandle | Service) -> None:
        """Stop an actor or service and its processes."""
        await handle.shutdown()


@attrs.frozen
class Launch:
    """An actor class with its options; `as_actor(...)` and `as_service(...)` take the constructor's arguments."""

    cls: type[ForgeActor]
    config: ServiceConfig

    async def as_actor(self, *args: Any, **kwargs: Any) -> ActorHandle:
        from forge_host.runtime.session import current_session

        return await current_session().start_actor(self.cls, self.config, args, kwargs)

    async def as_service(self, *args: Any, **kwargs: Any) -> Service:
        from forge_host.runtime.session import current_session

        return await current_session().start_service(self.cls, self.config, args, kwargs)
