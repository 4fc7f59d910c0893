"""What to change so that a plan fits: single changes and pairs, each tried on the planner, the cheapest first.

    remedies(services, hosts, fits, None)     # ["set services.ref_model.with_gpus: false", ...]

Cheap is what costs the run least: moving the reference model off the GPU, then sharing devices, then fewer replicas or
processes, then more hosts; the trainer or a generator on the CPU comes last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import attrs

from forge_host.config.schema import ServiceConfig
from forge_host.runtime.hosts import Host

Services = Mapping[str, ServiceConfig]
Fits = Callable[[Services, Sequence[Host]], bool]


@attrs.frozen
class _Change:
    cost: int
    text: str
    role: str
    values: Mapping[str, Any]
    more_hosts: int = 0


def remedies(services: Services, hosts: Sequence[Host], fits: Fits, grow: str | None, count: int = 2) -> list[str]:
    """The `count` cheapest changes (or pairs of changes) after which `fits(services, hosts)`, as imperatives."""
    changes = sorted(_changes(services, hosts, grow), key=lambda change: change.cost)
    found: list[tuple[int, Sequence[_Change]]] = [
        (change.cost, (change,)) for change in changes if _try((change,), services, hosts, fits)
    ]
    if len({(chosen[0].role, *chosen[0].values) for _, chosen in found}) < count:
        alone = {chosen[0].text for _, chosen in found}
        pairs = [
            (a.cost + b.cost, (a, b))
            for a, b in combinations(changes, 2)
            if a.role != b.role and not {a.text, b.text} & alone and not _circular(a, b)
        ]
        for cost, pair in sorted(pairs, key=lambda item: item[0]):
            if _try(pair, services, hosts, fits):
                found.append((cost, pair))
    best: dict[object, Sequence[_Change]] = {}
    for _, chosen in sorted(found, key=lambda item: item[0]):  # of the values of one key only the cheapest
        best.setdefault(frozenset((change.role, *change.values) for change in chosen), chosen)
    return [f"set {' and '.join(change.text for change in chosen)}" for chosen in list(best.values())[:count]]


def _circular(a: _Change, b: _Change) -> bool:
    return a.values.get("colocate_with") == b.role and "colocate_with" in b.values


def _try(changes: Sequence[_Change], services: Services, hosts: Sequence[Host], fits: Fits) -> bool:
    changed, more = dict(services), list(hosts)
    for change in changes:
        if change.role:
            changed[change.role] = attrs.evolve(changed[change.role], **change.values)
        more += [hosts[-1]] * change.more_hosts
    return fits(changed, more)


def _changes(services: Services, hosts: Sequence[Host], grow: str | None) -> Iterator[_Change]:
    """Everything that lowers what is asked for or raises what is there, one change each."""
    for role, service in services.items():
        if (service.hosts or 1) > len(hosts):
            yield _change(2, role, hosts=len(hosts))
        if not (service.with_gpus or service.gpus is not None):
            continue
        spare = role in ("ref_model", "reward")
        yield _change(1 if spare else 40, role, with_gpus=False, **({"gpus": None} if service.gpus is not None else {}))
        if service.colocate_with is None:
            others = [r for r, s in services.items() if r != role and s.colocate_with is None and s.with_gpus]
            for other in sorted(others, key=lambda r: r != "trainer"):
                yield _change((2 if role != "trainer" else 6) + (other != "trainer"), role, colocate_with=other)
        for fewer in range(service.num_replicas - 1, 0, -1):
            yield _change(8 + (service.num_replicas - fewer), role, num_replicas=fewer)
        for fewer in range(service.procs - 1, 0, -1):
            if fewer % (service.hosts or 1) == 0:
                yield _change(12 + (service.procs - fewer), role, procs=fewer)
    if grow is not None:
        for more in range(1, 2 * len(hosts) + 8):
            yield _Change(30 + more, f"{grow}: {len(hosts) + more}", "", {}, more_hosts=more)


def _change(cost: int, role: str, **values: object) -> _Change:
    shown = " and ".join(f"services.{role}.{key}: {_yaml(value)}" for key, value in values.items())
    return _Change(cost, shown, role, values)


def _yaml(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
