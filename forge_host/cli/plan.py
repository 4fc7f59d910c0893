"""A plan as lines of text, for `forge-host run --dry-run`.

    print("\\n".join(plan_lines(resolved)))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from forge_host.config import Part, Plan, Resolved


def plan_lines(resolved: Resolved) -> list[str]:
    """Components with origin and settings, then processes, then the step; nothing is started."""
    plan, config = resolved.plan, resolved.config
    rows = [("role", "component", "from")]
    rows += [(label, part.ref, part.origin) for label, part in _labelled(plan)]
    lines = [f"run `{config.name}`: {config.training.max_steps} steps, algorithm {plan.algorithm.ref}", ""]
    lines += table(rows)
    lines += ["", *table([("processes", "procs", "replicas", "hosts", "GPUs"), *_services(resolved)])]
    rows_a_step = config.training.batch_size * plan.sampling.n
    lines += [
        "",
        f"a step: {config.training.batch_size} prompts x {plan.sampling.n} responses = {rows_a_step} sequences, at most "
        f"{plan.sampling.max_tokens} new tokens each",
        f"loss: {settings(plan.loss.use.config) or 'no settings'}",
        f"aggregation {plan.aggregation.mode}; KL beta {plan.kl.beta:g} ({plan.kl.estimator}, in the {plan.kl.placement}); "
        f"correction {plan.correction.mode}; entropy {plan.entropy_coef:g}",
        f"needs: {', '.join(sorted(plan.needs)) or 'nothing beyond the policy'}",
        f"max_policy_age {config.training.max_policy_age}, weights published every {config.training.sync_interval} step(s)",
        "dry run: nothing was started",
    ]
    return lines


def _labelled(plan: Plan) -> Iterator[tuple[str, Part]]:
    for label in ("model", "dataset", "algorithm", "loss", "advantage", "sampler"):
        yield label, getattr(plan, label)
    for part in plan.shaping:
        yield "shaping", part
    for part, weight in plan.rewards:
        yield f"reward x {weight:g}", part
    for label in ("generator", "trainer", "transport", "launcher"):
        yield label, getattr(plan, label)
    for part in plan.trackers:
        yield "tracker", part


def _services(resolved: Resolved) -> Iterator[tuple[str, ...]]:
    gpus = {None: "if there", True: "yes", False: "no"}
    for role in resolved.plan.roles:
        service = resolved.config.services[role]
        hosts = "this one" if service.hosts is None else str(service.hosts)
        yield role, str(service.procs), str(service.num_replicas), hosts, gpus[service.with_gpus]


def settings(values: Any) -> str:
    """`clip_low 0.2, clip_high 0.28` from a component's values."""
    if attrs.has(type(values)):
        values = attrs.asdict(values)
    return ", ".join(f"{key} {value}" for key, value in values.items())


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text in aligned columns, the first row as heading; no trailing blanks."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]
