"""A plan for people, for `forge-host run --dry-run`: components, processes, the step.

    print_plan(resolve("quickstart", host=host), host)

Of the components only the launcher is built, which says what hosts there will be; nothing is started.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forge_host.builtin.transports.auto import choose_transport
from forge_host.cli.tables import print_pairs, print_table
from forge_host.loop.placing import placement

if TYPE_CHECKING:
    from forge_host.config import Part, Plan, Resolved
    from forge_host.plugins import PluginHost
    from forge_host.runtime.hosts import Host
    from forge_host.runtime.placement import Place, Spot

#: Of one role; a thousand lines help nobody.
MAX_REPLICAS = 8


def print_plan(resolved: Resolved, host: PluginHost) -> None:
    """Components with their origin, processes per role, and what one step does. Nothing is started."""
    plan, config = resolved.plan, resolved.config
    training, sampling = config.training, plan.sampling
    print(f"run `{config.name}`: {training.max_steps} steps, algorithm {plan.algorithm.ref}\n")
    print_table(("role", "component", "from"), [(label, part.ref, part.origin) for label, part in _labelled(plan)])
    print()
    if plan.offline:
        print_pairs([("step", f"{training.batch_size} examples"), ("aggregation", plan.aggregation.mode)])
        _end(resolved, host)
        return
    sequences = training.batch_size * sampling.n
    filtered = f", top_p {sampling.top_p:g}, top_k {sampling.top_k}" if sampling.top_p < 1 or sampling.top_k else ""
    print_pairs(
        [
            ("step", f"{training.batch_size} prompts x {sampling.n} responses = {sequences} sequences"),
            ("sampling", f"at most {sampling.max_tokens} tokens, temperature {sampling.temperature:g}{filtered}"),
            ("loss", ", ".join(f"{key} {_text(v)}" for key, v in plan.loss.use.config.items()) or "no settings"),
            ("aggregation", plan.aggregation.mode),
            ("KL", f"beta {plan.kl.beta:g}, {plan.kl.estimator} in the {plan.kl.placement}" if plan.kl.beta else "off"),
            ("correction", plan.correction.mode),
            ("entropy", f"{plan.entropy_coef:g}"),
            ("needs", ", ".join(sorted(plan.needs)) or "nothing beyond the policy"),
            ("policy age", f"at most {training.max_policy_age}, published every {training.sync_interval} step(s)"),
        ]
    )
    _end(resolved, host)


def _end(resolved: Resolved, host: PluginHost) -> None:
    """Last, since it may be what the dry run has to refuse."""
    print()
    print_places(resolved, host)
    print("\ndry run: nothing was started")


def _labelled(plan: Plan) -> Iterator[tuple[str, Part]]:
    for label in ("model", "dataset", "algorithm", "loss", "advantage", "sampler"):
        yield label, getattr(plan, label)
    if plan.environment is not None:
        yield "environment", plan.environment
    for part in plan.shaping:
        yield "shaping", part
    for part, weight in plan.rewards:
        yield "reward" if weight == 1 else f"reward, weight {weight:g}", part
    for label in ("trainer", "launcher") if plan.offline else ("generator", "trainer", "transport", "launcher"):
        yield label, getattr(plan, label)
    for part in plan.trackers:
        yield "tracker", part


def _text(value: Any) -> str:
    """A value as YAML writes it: null, true, text without quotes."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def print_places(resolved: Resolved, host: PluginHost) -> None:
    """Hosts, and where every replica goes: its host, GPUs or cores, and processes.

    Raises:
        UsageError: the roles do not fit on the hosts, or the transport does not suit their places; with what to change.
    """
    plan, config = resolved.plan, resolved.config
    launcher = host.build("launcher", plan.launcher.use)
    hosts = launcher.hosts()
    if hosts is None:
        services = [(role, config.services[role]) for role in plan.roles]
        rows = [(role, str(service.procs), str(service.num_replicas)) for role, service in services]
        print_table(("processes", "procs", "replicas"), rows)
        print(f"\nplaced when the hosts are asked what they have ({plan.launcher.ref})")
        return
    places = placement(config, plan, hosts, grow=getattr(launcher, "grow", None))
    print_table(("role", "replica", "procs", "host", "devices"), list(_places(places, config, hosts)))
    print(f"\nhosts: {', '.join(map(str, hosts))}")
    if not plan.offline:
        use, reason = choose_transport(plan, places, {entry.plugin for entry in host.entries("transport")})
        print(f"transport: {use.ref} ({reason})")


def _places(places: Mapping[str, Place], config: Any, hosts: Sequence[Host]) -> Iterator[tuple[str, ...]]:
    for role, place in places.items():
        procs = config.services[role].procs
        for replica, spot in enumerate(place.spots[:MAX_REPLICAS]):
            names = ", ".join(hosts[index].name for index in spot.hosts)
            yield role, str(replica), str(procs), names, _devices(place, spot, hosts)
        if len(place.spots) > MAX_REPLICAS:
            yield role, f"and {len(place.spots) - MAX_REPLICAS} more", str(procs), "", ""


def _devices(place: Place, spot: Spot, hosts: Sequence[Host]) -> str:
    if spot.gpus:
        ids = " + ".join(
            ",".join(hosts[index].gpus[gpu] for gpu in gpus) for index, gpus in zip(spot.hosts, spot.gpus, strict=True)
        )
        return f"GPU {ids}" + (f" of {place.shares_with}" if place.shares_with else "")
    return f"cores {','.join(map(str, spot.cores))}" if spot.cores else "CPU, any core"
