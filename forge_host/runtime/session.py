"""The runtime of one run: starts actors and services on a launcher, and leaves no process behind.

    async with Session(log_dir="runs/x/logs") as session:
        trainer = await session.start_actor(Trainer, ServiceConfig(procs=2), (config, context), {}, role="trainer")

Outside `async with`, `current_session()` makes one for this host, so `await MyActor.as_actor()` works in a script.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import monarch.actor
import structlog
from monarch._rust_bindings.monarch_hyperactor.host_mesh import BootstrapCommand
from monarch.actor import default_bootstrap_cmd

from forge_host.config.schema import MonarchConfig, ServiceConfig
from forge_host.errors import RunError
from forge_host.runtime.actor import ForgeActor
from forge_host.runtime.handle import ActorHandle, process_name
from forge_host.runtime.launch import Launcher, LocalLauncher
from forge_host.runtime.placement import Place
from forge_host.runtime.process import bootstrap, free_port, rank_environment
from forge_host.runtime.service import Service

log = structlog.get_logger()
_current: Session | None = None


class Session:
    """Owns every process that it started.

    Args:
        launcher: where processes run; this host by default.
        log_dir: folder of the processes' logs; None leaves their output where it goes.
        monarch: deadlines.
        files: one-file modules (`file.py:Attr` references) that every process imports first.
    """

    def __init__(
        self,
        *,
        launcher: Launcher | None = None,
        log_dir: str | None = None,
        monarch: MonarchConfig | None = None,
        files: Sequence[str] = (),
    ) -> None:
        self.launcher: Launcher = launcher or LocalLauncher()
        self.log_dir, self.files = log_dir, tuple(files)
        self.monarch = monarch or MonarchConfig()
        self._handles: list[ActorHandle] = []
        self._counter = itertools.count()

    async def __aenter__(self) -> Session:
        global _current
        # A death that no call waits for would exit this process; calls and health checks report deaths by name instead.
        _patch_fault_hook()
        self._previous, _current = _current, self
        return self

    async def __aexit__(self, *exc: object) -> None:
        global _current
        _current = self._previous
        await self.close()

    async def close(self) -> None:
        """Stop every process, at once and within `shutdown_timeout`."""
        handles, self._handles = self._handles, []
        await asyncio.gather(*(h.shutdown(self.monarch.shutdown_timeout) for h in handles))
        await self.launcher.close()

    @property
    def handles(self) -> list[ActorHandle]:
        """What is running, in the order of its start."""
        return [handle for handle in self._handles if not handle.closed]

    def kill(self) -> None:
        """Kill every process of this host at once."""
        for handle in self._handles:
            handle.kill()

    async def start_actor(
        self,
        cls: type[ForgeActor],
        config: ServiceConfig,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        role: str | None = None,
        place: Place | None = None,
        replica: int = 0,
        restart: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> ActorHandle:
        """Spawn one replica's processes, construct the actor in each, and wait for `setup`.

        Raises:
            ForgeError: the actor's own, from its constructor or `setup`.
            RunError: a process died or was not ready within `monarch.startup_timeout`.
        """
        role = role or config.mesh_name or cls.__name__.lower()
        mesh = f"{config.mesh_name or role}-{replica}" + (f"-r{restart}" if restart else "")
        if role != (config.mesh_name or role) or mesh in (h.mesh for h in self._handles):
            mesh = f"{mesh}-{next(self._counter)}"
        procs = 1 if getattr(cls, "single_process", False) else config.procs
        gpus = place.gpus[replica] if place is not None else ()
        port = free_port()

        def command(point: Any) -> BootstrapCommand:
            base = default_bootstrap_cmd()
            visible = gpus if procs == 1 else gpus[point.rank : point.rank + 1]
            env = rank_environment(int(point.rank), procs, port, dict(environment or {}))
            if place is not None:
                env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, visible))
                env["LOCAL_RANK"] = "0"
            return BootstrapCommand(base.program, base.arg0, list(base.args), {**base.env, **env})

        proc_mesh = self.launcher.hosts(role).spawn_procs(
            per_host={"procs": procs},
            name=process_name(mesh),
            bootstrap=bootstrap(self.log_dir, mesh, self.files, role),
            bootstrap_command=command,
        )
        actor = proc_mesh.spawn(process_name(mesh), cls, *args, **kwargs)
        handle = ActorHandle(mesh, actor, proc_mesh, procs, self.monarch.call_timeout, self.log_dir)
        self._handles = [h for h in self._handles if not h.closed] + [handle]
        try:
            found = await handle.health.call(timeout_s=self.monarch.startup_timeout)
            handle.ranks = [(process["host"], process["pid"]) for process in found]
            log.info("processes started", mesh=mesh, for_role=role, ranks=handle.ranks)
            await handle.setup.call(timeout_s=self.monarch.startup_timeout)
        except RunError:
            await handle.shutdown(timeout_s=2.0)
            raise
        return handle

    async def start_service(
        self,
        cls: type[ForgeActor],
        config: ServiceConfig,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        role: str | None = None,
        place: Place | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Service:
        """Start `config.num_replicas` replicas behind one service."""

        async def start(replica: int, restart: int) -> ActorHandle:
            return await self.start_actor(
                cls,
                config,
                args,
                kwargs,
                role=role,
                place=place,
                replica=replica,
                restart=restart,
                environment=environment,
            )

        service = Service(role or config.mesh_name or cls.__name__.lower(), config, start)
        await service.start()
        return service


def current_session() -> Session:
    """The session of the enclosing `async with`, else one for this host that lives as long as this process."""
    global _current
    if _current is None:
        _patch_fault_hook()
        _current = Session()
    return _current


def num_gpus() -> int:
    """CUDA devices that this process may use, without initialising CUDA."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([v for v in visible.split(",") if v.strip() and v.strip() != "-1"])
    import torch

    return torch.cuda.device_count() if torch.backends.cuda.is_built() else 0


def _patch_fault_hook() -> None:
    def note(failure: Any) -> None:
        log.info("a remote process ended", report=failure.report() if hasattr(failure, "report") else str(failure))

    monarch.actor.unhandled_fault_hook = note


__all__ = ["Session", "current_session", "num_gpus"]
