"""Reasoning Gym's tasks for forge-host. Declarations only; the library, which takes seconds, is imported when used.

    dataset: {path: reasoning-gym/tasks, task: countdown}
    rewards: [reasoning-gym/grader]
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from forge_host.api import ComponentSpec, Finding, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_datasets(host: HostInfo) -> Iterable[ComponentSpec]:
    return [
        ComponentSpec(
            "tasks", "forge_plugin_reasoning_gym.tasks:Tasks", "generated reasoning problems of Reasoning Gym"
        )
    ]


@hookimpl
def forge_rewards(host: HostInfo) -> Iterable[ComponentSpec]:
    return [
        ComponentSpec("grader", "forge_plugin_reasoning_gym.grader:Grader", "the score of a task's own grader")
    ]


@hookimpl
def forge_check_plan(plan: Any) -> Iterable[Finding]:
    """The library is an extra, as its hundred tasks need a dozen packages: said before anything starts."""
    used = any(part.plugin == "reasoning-gym" for part in plan.parts())
    if used and find_spec("reasoning_gym") is None:
        return [
            Finding("error", "Reasoning Gym is not installed", "pip install 'forge-plugin-reasoning-gym[tasks]'")
        ]
    return []
