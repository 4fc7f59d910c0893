"""Weight sync over Monarch's RDMA buffers for forge-host. Declarations only.

forge-host run quickstart --set transport.use=rdma
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_host.api import ComponentSpec, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_transports(host: HostInfo) -> Iterable[ComponentSpec]:
    return [
        ComponentSpec(
            "rdma",
            "forge_plugin_rdma.transport:Rdma",
            "Monarch's RDMA buffers between hosts; over TCP where there is no RDMA device",
            requires=("torch", "monarch"),
        )
    ]
