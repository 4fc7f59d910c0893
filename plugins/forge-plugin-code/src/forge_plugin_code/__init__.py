"""Declares the reward `code`: runs the Python in a reply against the prompt's tests, in a sandbox.

forge-host run config.yaml --plugins code,grpo --set rewards=[code]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forge_host.api import ComponentSpec, Finding, HostInfo, hookimpl

if TYPE_CHECKING:
    from forge_host.config import Plan

FORGE_API = "1.0"
TARGET = "forge_plugin_code.reward:CodeReward"


@hookimpl
def forge_rewards(host: HostInfo) -> Iterable[ComponentSpec]:
    return [ComponentSpec("code", TARGET, "1 if the Python in the reply passes the prompt's tests, run in a sandbox")]


@hookimpl
def forge_check_plan(plan: Plan, host: HostInfo) -> Iterable[Finding]:
    """Says before the run, not at the first reply, that this machine cannot isolate code."""
    from forge_plugin_code.plan import findings

    return findings(plan)
