"""The TorchTitan trainer as a forge-host component. Declares only; torch is imported where the trainer runs.

trainer: {use: titan, attention: auto}
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_host.api import ComponentSpec, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_trainers(host: HostInfo) -> Iterable[ComponentSpec]:
    return [
        ComponentSpec(
            "titan",
            "forge_plugin_titan.actor:TitanTrainer",
            "TorchTitan: Llama and Qwen3 from a Hugging Face folder, packed, FSDP2 and tensor parallel, CPU and GPU",
            config="forge_plugin_titan.config:TitanConfig",
            requires=("torch", "torchtitan", "safetensors"),
        )
    ]
