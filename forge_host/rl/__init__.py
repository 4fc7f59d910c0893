"""Tensors of reinforcement learning: log-probabilities, KL, correction, aggregation, advantages, the objective.

    from forge_host.rl import Objective, StepTotals

    objective = Objective(my_loss, max_tokens=256)
    loss, metrics = objective(tensors, StepTotals.of([tensors["padding_mask"]]))

Importing the package is free: each name below loads its module (and torch) when it is first used. `checks` and
`fields` stay free of torch, because the configuration reads them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge_host.rl.advantages import compute_advantages
    from forge_host.rl.aggregation import StepTotals, aggregate
    from forge_host.rl.correction import correction_weights
    from forge_host.rl.kl import kl_estimate, token_kl
    from forge_host.rl.linear import linear_logprobs
    from forge_host.rl.logprobs import token_logprobs
    from forge_host.rl.metrics import MetricSum, merge_metrics
    from forge_host.rl.objective import Objective
    from forge_host.rl.ppo import ppo_clip
    from forge_host.rl.ratio import safe_exp, sequence_log_ratio
    from forge_host.rl.types import LossOutput

_HOME = {
    "LossOutput": "types", "MetricSum": "metrics", "Objective": "objective", "StepTotals": "aggregation",
    "aggregate": "aggregation", "compute_advantages": "advantages", "correction_weights": "correction",
    "kl_estimate": "kl", "linear_logprobs": "linear", "merge_metrics": "metrics", "ppo_clip": "ppo",
    "safe_exp": "ratio", "sequence_log_ratio": "ratio", "token_kl": "kl", "token_logprobs": "logprobs",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'forge_host.rl' has no attribute {name!r}")
    value = getattr(import_module(f"forge_host.rl.{_HOME[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "LossOutput", "MetricSum", "Objective", "StepTotals", "aggregate", "compute_advantages", "correction_weights",
    "kl_estimate", "linear_logprobs", "merge_metrics", "ppo_clip", "safe_exp", "sequence_log_ratio", "token_kl",
    "token_logprobs",
]  # fmt: skip
