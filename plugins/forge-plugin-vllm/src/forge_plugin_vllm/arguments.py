"""The generator's settings as arguments of vLLM's `EngineArgs`.

engine_arguments(VLLMConfig(), model_path="/models/SmolLM2", max_model_len=2048, device="cpu", seed=0)
"""

from __future__ import annotations

from typing import Any

from forge_host.builtin.transports.memory import available_bytes
from forge_host.errors import UsageError
from forge_plugin_vllm.checkpoint import kv_bytes_per_token
from forge_plugin_vllm.config import VLLMConfig
from forge_plugin_vllm.startup import kv_cache_bytes


def engine_arguments(
    config: VLLMConfig,
    *,
    model_path: str,
    max_model_len: int,
    device: str,
    seed: int,
    procs: int = 1,
    shared: bool = False,
    sequences: int | None = None,
) -> dict[str, Any]:
    """Arguments by name; `config.engine_args` comes last and wins.

    Args:
        max_model_len: longest prompt + response, in tokens.
        device: "cpu" or "cuda".
        seed: of sampling.
        procs: devices that split the model (tensor parallel).
        shared: another role uses the same GPU.
        sequences: most responses in flight; bounds the KV cache on a CPU. None if not known.

    Raises:
        UsageError: the KV cache does not fit into memory, or it is asked to sleep on a CPU.
    """
    on_cpu = device == "cpu"
    if on_cpu and config.sleep_between_steps:
        raise UsageError(
            "the generator is on the CPU and cannot give its memory back between steps",
            where="generator.sleep_between_steps", fix="leave it out",
        )  # fmt: skip
    eager = on_cpu if config.enforce_eager is None else config.enforce_eager
    chosen: dict[str, Any] = {
        "model": model_path,
        "dtype": config.dtype,
        "max_model_len": config.max_model_len or max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "enable_prefix_caching": config.enable_prefix_caching,
        "enforce_eager": eager,
        "tensor_parallel_size": procs,
        "seed": seed,
        "load_format": config.load_format,
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": "forge_plugin_vllm.worker.WorkerExtension",
        "disable_log_stats": True,
        "enable_sleep_mode": config.sleep_between_steps or None,
        "block_size": config.block_size or (32 if on_cpu else None),
        "gpu_memory_utilization": config.gpu_memory_utilization or (0.4 if shared else 0.9),
    }
    if on_cpu:
        chosen["kv_cache_memory_bytes"] = kv_cache_bytes(config, available_bytes(), _most(chosen, sequences))
    elif config.kv_cache_gb is not None:
        chosen["kv_cache_memory_bytes"] = int(config.kv_cache_gb * 2**30)
    return {name: value for name, value in {**chosen, **config.engine_args}.items() if value is not None}


def _most(chosen: dict[str, Any], sequences: int | None) -> int:
    """Bytes of keys and values when every sequence is as long as it may be, each with a last block of its own."""
    size = 4 if chosen["dtype"] == "float32" else 2
    per_token = kv_bytes_per_token(chosen["model"], size) if sequences is not None else None
    if per_token is None or sequences is None:
        return 4 << 30
    return (
        min(sequences, int(chosen["max_num_seqs"]))
        * (int(chosen["max_model_len"]) + int(chosen["block_size"]))
        * per_token
    )
