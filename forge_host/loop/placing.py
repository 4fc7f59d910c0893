"""Where the roles of a run go: the planner's answer for a configuration and the hosts there are. Light.

    placement(config, plan, [this_machine()])["trainer"].spots
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from forge_host.config.schema import ServiceConfig
from forge_host.errors import UsageError
from forge_host.runtime.hosts import Host
from forge_host.runtime.placement import Place, place


def placement(
    config: Any, plan: Any, hosts: Sequence[Host], roles: Iterable[str] | None = None, grow: str | None = None
) -> dict[str, Place]:
    """Hosts, devices and cores of `roles` (those the plan needs); the reward service never takes a GPU unless it is
    told to.

    Raises:
        UsageError: it does not fit, with the arithmetic and what to change.
    """
    services = {role: services_of(config, role) for role in roles or plan.roles}
    if "trainer" in services and services["trainer"].num_replicas != 1:
        raise UsageError(
            f"services.trainer.num_replicas is {services['trainer'].num_replicas}",
            fix="a run has one trainer; set services.trainer.procs for more processes",
        )
    return place(
        services,
        hosts,
        asynchronous=config.training.max_policy_age > 0 and not plan.offline,
        pin_cores=config.placement.pin_cores,
        grow=grow,
    )


def services_of(config: Any, role: str) -> ServiceConfig:
    """The processes that the configuration gives a role."""
    service: ServiceConfig = config.services.get(role, ServiceConfig())
    if role == "reward" and service.with_gpus is None:
        service = attrs.evolve(service, with_gpus=False)
    return service
