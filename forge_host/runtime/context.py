"""What every role's actor is told about its run: `Actor(config, context)`. Plain data; pickles to any host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from forge_host.config.schema import RunConfig
from forge_host.types import Use

if TYPE_CHECKING:
    from forge_host.plugins import PluginHost


@attrs.frozen(kw_only=True)
class RoleContext:
    """One role of one run.

    Args:
        role: "generator", "trainer", "ref_model" or "reward".
        model_path: local Hugging Face folder.
        config: the resolved configuration.
        plan: the resolved `forge_host.config.plan.Plan` (loss, aggregation, kl, correction, sampling, ...).
        transport: the chosen weight-sync transport.
        namespace: unique to the run; a transport's and a log's prefix.
        run_dir: absolute path of the run directory.
        procs: ranks of one replica (each rank reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT).
        device: "cuda" or "cpu", as placed.
        shares_device: another role uses the same GPU, so leave it memory.
        lock: the run's `PluginLock`; `host()` rebuilds the same plugins from it and refuses others.
    """

    role: str
    model_path: str
    config: RunConfig
    plan: Any
    transport: Use
    namespace: str
    run_dir: str
    procs: int = 1
    device: str = "cpu"
    shares_device: bool = False
    lock: Any = None

    def host(self) -> PluginHost:
        """The run's plugins, loaded in this process.

        Raises:
            PluginError: this host has another version or content of one of them.
        """
        from forge_host.runtime.process import check_lock

        return check_lock(self.lock.dumps())
