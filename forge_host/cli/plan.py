"""A plan for people, for `forge-host run --dry-run`: components, processes, the step.

    print_plan(resolve("quickstart", host=host))

It reads the plan only, so it says what would run without building a component.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from forge_host.cli.tables import print_pairs, print_table

if TYPE_CHECKING:
    from forge_host.config import Part, Plan, Resolved

_GPUS = {None: "if there", True: "yes", False: "no"}


def print_plan(resolved: Resolved) -> None:
    """Components with their origin, processes per role, and what one step does. Nothing is started."""
    plan, config = resolved.plan, resolved.config
    training, sampling = config.training, plan.sampling
    print(f"run `{config.name}`: {training.max_steps} steps, algorithm {plan.algorithm.ref}\n")
    print_table(("role", "component", "from"), [(label, part.ref, part.origin) for label, part in _labelled(plan)])
    print()
    print_table(("processes", "procs", "replicas", "hosts", "GPUs"), list(_services(resolved)))
    print()
    if plan.offline:
        print_pairs([("step", f"{training.batch_size} examples"), ("aggregation", plan.aggregation.mode)])
        print("\ndry run: nothing was started")
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


def _services(resolved: Resolved) -> Iterator[tuple[str, ...]]:
    for role in resolved.plan.roles:
        service = resolved.config.services[role]
        hosts = "this one" if service.hosts is None else str(service.hosts)
        yield role, str(service.procs), str(service.num_replicas), hosts, _GPUS[service.with_gpus]
