"""Devices of actors that are started one after the other, without a plan of the whole run.

    held = {"trainer": Hold(ServiceConfig(with_gpus=True), place_of_trainer, handle)}
    beside("generator", ServiceConfig(with_gpus=True), [this_machine()], held).spots

What runs already stays where it is; a newcomer gets GPUs that nobody holds, or those of the role it is colocated with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from forge_host.config.schema import ServiceConfig
from forge_host.errors import UsageError
from forge_host.plugins.suggest import listing
from forge_host.runtime.hosts import Host
from forge_host.runtime.placement import Place, check_hosts, colocate, on_cpu, take, too_many, wants


@attrs.define(eq=False)
class Hold:
    """What an actor or service asked for and got; `owner` (its ActorHandle or Service) is None while it starts."""

    service: ServiceConfig
    place: Place
    owner: Any = None

    @property
    def live(self) -> bool:
        return self.owner is None or not self.owner.closed


def beside(role: str, service: ServiceConfig, hosts: Sequence[Host], held: Mapping[str, Hold]) -> Place:
    """A place for one more role.

    Raises:
        UsageError: it does not fit beside the others, or is colocated with what does not run.
    """
    check_hosts(role, service, len(hosts))
    other = service.colocate_with
    if other is not None and other not in held:
        running = f"running: {listing(sorted(held))}" if held else "nothing runs yet"
        raise UsageError(f"{role}: colocate_with names {other!r}, which does not run", fix=f"start it first; {running}")
    places = {name: hold.place for name, hold in held.items()}
    services = {**{name: hold.service for name, hold in held.items()}, role: service}
    if other is not None:
        on_gpus = {name: place for name, place in places.items() if place.device == "cuda"}
        colocate(role, service, services, on_gpus, hosts)
        if role in on_gpus:
            return on_gpus[role]
    elif wants(service, hosts):
        spots = take(service, _free(role, service, hosts, places))
        if spots is not None:
            return Place(role, "cuda", spots)
        if service.with_gpus or service.gpus is not None:
            holding = {name for name, place in places.items() if place.device == "cuda" and not place.shares_with}
            firm = {name: s for name, s in services.items() if name == role or name in holding}
            some = any(host.gpus for host in hosts)
            ways = "shut one of them down, lower procs, or share one's GPUs with colocate_with"
            raise UsageError(too_many(firm, hosts), fix=ways if some else "leave with_gpus and gpus out")
    load = [0] * len(hosts)
    for name, place in places.items():
        for spot in place.spots:
            for host in spot.hosts:
                load[host] += services[name].procs // len(spot.hosts)
    on_cpu(role, services, places, load, set())
    return places[role]


def _free(
    role: str, service: ServiceConfig, hosts: Sequence[Host], places: Mapping[str, Place]
) -> list[list[int]]:
    """GPUs of each host that nobody holds, or those that `service` names."""
    taken = {device: name for name, place in places.items() for device in place.devices}
    if service.gpus is None:
        return [[g for g in range(len(host.gpus)) if (h, g) not in taken] for h, host in enumerate(hosts)]
    for gpu in service.gpus:
        if any(gpu >= len(host.gpus) for host in hosts):
            there = min(len(host.gpus) for host in hosts)
            raise UsageError(f"{role} names GPU {gpu}, and a host has {there}", fix="name GPUs that are there")
        owner = next((name for (_, g), name in taken.items() if g == gpu), None)
        if owner is not None:
            raise UsageError(
                f"{role} names GPU {gpu}, which {owner} holds",
                fix=f"share it with colocate_with={owner!r} in place of gpus, or name another GPU",
            )
    return [list(service.gpus) for _ in hosts]
