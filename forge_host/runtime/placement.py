"""Which role runs on which GPU. Pure: decides from numbers, starts nothing.

place({"trainer": ServiceConfig(with_gpus=True), "generator": ServiceConfig(with_gpus=True)}, num_gpus=1)
# UsageError: 2 GPUs asked for (generator 1 x 1, trainer 1 x 1), 1 there; set ...
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from forge_host.config.schema import ServiceConfig
from forge_host.errors import UsageError


@attrs.frozen
class Place:
    """One role's devices: GPU ids per replica; empty means CPU."""

    role: str
    device: str
    gpus: tuple[tuple[int, ...], ...]
    shares_with: str | None = None


def place(services: Mapping[str, ServiceConfig], num_gpus: int) -> dict[str, Place]:
    """Assign disjoint GPUs to the roles that want them.

    `with_gpus` true must have GPUs, false must not, None takes GPUs when there are enough for every such role, else
    shares the trainer's when there is one, else runs on the CPU. `colocate_with` shares another role's GPUs.

    Raises:
        UsageError: more GPUs asked for than there are (with the arithmetic and two ways out), or a bad `colocate_with`.
    """
    hungry = {r: s for r, s in services.items() if _wants(s, num_gpus) and s.colocate_with is None}
    firm = {r: s for r, s in hungry.items() if s.with_gpus}
    asked = sum(map(_gpus, firm.values()))
    if asked > num_gpus:
        raise UsageError(_too_many(firm, asked, num_gpus))
    places: dict[str, Place] = {}
    free = list(range(num_gpus))
    for role, service in sorted(
        hungry.items(), key=lambda item: (not item[1].with_gpus, item[0] != "trainer", item[0])
    ):
        if _gpus(service) <= len(free):
            places[role] = Place(role, "cuda", _take(free, service))
        elif "trainer" in places and _gpus(service) <= len(_flat(places["trainer"])):
            places[role] = Place(role, "cuda", _split(_flat(places["trainer"]), service), "trainer")
        else:
            places[role] = Place(role, "cpu", ((),) * service.num_replicas)
    for role, service in services.items():
        other = service.colocate_with
        if other is not None:
            if other not in services or services[other].colocate_with is not None:
                raise UsageError(
                    f"services.{role}.colocate_with names {other!r}",
                    fix=f"name a role that has devices of its own: {', '.join(sorted(hungry)) or 'none here'}",
                )
            ids = _flat(places[other]) if other in places else ()
            if ids and service.with_gpus is not False and _gpus(service) > len(ids):
                raise UsageError(
                    f"{role} needs {_gpus(service)} GPUs but shares the {len(ids)} of {other}",
                    fix=f"lower services.{role}.procs or num_replicas",
                )
            on_gpu = bool(ids) and service.with_gpus is not False
            places[role] = (
                Place(role, "cuda", _split(ids, service), other)
                if on_gpu
                else Place(role, "cpu", ((),) * service.num_replicas, other)
            )
        elif role not in places:
            places[role] = Place(role, "cpu", ((),) * service.num_replicas)
    return places


def _wants(service: ServiceConfig, num_gpus: int) -> bool:
    return bool(service.with_gpus) or (service.with_gpus is None and num_gpus > 0)


def _gpus(service: ServiceConfig) -> int:
    return service.procs * service.num_replicas


def _take(free: list[int], service: ServiceConfig) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(free.pop(0) for _ in range(service.procs)) for _ in range(service.num_replicas))


def _split(ids: tuple[int, ...], service: ServiceConfig) -> tuple[tuple[int, ...], ...]:
    step = service.procs
    return tuple(ids[i * step : (i + 1) * step] for i in range(service.num_replicas))


def _flat(place: Place) -> tuple[int, ...]:
    return tuple(i for replica in place.gpus for i in replica)


def _too_many(firm: Mapping[str, ServiceConfig], asked: int, num_gpus: int) -> str:
    sums = ", ".join(f"{r} {s.procs} x {s.num_replicas}" for r, s in sorted(firm.items()))
    cheap = "ref_model" if "ref_model" in firm else min(firm, key=lambda r: (r == "trainer", _gpus(firm[r])))
    biggest = max(firm, key=lambda r: _gpus(firm[r]))
    second = (
        f"lower services.{biggest}.procs or num_replicas"
        if _gpus(firm[biggest]) > 1
        else f"set services.{cheap}.colocate_with: {next((r for r in firm if r != cheap), 'trainer')}"
    )
    return (
        f"Insufficient GPU resources: {asked} GPUs asked for ({sums}), {num_gpus} there; "
        f"set services.{cheap}.with_gpus: false, or {second}"
    )
