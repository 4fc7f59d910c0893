"""Weights from the trainer's GPU to generators on other GPUs, through NCCL.

    transport: nccl

Light: neither torch nor NCCL is touched before a process publishes or fetches.
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_host.api import ComponentSpec, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_transports(host: HostInfo) -> Iterable[ComponentSpec]:
    return [
        ComponentSpec(
            "nccl",
            "forge_plugin_nccl.transport:Nccl",
            "trainer and generators on GPUs of their own: GPU to GPU through NCCL",
            requires=("torch",),
        )
    ]
