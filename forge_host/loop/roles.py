"""Starts the run's roles at once: trainer, generator, reward service, and the reference model if anything needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import attrs

from forge_host.config.schema import ServiceConfig
from forge_host.loop.placing import services_of
from forge_host.loop.reward_actor import RewardActor
from forge_host.plugins.building import load_target
from forge_host.runtime.context import RoleContext
from forge_host.runtime.handle import ActorHandle
from forge_host.runtime.placement import Place
from forge_host.runtime.service import Service
from forge_host.runtime.session import Session


@attrs.frozen(kw_only=True)
class Roles:
    """The running roles of one run."""

    trainer: ActorHandle
    generator: Service
    reward: Service
    ref_model: Service | None


@attrs.frozen(eq=False)
class RoleStarter:
    """Starts single roles. `context.role` is filled in for each.

    A component's class is built as `Actor(config, context)`; `Actor.environment(config, context)` gives the variables
    its processes start with.
    """

    session: Session
    host: Any
    context: RoleContext
    places: Mapping[str, Place]

    async def trainer(self) -> ActorHandle:
        cls, options, args, more = self._parts("trainer", self.context.plan.trainer)
        return await self.session.start_actor(cls, options, args, {}, **more)

    async def generator(self) -> Service:
        return await self._service("generator", self.context.plan.generator)

    async def ref_model(self) -> Service | None:
        """The trainer's component, frozen; None when nothing needs it, or the trainer is it without its adapters."""
        if not self.context.plan.needs_ref_model:
            return None
        return await self._service("ref_model", self.context.plan.trainer)

    async def reward(self) -> Service:
        here = attrs.evolve(self.context, role="reward")
        options = services_of(self.context.config, "reward")
        return await self.session.start_service(
            RewardActor, options, (here,), {}, role="reward", place=self.places["reward"], router=self._router(options)
        )

    async def _service(self, role: str, part: Any) -> Service:
        cls, options, args, more = self._parts(role, part)
        return await self.session.start_service(cls, options, args, {}, router=self._router(options), **more)

    def _router(self, options: ServiceConfig) -> Any:
        return self.host.build("router", options.router)

    def _parts(self, role: str, part: Any) -> tuple[Any, ServiceConfig, tuple[Any, ...], dict[str, Any]]:
        cls, config = load_target(self.host.find(part.kind, part.use.ref)), self.host.configure(part.kind, part.use)
        options, place = services_of(self.context.config, role), self.places[role]
        here = attrs.evolve(
            self.context,
            role=role,
            device=place.device,
            procs=options.procs,
            shares_device=any(place.devices & p.devices for p in self.places.values() if p.role != role),
        )
        more = {"role": role, "place": place, "environment": cls.environment(config, here)}
        return cls, options, (config, here), more


async def start_roles(session: Session, host: Any, context: RoleContext, places: Mapping[str, Place]) -> Roles:
    """Start and set up every role at once; the first that fails ends the start."""
    start = RoleStarter(session, host, context, places)
    async with asyncio.TaskGroup() as group:
        trainer = group.create_task(start.trainer())
        generator = group.create_task(start.generator())
        rewards = group.create_task(start.reward())
        ref = group.create_task(start.ref_model())
    return Roles(
        trainer=trainer.result(), generator=generator.result(), reward=rewards.result(), ref_model=ref.result()
    )
