"""CISPO for forge-host. Declarations only.

    forge-host run config.yaml --plugins cispo --set algorithm=cispo
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_host.api import ComponentSpec, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_losses(host: HostInfo) -> Iterable[ComponentSpec]:
    return [ComponentSpec("cispo", "forge_plugin_cispo.cispo:CISPOLoss", "policy gradient with clipped weights")]


@hookimpl
def forge_algorithms(host: HostInfo) -> Iterable[ComponentSpec]:
    return [ComponentSpec("cispo", "forge_plugin_cispo.cispo:CISPO", "clipped importance sampling (arXiv 2506.13585)")]
