"""What the run takes from this machine, sampled by the controller: a few milliseconds, no dependency.

    sample = SystemSampler()
    sample()["system/rss_gb"]       # this process and everything below it

Linux's /proc for processors and memory, NVIDIA's own library for GPUs where it is installed. What a machine does not
tell is left out. Processes on other machines are not counted.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from forge_host.report.budget import Budget

GB = 1e9
_PAGE = os.sysconf("SC_PAGE_SIZE")


class SystemSampler:
    """Call it for the metrics `system/...`; the first call's `cpu_share` is since it was made.

    Args:
        share: of the time that sampling may take; calls in between get the last sample again. 0 samples at every call.
    """

    def __init__(
        self, proc: str = "/proc", shm: str = "/dev/shm", nvml: str = "libnvidia-ml.so.1", share: float = 0.0
    ) -> None:
        self._proc, self._shm = Path(proc), shm
        self._gpus = Gpus(nvml)
        self._cpu = self._cpu_times()
        self._budget = Budget(share) if share else None
        self._last: dict[str, float] = {}

    def __call__(self) -> dict[str, float]:
        if self._budget is None:
            return self._sample()
        with self._budget as due:
            if due:
                self._last = self._sample()
        return self._last

    def _sample(self) -> dict[str, float]:
        return {**self._processors(), **self._memory(), **self._shared_memory(), **self._gpus()}

    def _processors(self) -> dict[str, float]:
        before, self._cpu = self._cpu, self._cpu_times()
        if before is None or self._cpu is None or self._cpu[1] <= before[1]:
            return {}
        return {"system/cpu_share": (self._cpu[0] - before[0]) / (self._cpu[1] - before[1])}

    def _cpu_times(self) -> tuple[int, int] | None:
        """Busy and total jiffies of all processors since boot (proc(5), `/proc/stat`)."""
        try:
            first = (self._proc / "stat").read_text().split("\n", 1)[0].split()
        except OSError:
            return None
        times = [int(word) for word in first[1:9]]
        idle = times[3] + times[4]
        return sum(times) - idle, sum(times)

    def _memory(self) -> dict[str, float]:
        out = {"system/rss_gb": sum(self._rss(pid) for pid in self._family(os.getpid())) / GB}
        try:
            rows = dict(line.split(":", 1) for line in (self._proc / "meminfo").read_text().splitlines())
            used = int(rows["MemTotal"].split()[0]) - int(rows["MemAvailable"].split()[0])
        except (OSError, KeyError):
            return out
        return out | {"system/memory_used_gb": used * 1024 / GB}

    def _family(self, pid: int) -> Iterator[int]:
        """A process and everything below it, by the parent that each process names."""
        children: dict[int, list[int]] = {}
        for entry in os.listdir(self._proc):
            if entry.isdigit():
                try:
                    # The name in parentheses may hold anything; the parent is the second word after it.
                    parent = (self._proc / entry / "stat").read_text().rpartition(")")[2].split()[1]
                except OSError:  # ended meanwhile
                    continue
                children.setdefault(int(parent), []).append(int(entry))
        waiting = [pid]
        while waiting:
            found = waiting.pop()
            yield found
            waiting += children.get(found, [])

    def _rss(self, pid: int) -> int:
        try:
            return int((self._proc / str(pid) / "statm").read_text().split()[1]) * _PAGE
        except OSError:  # ended meanwhile
            return 0

    def _shared_memory(self) -> dict[str, float]:
        try:
            stat = os.statvfs(self._shm)
        except OSError:
            return {}
        total, free = stat.f_blocks * stat.f_frsize, stat.f_bfree * stat.f_frsize
        if not total:
            return {}
        return {"system/shm_used_gb": (total - free) / GB, "system/shm_share": (total - free) / total}


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Utilisation(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Gpus:
    """Memory and utilisation of every NVIDIA GPU that the driver shows (NVML API); {} where there is none."""

    def __init__(self, library: str) -> None:
        self._handles: list[ctypes.c_void_p] = []
        try:
            self._nvml = ctypes.CDLL(library)
        except OSError:
            return
        count = ctypes.c_uint()
        if self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if not self._nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)):
                self._handles.append(handle)

    def __call__(self) -> dict[str, float]:
        out: dict[str, float] = {}
        for index, handle in enumerate(self._handles):
            memory, busy = _Memory(), _Utilisation()
            if not self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
                out[f"system/gpu{index}/memory_used_gb"] = memory.used / GB
            if not self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(busy)):
                out[f"system/gpu{index}/utilisation"] = busy.gpu / 100
        return out
