"""SAPO for forge-host. Declarations only.

    forge-host run config.yaml --plugins sapo --set algorithm=sapo
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_host.api import ComponentSpec, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_losses(host: HostInfo) -> Iterable[ComponentSpec]:
    return [ComponentSpec("sapo", "forge_plugin_sapo.sapo:SAPOLoss", "token ratios through a soft gate")]


@hookimpl
def forge_algorithms(host: HostInfo) -> Iterable[ComponentSpec]:
    return [ComponentSpec("sapo", "forge_plugin_sapo.sapo:SAPO", "soft adaptive optimisation (arXiv 2511.20347)")]
