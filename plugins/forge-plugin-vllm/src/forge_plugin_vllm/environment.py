"""Environment variables that the generator's process needs before Python starts.

    environment(VLLMConfig(), context)["OMP_NUM_THREADS"]

Why: vLLM's defaults on a CPU keep one core for its scheduler, put the model into a third process and compile a helper
during the first request (43 s until ready and 29 s for that request, 2 cores, SmolLM2-135M). Here everything is one
process with all cores, Intel's OpenMP and, when it is there, tcmalloc, and nothing is compiled.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from forge_host.runtime.allocator import keep_memory
from forge_plugin_vllm.config import VLLMConfig

#: Where Debian, Fedora and conda put it.
TCMALLOC = (
    "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
    "/usr/lib/aarch64-linux-gnu/libtcmalloc_minimal.so.4",
    "/usr/lib64/libtcmalloc_minimal.so.4",
    f"{sys.prefix}/lib/libtcmalloc_minimal.so.4",
)
OPENMP = (f"{sys.prefix}/lib/libiomp5.so",)


def environment(config: VLLMConfig, context: Any) -> dict[str, str]:
    """The variables, for the device in `context`; what the user has set himself stays."""
    chosen = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_HOST_IP": "127.0.0.1",
    }
    if context.device == "cpu":
        chosen |= {
            "OMP_NUM_THREADS": str(threads(config, context)),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "KMP_BLOCKTIME": "1",  # ms a worker thread spins before it sleeps: the trainer wants the cores too
            "MALLOC_ARENA_MAX": "1",  # one arena keeps the packed weights; of use where tcmalloc is not there
            **keep_memory(),
        }
        if config.enforce_eager is not False:
            chosen["TORCH_COMPILE_DISABLE"] = "1"
        preload = [os.environ.get("LD_PRELOAD", ""), *preloads()]
        chosen["LD_PRELOAD"] = ":".join(path for path in preload if path)
    chosen = {name: value for name, value in chosen.items() if name == "LD_PRELOAD" or name not in os.environ}
    return chosen | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # the engine lives and dies with its process


def preloads() -> list[str]:
    """Libraries that make vLLM faster on a CPU, those of them that are installed."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return []
    found = (next((path for path in paths if Path(path).exists()), None) for paths in (TCMALLOC, OPENMP))
    return [path for path in found if path and Path(path).name not in os.environ.get("LD_PRELOAD", "")]


def threads(config: VLLMConfig, context: Any) -> int:
    """CPU threads of one replica."""
    if config.threads is not None:
        return config.threads
    service = context.config.services.get(context.role)
    replicas = service.num_replicas * service.procs if service is not None else 1
    return max(1, len(os.sched_getaffinity(0)) // replicas)
