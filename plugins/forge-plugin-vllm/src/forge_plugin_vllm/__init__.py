"""vLLM as forge-host's generator: tokens in, tokens out, weights replaced in place between two steps.

    generator: {use: vllm, max_num_seqs: 256}

Light: neither vLLM nor torch is imported before the generator's process starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from forge_host.api import ComponentSpec, Finding, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_generators(host: HostInfo) -> Iterable[ComponentSpec]:
    return [
        ComponentSpec(
            "vllm",
            "forge_plugin_vllm.actor:VLLMGenerator",
            "vLLM in one process, CPU or GPU, with in-flight weight updates",
            config="forge_plugin_vllm.config:VLLMConfig",
            requires=("vllm",),
        )
    ]


@hookimpl
def forge_check_plan(plan: Any, host: HostInfo) -> Iterable[Finding]:
    from forge_plugin_vllm.checks import findings

    return findings(plan)
