"""What `forge_check_plan` has to say about runs that use `http` or `judge`: what would fail at the first reply."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import attrs

from forge_host.api import Finding, UsageError
from forge_plugin_judge.judge import rubric
from forge_plugin_judge.remote import RemoteReward

if TYPE_CHECKING:
    from forge_host.config import Plan

_TIMEOUT_S: Any = attrs.fields_dict(RemoteReward)["timeout_s"].default


def findings(plan: Plan) -> list[Finding]:
    """Errors: a key's variable that is not set, a rubric that cannot be used, a deadline that cuts ours off."""
    found = []
    for part, _weight in plan.rewards:
        if part.plugin != "judge":
            continue
        config, name = part.use.config, f"reward `{part.name}`"
        variable = config.get("api_key_env")
        if variable and not os.environ.get(variable):
            found.append(Finding("error", f"{name}: environment variable {variable} is not set", "export the key"))
        timeout_s, deadline_s = float(config.get("timeout_s", _TIMEOUT_S)), plan.config.reward.timeout_s
        if timeout_s >= deadline_s:
            fix = f"set reward.timeout_s above {timeout_s:g}, or {part.name}'s below {deadline_s:g}"
            found.append(Finding("error", f"{name} may take {timeout_s:g} s, reward.timeout_s is {deadline_s:g}", fix))
        if part.name == "judge":
            try:
                rubric(config.get("rubric_file"))
            except UsageError as error:
                found.append(Finding("error", str(error)))
    return found
