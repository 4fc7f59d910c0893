"""What `forge_check_plan` has to say about a run that uses `code`: no isolation here, or too little time.

findings(plan)      # [Finding("warning", "reward `code` runs the model's programs without isolation", ...)]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from forge_host.api import Finding, PluginError
from forge_plugin_code.isolation import Settings, choose
from forge_plugin_code.reward import CodeReward
from forge_plugin_code.verdict import GRACE_S

if TYPE_CHECKING:
    from forge_host.config import Plan


_TIMES = [(a.name, a.default) for a in attrs.fields(CodeReward) if a.name in ("total_s", "wait_s")]


def findings(plan: Plan) -> list[Finding]:
    """Starts one sandbox if the plan has the reward `code`; an error when that is not possible."""
    for part, _weight in plan.rewards:
        if (part.plugin, part.name) != ("code", "code"):
            continue
        isolation = part.use.config.get("isolation", "auto")
        unsafe = bool(part.use.config.get("allow_unsafe", False))
        try:
            mode = choose(Settings(isolation=isolation, allow_unsafe=unsafe))
        except PluginError as error:
            return [Finding("error", f"reward `code`: {error.message}", error.fix or "")]
        found = []
        if mode == "none":
            found.append(Finding("warning", "reward `code` runs the model's programs without isolation"))
        longest = GRACE_S + sum(float(part.use.config.get(name, default)) for name, default in _TIMES)
        if longest > plan.config.reward.timeout_s:
            message = f"reward `code` may take {longest:g} s, but reward.timeout_s is {plan.config.reward.timeout_s:g}"
            fix = f"set reward.timeout_s to {longest:g} or more, else programs that hang are errors instead of zeros"
            found.append(Finding("error", message, fix))
        return found
    return []
