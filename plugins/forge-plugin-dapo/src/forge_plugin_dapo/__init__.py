"""DAPO for forge-host. Declarations only.

    forge-host run config.yaml --plugins dapo --set algorithm=dapo
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_host.api import ComponentSpec, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_losses(host: HostInfo) -> Iterable[ComponentSpec]:
    return [ComponentSpec("dapo", "forge_plugin_dapo.parts:DAPOLoss", "clipped token ratios, upper bound raised")]


@hookimpl
def forge_samplers(host: HostInfo) -> Iterable[ComponentSpec]:
    return [ComponentSpec("dynamic", "forge_plugin_dapo.parts:DynamicSampler", "drops groups all right or all wrong")]


@hookimpl
def forge_rewards(host: HostInfo) -> Iterable[ComponentSpec]:
    return [ComponentSpec("soft-overlong", "forge_plugin_dapo.parts:SoftOverlong", "penalty near the response budget")]


@hookimpl
def forge_algorithms(host: HostInfo) -> Iterable[ComponentSpec]:
    return [ComponentSpec("dapo", "forge_plugin_dapo.algorithm:DAPO", "GRPO for long reasoning (arXiv 2503.14476)")]
