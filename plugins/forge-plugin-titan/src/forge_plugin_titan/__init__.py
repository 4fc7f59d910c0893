"""The TorchTitan trainer as a forge-host component. Declares only; torch is imported where the trainer runs.

trainer: {use: titan, attention: auto}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forge_host.api import ComponentSpec, Finding, HostInfo, hookimpl

if TYPE_CHECKING:
    from forge_host.config import Plan

FORGE_API = "1.0"


@hookimpl
def forge_trainers(host: HostInfo) -> Iterable[ComponentSpec]:
    return [
        ComponentSpec(
            "titan",
            "forge_plugin_titan.actor:TitanTrainer",
            "TorchTitan: Llama and Qwen3 from a Hugging Face folder, packed; FSDP2, tensor and context parallel",
            config="forge_plugin_titan.config:TitanConfig",
            requires=("torch", "torchtitan", "safetensors"),
        )
    ]


@hookimpl
def forge_check_plan(plan: Plan) -> Iterable[Finding]:
    """Splits that this trainer refuses, said before any process starts."""
    if plan.trainer.plugin != "titan":
        return ()
    from forge_plugin_titan.config import refusal

    refused = refusal(plan.config.parallelism)
    return () if refused is None else [Finding("error", *refused)]
