"""Where a trainer process computes: its device, CPU threads, process group - and TorchTitan told so.

TorchTitan 0.3 decides its device when `torchtitan.tools.utils` is imported: the accelerator torch was built for, or
"cuda" when there is none. A CPU process, on a machine with or without a GPU, must say otherwise before TorchTitan's
other modules copy the value. All of that is here; nothing else of TorchTitan is changed.

    device = prepare("cpu")
"""

from __future__ import annotations

import atexit
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from forge_host.errors import UsageError

#: TorchTitan modules that copy `device_type` or `device_module` when they are imported.
_COPIES = (
    "torchtitan.components.metrics",
    "torchtitan.distributed.parallel_dims",
    "torchtitan.distributed.utils",
    "torchtitan.models.common.token_dispatcher",
)


def prepare(kind: str, num_threads: int | None = None, timeout_s: float = 600.0) -> torch.device:
    """Choose the device ("cuda" or "cpu"), set threads, and join the process group when WORLD_SIZE says there is one.

    Raises:
        UsageError: "cuda" where torch sees no GPU.
    """
    world, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(
                "the trainer was placed on a GPU, but torch sees none",
                fix="set services.trainer.with_gpus: false, or install a CUDA build of torch",
            )
        device = torch.device("cuda", local if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(num_threads or max(1, _cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
        torch.set_flush_denormal(True)
    select_device(device.type)
    if world > 1 and not dist.is_initialized():
        backend = "nccl" if kind == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        if backend == "gloo":
            atexit.register(leave)
    return device


def leave() -> None:
    """End the process group of this process, if it still has one.

    A thread of gloo may hold the last reference to a tensor: if it drops that while the interpreter ends, the process
    aborts (PyTorch pull request 179291). Ended here, at exit, its threads are joined before.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def select_device(kind: str) -> None:
    """Make TorchTitan use "cuda" or "cpu" in this process."""
    import torchtitan.tools.utils as utils

    utils.device_type, utils.device_module = kind, getattr(torch, kind)
    for name in _COPIES:
        module = sys.modules.get(name)
        if module is not None:
            module.__dict__.update(
                {k: v for k, v in (("device_type", kind), ("device_module", utils.device_module)) if hasattr(module, k)}
            )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
