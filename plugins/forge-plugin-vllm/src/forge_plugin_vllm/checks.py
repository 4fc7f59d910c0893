"""What this generator has to say about a run's plan before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forge_host.api import Finding


def findings(plan: Any) -> Iterator[Finding]:
    """Settings of the run that do not go with the generator's, when it is this one."""
    if plan.generator.plugin != "vllm":
        return
    settings, sampling = plan.generator.use.config, plan.sampling
    if settings.get("sleep_between_steps"):
        yield from _sleeping(plan.config.training)
    longest = settings.get("max_model_len")
    if longest is not None and longest < sampling.max_tokens + 1:
        yield Finding(
            "error",
            f"generator.max_model_len {longest} leaves no room for a prompt and {sampling.max_tokens} response tokens",
            "raise it, or leave it out to take training.seq_len",
        )
    if (sampling.top_p < 1 or sampling.top_k > 0) and "unfiltered-sampling" not in plan.needs:
        yield Finding(
            "warning",
            f"with top_p {sampling.top_p:g} and top_k {sampling.top_k} the generator's log-probabilities are those of "
            "the filtered distribution, the trainer's are not, so their difference is no measure of staleness",
            "set top_p: 1 and top_k: 0",
        )


def _sleeping(training: Any) -> Iterator[Finding]:
    if training.max_policy_age or training.sync_interval > 1:
        yield Finding(
            "error",
            f"generator.sleep_between_steps with max_policy_age {training.max_policy_age} and sync_interval "
            f"{training.sync_interval}: the generator would sleep while it has to generate",
            "set training.max_policy_age: 0 and sync_interval: 1, or leave sleep_between_steps out",
        )
