"""The runtime of one run: starts actors and services on a launcher, and leaves no process behind.

    async with Session(log_dir="runs/x/logs") as session:
        trainer = await session.start_actor(Trainer, ServiceConfig(procs=2), (config, context), {}, role="trainer")

Outside `async with`, `current_session()` makes one for this host, so `await MyActor.as_actor()` works in a script.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import monarch.actor
import structlog

from forge_host.api import Launcher, Router
from forge_host.config.schema import MonarchConfig, ServiceConfig
from forge_host.errors import UsageError
from forge_host.runtime.actor import ForgeActor
from forge_host.runtime.cluster import Cluster
from forge_host.runtime.handle import ActorHandle, process_name
from forge_host.runtime.holding import Hold, beside
from forge_host.runtime.launch import LocalLauncher
from forge_host.runtime.placement import Place
from forge_host.runtime.process import bootstrap, rank_environment
from forge_host.runtime.routers import builtin_router
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
        lock: text of the run's plugins.lock, which every process compares its plugins with before anything else.
    """

    def __init__(
        self,
        *,
        launcher: Launcher | None = None,
        log_dir: str | None = None,
        monarch: MonarchConfig | None = None,
        files: Sequence[str] = (),
        lock: str = "",
    ) -> None:
        self.launcher: Launcher = launcher or LocalLauncher()
        self.log_dir, self.files, self.lock = log_dir, tuple(files), lock
        self.cluster: Cluster | None = None
        self.monarch = monarch or MonarchConfig()
        self._handles: list[ActorHandle] = []
        self._services: list[Service] = []
        self._held: dict[str, Hold] = {}  # of what was started without a place, by role
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

    async def open(self) -> Cluster:
        """Get the launcher's hosts, ask them what they have and compare their plugins; once, later calls are free.

        Raises:
            RunError: there are no hosts to be had, or one does not answer.
            PluginError: a host has another version of one of the run's plugins; it names the host and the versions.
        """
        if self.cluster is None:
            allocation = await self.launcher.open()
            self.cluster = await Cluster.of(allocation, self.lock, self.files, self.monarch.startup_timeout)
        return self.cluster

    async def close(self) -> None:
        """Stop every process, at once and within `shutdown_timeout`, and give the hosts back."""
        for service in self._services:  # else one would start again what is stopped here
            service.close()
        handles, self._handles = self._handles, []
        try:
            await asyncio.gather(*(h.shutdown(self.monarch.shutdown_timeout) for h in handles))
        finally:
            self.cluster = None
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

        Without `place` it gets one beside what runs already, as `config` asks.

        Raises:
            UsageError: what `config` asks for is not there, or held by others.
            ForgeError: the actor's own, from its constructor or `setup`.
            RunError: a process died or was not ready within `monarch.startup_timeout`.
        """
        cluster = await self.open()
        role = role or config.mesh_name or cls.__name__.lower()
        if place is None:
            with self._hold(role, attrs.evolve(config, num_replicas=1), cluster) as hold:
                hold.owner = await self.start_actor(
                    cls, config, args, kwargs, role=role, place=hold.place, environment=environment
                )
                return hold.owner
        mesh = f"{config.mesh_name or role}-{replica}" + (f"-r{restart}" if restart else "")
        if role != (config.mesh_name or role) or mesh in (h.mesh for h in self._handles):
            mesh = f"{mesh}-{next(self._counter)}"
        spot = place.spots[replica]
        procs = 1 if getattr(cls, "single_process", False) else config.procs
        if procs < len(spot.hosts):
            raise UsageError(
                f"a replica of {role} is one process and cannot span {len(spot.hosts)} hosts",
                fix=f"set services.{role}.hosts: 1 and procs to at most the GPUs of a host",
            )
        per_host = procs // len(spot.hosts)
        master = await cluster.rendezvous(spot.hosts)

        def variables(rank: int) -> dict[str, str]:
            env = rank_environment(rank, procs, per_host, master, dict(environment or {}))
            gpus = cluster.gpu_names(spot, rank // per_host)
            visible = gpus if procs == 1 else gpus[rank % per_host :][:1]
            env |= {"CUDA_VISIBLE_DEVICES": ",".join(visible), "LOCAL_RANK": "0"}
            if spot.cores:
                threads = int(env.get("OMP_NUM_THREADS") or len(spot.cores))
                env["OMP_NUM_THREADS"] = str(min(threads, max(1, len(spot.cores) // per_host)))
            return env

        proc_mesh = cluster.spawn(
            process_name(mesh),
            spot,
            per_host,
            bootstrap(self.log_dir, mesh, self.files, role, self.lock, config.actor_memory_mb),
            variables,
        )
        actor = proc_mesh.spawn(process_name(mesh), cls, *args, **kwargs)
        handle = ActorHandle(
            mesh, actor, proc_mesh, procs, self.monarch.call_timeout, self.log_dir,
            memory=(f"services.{role}.actor_memory_mb", config.actor_memory_mb) if config.actor_memory_mb else None,
        )  # fmt: skip
        self._handles = [h for h in self._handles if not h.closed] + [handle]
        try:
            await handle.start(*_deadline(role, config, self.monarch))
        except BaseException:  # cancelled too, when another replica of its service cannot start; raised again
            await handle.shutdown(timeout_s=2.0)
            raise
        log.info("processes started", mesh=mesh, for_role=role, ranks=handle.ranks)
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
        router: Router | None = None,
    ) -> Service:
        """Start `config.num_replicas` replicas behind one service; without `router`, `config.router` is a built-in.

        Without `place` they get one beside what runs already, as `config` asks.
        """
        role = role or config.mesh_name or cls.__name__.lower()
        if place is None:
            with self._hold(role, config, await self.open()) as hold:
                hold.owner = await self.start_service(
                    cls, config, args, kwargs, role=role, place=hold.place, environment=environment, router=router
                )
                return hold.owner

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

        router = router or builtin_router(config.router)
        service = Service(role, config, start, router)
        self._services.append(service)
        await service.start()
        return service

    @contextlib.contextmanager
    def _hold(self, role: str, config: ServiceConfig, cluster: Cluster) -> Iterator[Hold]:
        """Devices for what starts inside, which becomes the hold's owner; given back when that fails or is closed."""
        self._held = {name: hold for name, hold in self._held.items() if hold.live}
        name = role if role not in self._held else f"{role}-{next(self._counter)}"
        hold = self._held[name] = Hold(config, beside(name, config, cluster.hosts, self._held))
        try:
            yield hold
        finally:
            if hold.owner is None:
                del self._held[name]


def current_session() -> Session:
    """The session of the enclosing `async with`, else one for this host that lives as long as this process."""
    global _current
    if _current is None:
        _patch_fault_hook()
        _current = Session()
    return _current


def _deadline(role: str, config: ServiceConfig, monarch: MonarchConfig) -> tuple[float, str]:
    """When a replica must be ready, seconds, and the key that says so."""
    if config.startup_timeout is not None:
        return config.startup_timeout, f"services.{role}.startup_timeout"
    return monarch.startup_timeout, "monarch.startup_timeout"


def _patch_fault_hook() -> None:
    def note(failure: Any) -> None:
        log.info("a remote process ended", report=failure.report() if hasattr(failure, "report") else str(failure))

    monarch.actor.unhandled_fault_hook = note


__all__ = ["Session", "current_session"]
