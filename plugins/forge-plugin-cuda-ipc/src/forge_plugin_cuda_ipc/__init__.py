"""Weights between two processes on one GPU: the generator maps the memory that the trainer published into.

    transport: cuda-ipc

Light: neither torch nor CUDA is touched before a process publishes or fetches.
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_host.api import ComponentSpec, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_transports(host: HostInfo) -> Iterable[ComponentSpec]:
    return [
        ComponentSpec(
            "cuda-ipc",
            "forge_plugin_cuda_ipc.transport:CudaIpc",
            "trainer and generator on one GPU: one copy on the GPU, mapped by the generator",
            requires=("torch",),
        )
    ]
