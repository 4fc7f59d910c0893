"""What `forge_check_plan` has to say about a run that uses `code`: that it cannot be isolated here, or will not be.

findings(plan)      # [Finding("warning", "reward `code` runs the model's programs without isolation", ...)]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_host.api import Finding, PluginError
from forge_plugin_code.isolation import Settings, choose

if TYPE_CHECKING:
    from forge_host.config import Plan


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
        if mode == "none":
            return [Finding("warning", "reward `code` runs the model's programs without isolation", "see its README")]
    return []
