"""Weight sync through Meta's TorchStore for forge-host. Declarations only.

forge-host run quickstart --set transport.use=torchstore
TORCHSTORE_USE_RDMA=1 forge-host run quickstart --set transport.use=torchstore
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forge_host.api import ComponentSpec, Finding, HostInfo, RunInfo, hookimpl

if TYPE_CHECKING:
    from forge_host.config import Plan

FORGE_API = "1.0"


@hookimpl
def forge_transports(host: HostInfo) -> Iterable[ComponentSpec]:
    # `requires` leaves torchstore out: what it would suggest, `pip install torchstore`, brings a release that fails.
    target = "forge_plugin_torchstore.transport:TorchStore"
    summary = "TorchStore: shared memory, RDMA or gloo, as it finds them"
    return [ComponentSpec("torchstore", target, summary, requires=("torch", "monarch"))]


@hookimpl
def forge_check_plan(plan: Plan, host: HostInfo) -> Iterable[Finding]:
    from forge_plugin_torchstore.installed import findings

    return findings(plan)


@hookimpl
def forge_run_started(run: RunInfo) -> None:
    if run.config.get("transport", {}).get("use") == "torchstore/torchstore":
        from forge_plugin_torchstore.patience import outlive_others

        outlive_others()  # this process's host forwards what the store sends
