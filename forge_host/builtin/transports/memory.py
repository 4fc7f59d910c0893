"""How much memory this process may still take, so that a transport can refuse instead of being killed.

require_memory(2 << 30, "publish the weights")
"""

from __future__ import annotations

from pathlib import Path

from forge_host.errors import RunError

SLACK_BYTES = 64 << 20  #: left for everybody else


def available_bytes() -> int:
    """The smaller of what the host has free and what the process's control group has left (cgroup v2 or v1)."""
    left = [_meminfo("MemAvailable")]
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        if Path(limit).exists() and Path(used).exists():
            text = Path(limit).read_text().strip()
            if text != "max":
                left.append(int(text) - int(Path(used).read_text()) + _cached(Path(used).parent))
    return min(left)


def require_memory(num_bytes: int, purpose: str) -> None:
    """Raises RunError when `num_bytes` more do not fit."""
    available = available_bytes()
    if num_bytes + SLACK_BYTES > available:
        raise RunError(
            f"not enough memory to {purpose}: {gib(num_bytes)} needed, {gib(available)} available",
            fix="give the machine or container more memory, use a smaller model, or set transport: file",
        )


def gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def _meminfo(key: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"/proc/meminfo has no {key}")


def _cached(group: Path) -> int:
    """Bytes of page cache that a control group counts as used but would give back."""
    for line in (group / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0
