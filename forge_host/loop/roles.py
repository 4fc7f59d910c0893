"""Starts the run's roles at once: trainer, generator, reward service, and the reference model if anything needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import attrs

from forge_host.config.schema import ServiceConfig
from forge_host.errors import UsageError
from forge_host.loop.reward_actor import RewardActor
from forge_host.plugins.building import load_target
from forge_host.runtime.context import RoleContext
from forge_host.runtime.handle import ActorHandle
from forge_host.runtime.placement import Place, place
from forge_host.runtime.service import Service
from forge_host.runtime.session import Session, num_gpus


@attrs.frozen(kw_only=True)
class Roles:
    """The running roles of one run."""

    trainer: ActorHandle
    generator: Service
    reward: Service
    ref_model: Service | None


def placement(config: Any, plan: Any) -> dict[str, Place]:
    """Devices of the roles the plan needs; the reward service never takes a GPU unless it is told to.

    Raises:
        UsageError: not enough GPUs, with the arithmetic.
    """
    services = {role: services_of(config, role) for role in plan.roles}
    if services["trainer"].num_replicas != 1:
        raise UsageError(
            f"services.trainer.num_replicas is {services['trainer'].num_replicas}",
            fix="a run has one trainer; set services.trainer.procs for more processes",
        )
    return place(services, num_gpus())


def services_of(config: Any, role: str) -> ServiceConfig:
    service: ServiceConfig = config.services.get(role, ServiceConfig())
    if role == "reward" and service.with_gpus is None:
        service = attrs.evolve(service, with_gpus=False)
    return service


async def start_roles(session: Session, host: Any, context: RoleContext, places: Mapping[str, Place]) -> Roles:
    """Start and set up every role; the first that fails ends the start.

    A component's class is built as `Actor(config, context)`; `Actor.environment(config, context)` gives the variables
    its processes start with.
    """
    plan = context.plan

    def parts(role: str, part: Any) -> tuple[Any, ...]:
        cls, config = load_target(host.find(part.kind, part.use.ref)), host.configure(part.kind, part.use)
        mine = {gpu for replica in places[role].gpus for gpu in replica}
        here = attrs.evolve(
            context,
            role=role,
            device=places[role].device,
            procs=services_of(context.config, role).procs,
            shares_device=any(mine & set(r) for p in places.values() if p.role != role for r in p.gpus),
        )
        options = services_of(context.config, role)
        env = cls.environment(config, here)
        return cls, options, (config, here), {}, {"role": role, "place": places[role], "environment": env}

    async def actor(role: str, part: Any) -> ActorHandle:
        cls, options, args, kwargs, more = parts(role, part)
        return await session.start_actor(cls, options, args, kwargs, **more)

    async def service(role: str, part: Any) -> Service:
        cls, options, args, kwargs, more = parts(role, part)
        return await session.start_service(cls, options, args, kwargs, **more)

    async def reward() -> Service:
        here = attrs.evolve(context, role="reward")
        options = services_of(context.config, "reward")
        return await session.start_service(RewardActor, options, (here,), {}, role="reward", place=places["reward"])

    async def nothing() -> None:
        return None

    async with asyncio.TaskGroup() as group:
        trainer = group.create_task(actor("trainer", plan.trainer))
        generator = group.create_task(service("generator", plan.generator))
        rewards = group.create_task(reward())
        needs_ref = plan.needs_ref_logprobs
        ref = group.create_task(service("ref_model", plan.trainer) if needs_ref else nothing())
    return Roles(
        trainer=trainer.result(), generator=generator.result(), reward=rewards.result(), ref_model=ref.result()
    )
