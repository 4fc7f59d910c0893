"""What the rows of gpu_sync.py share: tensors of a model's shapes, transports by name, time on the device."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

CPU = os.environ.get("GPU_SYNC_CPU") == "1"
REPO = Path(__file__).resolve().parents[2]
HOST_IPC = f"{REPO}/plugins/forge-plugin-cuda-ipc/tests/host_ipc.py:HostIpc"
TRANSPORTS = {
    "cuda-ipc": HOST_IPC if CPU else "forge_plugin_cuda_ipc.transport:CudaIpc",
    "shm": "forge_host.builtin.transports.shm:SharedMemory",
    "nccl": "forge_plugin_nccl.transport:Nccl",
}


def say(text: str) -> None:
    print(f"RESULT {text}", flush=True)


def device() -> str:
    return "cpu" if CPU else "cuda"


def wait() -> None:
    import torch

    if not CPU:
        torch.cuda.synchronize()


def timed(work: Any, repeats: int = 10) -> float:
    """Median seconds, the device waited for."""
    times = []
    for _ in range(repeats + 2):
        wait()
        began = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - began)
    return statistics.median(times[2:])


def tensors(fill: float = 0.5) -> dict[str, Any]:
    from forge_host.loop.bench_sync import model_tensors

    return {name: t.to(device()).fill_(fill) for name, t in model_tensors("135M" if CPU else "0.6B").items()}


def generators_environment(config: Any, kind: str) -> dict[str, str]:
    """What a run sets for the generator's process (allocator, OpenMP, vLLM)."""
    from types import SimpleNamespace

    from forge_plugin_vllm.environment import environment

    from forge_host.config.schema import ServiceConfig

    services = SimpleNamespace(services={"generator": ServiceConfig()})
    return environment(config, SimpleNamespace(device=kind, role="generator", config=services))


def build(transport: str) -> Any:
    from forge_host.plugins import PluginHost
    from forge_host.types import Use

    made = PluginHost.load().build("transport", Use(TRANSPORTS[transport]))
    made.open("gpu-sync")
    return made


def free_bytes() -> int:
    import torch

    return 0 if CPU else int(torch.cuda.mem_get_info()[0])


def model_folder(out: Path) -> str:
    """Qwen3-0.6B's shape with random weights (`--cpu`: a small one)."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    if "GPU_SYNC_MODEL" in os.environ:
        return os.environ["GPU_SYNC_MODEL"]
    path = out / ("qwen3-small" if CPU else "qwen3-0.6b-random")
    if (path / "model.safetensors").exists():
        return str(path)
    size = (dict(vocab_size=2048, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=64) if CPU else
            dict(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                 num_attention_heads=16, num_key_value_heads=8, head_dim=128))  # fmt: skip
    config = Qwen3Config(**size, max_position_embeddings=8192, rope_theta=1e6, tie_word_embeddings=True)
    torch.manual_seed(0)
    with torch.device(device()):
        Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    return str(path)
