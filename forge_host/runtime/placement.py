"""Which role runs on which hosts, GPUs and cores. Pure: decides from numbers, starts nothing.

    place({"trainer": ServiceConfig(with_gpus=True), "generator": ServiceConfig(with_gpus=True)}, [this_machine()])
    # UsageError: Insufficient GPU resources: 2 GPUs asked for (generator 1 x 1, trainer 1 x 1), 1 there; set ...

A replica takes one GPU a process, on one host where it fits and else on as few hosts next to each other as it needs.
Roles on the CPU go where fewest processes are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from forge_host.config.schema import ServiceConfig
from forge_host.errors import UsageError
from forge_host.runtime.cores import pinned
from forge_host.runtime.hosts import Host

Free = list[list[int]]


class DoesNotFit(UsageError):
    """More GPUs, or another shape of them, than there are."""


@attrs.frozen
class Spot:
    """Where one replica runs.

    Args:
        hosts: indices of neighbouring hosts.
        gpus: for each of them the indices of its GPUs, one a process; () on the CPU.
        cores: that its processes are bound to, of its only host; () leaves them free.
    """

    hosts: tuple[int, ...]
    gpus: tuple[tuple[int, ...], ...] = ()
    cores: tuple[int, ...] = ()


@attrs.frozen
class Place:
    """One role's devices ("cuda" or "cpu") and the spot of each replica."""

    role: str
    device: str
    spots: tuple[Spot, ...]
    shares_with: str | None = None

    @property
    def devices(self) -> frozenset[tuple[int, int]]:
        """Every (host, GPU) of the role."""
        return frozenset(
            (host, gpu) for spot in self.spots for host, ids in zip(spot.hosts, spot.gpus, strict=False) for gpu in ids
        )

    @property
    def hosts(self) -> frozenset[int]:
        """Every host of the role."""
        return frozenset(host for spot in self.spots for host in spot.hosts)


def place(
    services: Mapping[str, ServiceConfig],
    hosts: Sequence[Host],
    *,
    asynchronous: bool = False,
    pin_cores: str = "auto",
    grow: str | None = None,
) -> dict[str, Place]:
    """Assign hosts, disjoint GPUs and (on the CPU) cores to the roles.

    `with_gpus` true must have GPUs, false must not, None takes GPUs when there are enough for every such role, else
    shares the trainer's when there is one, else runs on the CPU. `colocate_with` shares another role's GPUs or host.

    Args:
        asynchronous: roles work at the same time, so that cores shared between them are fought over.
        pin_cores: "auto" binds the roles on the CPU to cores of their own when they work at the same time and there
            are enough, "always", or "never".
        grow: the key that adds hosts (`launcher.nodes`), if there is one.

    Raises:
        UsageError: it cannot be, with the arithmetic and the two cheapest changes that make it fit.
    """
    try:
        places = _assign(services, hosts)
    except DoesNotFit as error:
        from forge_host.runtime.remedies import remedies

        ways = remedies(services, hosts, lambda s, h: _fits(s, h), grow)
        raise UsageError(error.message, fix=" or ".join(ways) or error.fix) from None
    return pinned(places, services, hosts, pin_cores, asynchronous)


def _fits(services: Mapping[str, ServiceConfig], hosts: Sequence[Host]) -> bool:
    try:
        _assign(services, hosts)
    except UsageError:
        return False
    return True


def _assign(services: Mapping[str, ServiceConfig], hosts: Sequence[Host]) -> dict[str, Place]:
    for role, service in services.items():
        check_hosts(role, service, len(hosts))
    hungry = {r: s for r, s in services.items() if wants(s, hosts) and s.colocate_with is None}
    free: Free = [list(range(len(host.gpus))) for host in hosts]
    places: dict[str, Place] = {}
    _reserve(hungry, free, hosts)
    firm = {role: service for role, service in hungry.items() if service.with_gpus or service.gpus is not None}
    # The roles that may also do without come last, so that they take what is left.
    order = sorted(hungry.items(), key=lambda item: (item[0] not in firm, item[0] != "trainer", item[0]))
    for role, service in order:
        spots = take(service, free) if service.gpus is None else take(service, _only(service.gpus, hosts))
        shares = None
        if spots is None and role in firm:
            raise DoesNotFit(too_many(firm, hosts), fix="ask for fewer")
        if spots is None and "trainer" in places:
            spots, shares = take(service, _pool(places["trainer"], hosts)), "trainer"
        if spots is not None:
            places[role] = Place(role, "cuda", spots, shares)
    for role, service in services.items():
        if service.colocate_with is not None:
            colocate(role, service, services, places, hosts)
    load = [0] * len(hosts)
    for role in sorted(set(services) - set(places), key=lambda role: (role != "trainer", role == "reward", role)):
        on_cpu(role, services, places, load, set())
    return {role: places[role] for role in services}


def check_hosts(role: str, service: ServiceConfig, there: int) -> None:
    """Raises UsageError: more hosts than there are, or processes that cannot be divided over them."""
    asked = service.hosts or 1
    if asked > there:
        raise DoesNotFit(
            f"services.{role}.hosts is {asked} and the launcher has {there} host{'s' * (there > 1)}",
            fix=f"set services.{role}.hosts: {there}",
        )
    if service.procs % asked:
        low = max(asked, service.procs - service.procs % asked)
        fits = f"{low} or {low + asked}" if low < service.procs else str(low)
        raise UsageError(
            f"services.{role}.procs {service.procs} cannot be divided over services.{role}.hosts {asked}",
            fix=f"set services.{role}.procs: {fits}",
        )


def _reserve(hungry: Mapping[str, ServiceConfig], free: Free, hosts: Sequence[Host]) -> None:
    """Take the GPUs that roles name out of what the others may have.

    Raises:
        UsageError: there is no such GPU, or two roles name the same one.
    """
    owner: dict[int, str] = {}
    for role, service in hungry.items():
        for gpu in service.gpus or ():
            there = min(len(host.gpus) for host in hosts)
            if gpu >= there:
                ids = f"0 to {there - 1}" if there else "none"
                raise UsageError(
                    f"services.{role}.gpus names GPU {gpu}, and a host has {ids}", fix="name GPUs that are there"
                )
            if gpu in owner:
                raise UsageError(
                    f"services.{owner[gpu]}.gpus and services.{role}.gpus both name GPU {gpu}",
                    fix=f"set services.{role}.colocate_with: {owner[gpu]} in place of its gpus, or name another GPU",
                )
            owner[gpu] = role
    for left in free:
        left[:] = [gpu for gpu in left if gpu not in owner]


def _only(gpus: Iterable[int], hosts: Sequence[Host]) -> Free:
    return [list(gpus) for _ in hosts]


def _pool(place: Place, hosts: Sequence[Host]) -> Free:
    return [sorted(gpu for h, gpu in place.devices if h == host) for host in range(len(hosts))]


def take(service: ServiceConfig, free: Free) -> tuple[Spot, ...] | None:
    """Spots for every replica, taken out of `free`; None, and `free` as it was, when they do not fit."""
    left = [list(ids) for ids in free]
    spots = []
    for _ in range(service.num_replicas):
        spot = _spot(service, left)
        if spot is None:
            return None
        spots.append(spot)
    free[:] = left
    return tuple(spots)


def _spot(service: ServiceConfig, free: Free) -> Spot | None:
    for count in [service.hosts] if service.hosts else range(1, len(free) + 1):
        each, rest = divmod(service.procs, count)
        if rest:
            continue
        for first in range(len(free) - count + 1):
            chosen = range(first, first + count)
            if all(len(free[host]) >= each for host in chosen):
                return Spot(tuple(chosen), tuple(tuple(free[host].pop(0) for _ in range(each)) for host in chosen))
    return None


def colocate(
    role: str, service: ServiceConfig, services: Mapping[str, ServiceConfig], places: dict[str, Place],
    hosts: Sequence[Host],
) -> None:  # fmt: skip
    """Add the GPUs that a role shares to `places`, which has those of roles on GPUs only; nothing when on the CPU."""
    other = str(service.colocate_with)
    if other not in services or services[other].colocate_with is not None:
        own = [name for name, s in services.items() if name != role and s.colocate_with is None]
        raise UsageError(
            f"services.{role}.colocate_with names {other!r}",
            fix=f"name a role that has devices of its own: {', '.join(sorted(own)) or 'none here'}",
        )
    if service.gpus is not None:
        raise UsageError(
            f"services.{role} has both colocate_with and gpus", fix=f"drop its gpus; it takes those of {other}"
        )
    if other not in places or service.with_gpus is False:
        if service.with_gpus:
            raise DoesNotFit(
                f"{role} needs {_count(service)} GPUs but shares the devices of {other}, which has none",
                fix=f"set services.{role}.with_gpus: null",
            )
        return
    spots = take(service, _pool(places[other], hosts))
    if spots is None:
        raise UsageError(
            f"{role} needs {_count(service)} GPUs but shares the {len(places[other].devices)} of {other}",
            fix=f"lower services.{role}.procs or num_replicas",
        )
    places[role] = Place(role, "cuda", spots, other)


def on_cpu(
    role: str, services: Mapping[str, ServiceConfig], places: dict[str, Place], load: list[int], seen: set[str]
) -> None:
    """Each replica on the hosts with the fewest processes, or where the role it is colocated with is."""
    service = services[role]
    if role in places:
        return
    other = service.colocate_with
    if other is not None and other not in seen:
        on_cpu(other, services, places, load, seen | {role})
    spots = []
    for replica in range(service.num_replicas):
        count = service.hosts or 1
        if other is not None:
            theirs = places[other].spots
            chosen = theirs[replica % len(theirs)].hosts[:count]
        else:
            first = min(range(len(load) - count + 1), key=lambda h: (max(load[h : h + count]), h))
            chosen = tuple(range(first, first + count))
        for host in chosen:
            load[host] += service.procs // len(chosen)
        spots.append(Spot(chosen))
    places[role] = Place(role, "cpu", tuple(spots), other)


def wants(service: ServiceConfig, hosts: Sequence[Host]) -> bool:
    """Whether it takes GPUs where it can."""
    if service.gpus is not None:
        return True
    return bool(service.with_gpus) or (service.with_gpus is None and any(host.gpus for host in hosts))


def _count(service: ServiceConfig) -> int:
    return service.procs * service.num_replicas


def too_many(firm: Mapping[str, ServiceConfig], hosts: Sequence[Host]) -> str:
    """The arithmetic of what does not fit."""
    asked = sum(map(_count, firm.values()))
    sums = ", ".join(f"{r} {s.procs} x {s.num_replicas}" for r, s in sorted(firm.items()))
    there = sum(len(host.gpus) for host in hosts)
    if len(hosts) == 1:
        has = f"{there} there"
    elif len({len(host.gpus) for host in hosts}) == 1:
        has = f"{there} there ({len(hosts)} hosts x {len(hosts[0].gpus)})"
    else:
        has = f"{there} there ({' + '.join(str(len(host.gpus)) for host in hosts)} on {len(hosts)} hosts)"
    fits = " in all, but not in this shape" if asked <= there else ""
    return f"Insufficient GPU resources: {asked} GPUs asked for ({sums}), {has}{fits}"
