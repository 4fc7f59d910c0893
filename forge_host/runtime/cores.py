"""Which cores a role on the CPU is bound to, so that two roles that work at the same time do not fight over them.

Two processes with a thread for every core each slow one another down by far more than half: their threads wait for
others that are not running. Bound to cores of their own they do not. Roles that take turns (synchronous runs) use all
cores, each in its turn, and are left free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from forge_host.config.schema import ServiceConfig
from forge_host.errors import UsageError
from forge_host.runtime.hosts import Host

if TYPE_CHECKING:
    from forge_host.runtime.placement import Place


def pinned(
    places: Mapping[str, Place], services: Mapping[str, ServiceConfig], hosts: Sequence[Host], mode: str,
    asynchronous: bool,
) -> dict[str, Place]:  # fmt: skip
    """`places` with cores for the replicas that compute on the CPU; `mode` and `asynchronous` as in `place`.

    Raises:
        UsageError: "always", and a host has fewer cores than replicas.
    """
    result = dict(places)
    if mode == "never" or (mode == "auto" and not asynchronous):
        return result
    for index, host in enumerate(hosts):
        groups = _groups(places, index)
        if len(groups) < 2 and mode == "auto":
            continue
        if len(groups) > host.num_cpus:
            if mode == "always":
                raise UsageError(
                    f"placement.pin_cores is always, and {host.name} has {host.num_cpus} cores "
                    f"for {len(groups)} replicas",
                    fix="set placement.pin_cores: auto, or lower num_replicas",
                )
            continue
        for members, cores in zip(groups, _shares(host, len(groups)), strict=True):
            for role, replica in members:
                spots = list(result[role].spots)
                spots[replica] = attrs.evolve(spots[replica], cores=cores)
                result[role] = attrs.evolve(result[role], spots=tuple(spots))
    return result


def _groups(places: Mapping[str, Place], host: int) -> list[list[tuple[str, int]]]:
    """Replicas that compute on this host's CPU, those that are colocated together; the trainer's first."""
    groups: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for role, place in places.items():
        if place.device != "cpu" or role == "reward":
            continue
        for replica, spot in enumerate(place.spots):
            if spot.hosts == (host,):
                other = place.shares_with
                key = (other, replica % len(places[other].spots)) if other else (role, replica)
                groups.setdefault(key, []).append((role, replica))
    return [groups[key] for key in sorted(groups, key=lambda key: (key[0] != "trainer", key))]


def _shares(host: Host, count: int) -> list[tuple[int, ...]]:
    """The host's cores in `count` parts of nearly the same size, within a NUMA node where a part fits in one."""
    each, more = divmod(host.num_cpus, count)
    nodes = [list(node) for node in host.cpus]
    shares = []
    for part in range(count):
        size = each + (part < more)
        node = max(nodes, key=len)
        source = [node] if len(node) >= size else sorted(nodes, key=len, reverse=True)
        share: list[int] = []
        for cores in source:
            taken = cores[: size - len(share)]
            del cores[: len(taken)]
            share += taken
        shares.append(tuple(share))
    return shares
