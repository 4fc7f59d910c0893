"""GSPO and GSPO-token for forge-host. Declarations only.

    forge-host run config.yaml --plugins gspo --set algorithm=gspo
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_host.api import ComponentSpec, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_losses(host: HostInfo) -> Iterable[ComponentSpec]:
    module, needs = "forge_plugin_gspo.gspo", ("sequence-advantages",)
    return [
        ComponentSpec("gspo", f"{module}:GSPOLoss", "clipped ratio of the whole response", needs=needs),
        ComponentSpec("gspo-token", f"{module}:GSPOTokenLoss", "GSPO whose advantages may differ between tokens"),
    ]


@hookimpl
def forge_algorithms(host: HostInfo) -> Iterable[ComponentSpec]:
    module = "forge_plugin_gspo.gspo"
    return [
        ComponentSpec("gspo", f"{module}:GSPO", "group sequence policy optimisation (arXiv 2507.18071)"),
        ComponentSpec("gspo-token", f"{module}:GSPOToken", "GSPO with token-level advantages"),
    ]
