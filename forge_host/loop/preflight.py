"""What can be said about a run's components before any process starts. Light: no torch, no monarch of its own.

    check_signatures(plan, host)
"""

from __future__ import annotations

from typing import Any

from forge_host.api import ADVANTAGE_ARGUMENTS, LOSS_ARGUMENTS, REWARD_ARGUMENTS
from forge_host.errors import PluginError
from forge_host.plugins.calling import CallByName


def check_signatures(plan: Any, host: Any, *, rewards: bool = True, own_only: bool = False) -> None:
    """Build the loss, the advantage and the rewards here once, so that a wrong setting or an argument nobody provides
    is said early.

    Args:
        rewards: whether the run grades anything.
        own_only: only what the user named by file or module. Plugins check theirs with the kit, and their losses
            would import torch.

    Raises:
        PluginError: a component asks for a value that does not exist, naming those that do.
        UsageError: one of its settings is wrong.
    """
    parts = [(plan.loss, LOSS_ARGUMENTS), (plan.advantage, ADVANTAGE_ARGUMENTS)]
    if rewards:
        parts += [(part, REWARD_ARGUMENTS) for part in (*(part for part, _ in plan.rewards), *plan.shaping)]
    if plan.environment is not None and not (own_only and plan.environment.plugin):
        environment = host.build("environment", plan.environment.use)
        if not callable(getattr(environment, "rollout", None)):
            raise PluginError(
                f"{plan.environment.describe()} has no method `rollout`", fix="see forge_host.api.Environment"
            )
    for part, known in parts:
        if not (own_only and part.plugin):
            CallByName(host.build(part.kind, part.use), known, part.describe())
