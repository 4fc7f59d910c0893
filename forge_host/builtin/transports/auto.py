"""Which transport a run uses, and why: `transport: auto` is decided here, when the places of the processes are known.

use, reason = choose_transport(plan, places, installed)

| trainer and generators | transport | plugin |
|---|---|---|
| on one GPU | cuda-ipc | forge-plugin-cuda-ipc |
| on GPUs of their own, one host | nccl | forge-plugin-nccl |
| one host otherwise, or without the plugin | shm | built in |
| several hosts | file | built in |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from forge_host.errors import UsageError
from forge_host.types import Use

#: Transports that need GPUs, by plugin; the component has the plugin's name.
ON_GPU = ("cuda-ipc", "nccl")


def choose_transport(plan: Any, places: Mapping[str, Any], installed: Collection[str] = ()) -> tuple[Use, str]:
    """The transport component and one phrase that says why it.

    Args:
        plan: the resolved `forge_host.config.plan.Plan`.
        places: role to `forge_host.runtime.placement.Place`.
        installed: names of the plugins that are loaded.

    Raises:
        UsageError: the configured transport cannot reach every generator.
    """
    use = plan.transport.use
    apart = _apart(places)
    here = _gpus(places)
    if use.ref != "auto":
        name = use.ref.rpartition("/")[2] if use.ref.partition("/")[0] in (*ON_GPU, "builtin") else use.ref
        if name in ("shm", "cuda-ipc") and apart:
            raise UsageError(
                f"transport {name} stays within one host, but {apart}",
                fix="set transport: file with a shared transport.directory, or transport: auto",
            )
        if name in ON_GPU and here != name:
            fix = f"set transport: auto{FIX[name]}"
            raise UsageError(f"transport {name} {WANTS[name]}, but {WHERE[here]}", fix=fix)
        return use, "configured"
    if apart:
        directory = Path(plan.config.run_dir).absolute() / "sync"
        return Use("builtin/file", {"directory": str(directory)}), f"{apart}; files cross hosts"
    if here in installed:
        return Use(f"{here}/{here}"), WHERE[here]
    missing = f"; forge-plugin-{here} would save the way through the host" if here in ON_GPU else ""
    return Use("builtin/shm"), f"{WHERE[here]}, which share this host's memory{missing}"


WANTS = {"cuda-ipc": "is for one GPU", "nccl": "needs a GPU for each process (NCCL refuses two on one)"}
FIX = {"cuda-ipc": ", or services.generator.colocate_with: trainer", "nccl": ", or add GPUs"}
WHERE = {
    "cuda-ipc": "trainer and generator are on one GPU",
    "nccl": "trainer and generator are on GPUs of their own",
    "some": "the generators share only some of the trainer's GPUs",
    "cpu": "trainer or generator are on the CPU",
}


def _gpus(places: Mapping[str, Any]) -> str:
    """How the trainer's publishing rank and the generators lie: a transport of ON_GPU, "some" or "cpu"."""
    trainer, generator = places.get("trainer"), places.get("generator")
    if trainer is None or generator is None or "cpu" in (trainer.device, generator.device):
        return "cpu"
    first = trainer.spots[0]
    publisher = (first.hosts[0], first.gpus[0][0])
    readers = generator.devices
    if readers == {publisher}:
        return "cuda-ipc"
    return "some" if publisher in readers else "nccl"


def _apart(places: Mapping[str, Any]) -> str:
    """That trainer and generators are not all on one host, in words; empty when they are."""
    hosts = {role: sorted(places[role].hosts) for role in ("trainer", "generator") if role in places}
    if len({host for ids in hosts.values() for host in ids}) < 2:
        return ""
    return " and ".join(f"{role} is on host {', '.join(map(str, ids))}" for role, ids in hosts.items())
