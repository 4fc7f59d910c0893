"""Declares the rewards `http` (a service of yours grades) and `judge` (a language model grades).

forge-host run config.yaml --plugins judge,grpo --set rewards=[judge]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forge_host.api import ComponentSpec, Finding, HostInfo, hookimpl

if TYPE_CHECKING:
    from forge_host.config import Plan

FORGE_API = "1.0"


@hookimpl
def forge_rewards(host: HostInfo) -> Iterable[ComponentSpec]:
    return [
        ComponentSpec(
            "http",
            "forge_plugin_judge.service:HttpReward",
            "what a service of yours answers to a POST, one reply or a batch at a time",
            requires=("httpx",),
        ),
        ComponentSpec(
            "judge",
            "forge_plugin_judge.judge:JudgeReward",
            "what a language model behind an OpenAI-compatible API gives by a rubric, 0 to 1",
            requires=("httpx",),
        ),
    ]


@hookimpl
def forge_check_plan(plan: Plan, host: HostInfo) -> Iterable[Finding]:
    """Says before the run that a key or a rubric is missing, or that the reward service's deadline is too short."""
    from forge_plugin_judge.plan import findings

    return findings(plan)
