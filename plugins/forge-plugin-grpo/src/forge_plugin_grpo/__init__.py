"""GRPO, Dr.GRPO and torchforge's SimpleGRPOLoss for forge-host. Declarations only.

    forge-host run config.yaml --plugins grpo
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_host.api import ComponentSpec, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_losses(host: HostInfo) -> Iterable[ComponentSpec]:
    module = "forge_plugin_grpo.losses"
    return [
        ComponentSpec("grpo", f"{module}:GRPOLoss", "clipped token ratios; two-sided and dual clip are options"),
        ComponentSpec("simple-grpo", f"{module}:SimpleGRPO", "torchforge's SimpleGRPOLoss: no old policy, k3 penalty"),
    ]


@hookimpl
def forge_advantages(host: HostInfo) -> Iterable[ComponentSpec]:
    module, needs = "forge_plugin_grpo.algorithms", ("groups",)
    return [
        ComponentSpec("grpo", f"{module}:GRPOAdvantage", "the group's standard score of the reward", needs=needs),
        ComponentSpec("dr-grpo", f"{module}:DrGRPOAdvantage", "reward minus the group's mean", needs=needs),
    ]


@hookimpl
def forge_algorithms(host: HostInfo) -> Iterable[ComponentSpec]:
    module = "forge_plugin_grpo.algorithms"
    return [
        ComponentSpec("grpo", f"{module}:GRPO", "group-relative policy optimisation (arXiv 2402.03300)"),
        ComponentSpec("dr-grpo", f"{module}:DrGRPO", "GRPO without length and deviation bias (arXiv 2503.20783)"),
    ]
