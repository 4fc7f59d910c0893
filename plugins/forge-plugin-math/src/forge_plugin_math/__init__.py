"""Declares the rewards `math` (is the answer right), `thinking` (think tags) and `format` (regular expression or tags).

forge-host run quickstart --plugins math,grpo --set rewards=[math]
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_host.api import ComponentSpec, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_rewards(host: HostInfo) -> Iterable[ComponentSpec]:
    return [
        ComponentSpec(
            "math",
            "forge_plugin_math.reward:MathReward",
            "1 if the reply's answer equals the target: numbers exactly, other mathematics symbolically",
            requires=("math_verify",),
        ),
        ComponentSpec("thinking", "forge_plugin_math.structure:ThinkingReward", "1 for a filled <think> block"),
        ComponentSpec("format", "forge_plugin_math.structure:FormatReward", "1 if the reply has the asked-for form"),
    ]
