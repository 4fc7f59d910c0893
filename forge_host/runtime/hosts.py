"""The machines of a run, as the planner sees them: cores, GPUs, and the address that their processes meet at.

    this_machine()     # Host(name="node7", cpus=((0, 1, 2, 3),), gpus=("0",), address="127.0.0.1", ...)

Light: neither torch nor CUDA is initialised to count devices.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import attrs

NODES = Path("/sys/devices/system/node")


@attrs.frozen(kw_only=True)
class Host:
    """One machine, or what a launcher promises about one that is not there yet.

    Args:
        name: what errors and plans call it.
        cpus: ids of the cores that processes may use, one tuple for every NUMA node.
        gpus: names of its CUDA devices, as CUDA_VISIBLE_DEVICES takes them.
        address: where other hosts reach it; process groups meet at the address of their first host.
        identity: of the running kernel and its process ids; two equal ones are one machine. "" is unknown.
    """

    name: str
    cpus: tuple[tuple[int, ...], ...]
    gpus: tuple[str, ...] = ()
    address: str = "127.0.0.1"
    identity: str = ""

    @property
    def num_cpus(self) -> int:
        return sum(map(len, self.cpus))

    def __str__(self) -> str:
        gpus = f", {len(self.gpus)} GPU{'s' * (len(self.gpus) != 1)}" if self.gpus else ""
        return f"{self.name} ({self.num_cpus} core{'s' * (self.num_cpus != 1)}{gpus})"


def promised(name: str, *, cpus: int, gpus: int = 0) -> Host:
    """A host that is not there yet, of which only numbers are known."""
    return Host(name=name, cpus=(tuple(range(cpus)),), gpus=tuple(map(str, range(gpus))))


def this_machine(name: str | None = None, address: str = "127.0.0.1") -> Host:
    """The host of this process, with the cores and GPUs that this process may use."""
    return Host(
        name=name or socket.gethostname(), cpus=usable_cpus(), gpus=visible_gpus(), address=address,
        identity=identity(),
    )


def identity() -> str:
    """Tells this machine (and this container's process ids) from others, so that a pid is killed where it lives."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{boot.read_text().strip()}/{os.readlink('/proc/self/ns/pid')}" if boot.exists() else socket.gethostname()


def usable_cpus() -> tuple[tuple[int, ...], ...]:
    """Cores of this process's affinity by NUMA node, in the node's order."""
    allowed = os.sched_getaffinity(0)
    nodes = sorted(NODES.glob("node[0-9]*"), key=lambda path: int(path.name[4:])) if NODES.is_dir() else []
    found = [tuple(sorted(allowed & parse_cpu_list((node / "cpulist").read_text()))) for node in nodes]
    known = {core for node in found for core in node}
    rest = tuple(sorted(allowed - known))
    return tuple(node for node in (*found, rest) if node)


def parse_cpu_list(text: str) -> set[int]:
    """The kernel's "0-3,8" as numbers."""
    cores: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def visible_gpus() -> tuple[str, ...]:
    """CUDA devices that this process may use, without initialising CUDA."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        return tuple(names[: names.index("-1")] if "-1" in names else filter(None, names))
    if not any(os.path.exists(device) for device in ("/dev/nvidiactl", "/dev/dxg")):
        return ()
    import torch

    return tuple(map(str, range(torch.cuda.device_count() if torch.backends.cuda.is_built() else 0)))
